"""What recording costs: the trainer's time, the memory, and the disk."""

from __future__ import annotations

import gc
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rl_doctor import Recorder, check, open_run
from rl_doctor.collectors.copies import Copies
from rl_doctor.store.writer import RunWriter

ROWS, WIDTH, FILLED = 64, 4096, 0.28
LOGPROBS = ("logprob", "old_logprob", "rollout_logprob", "ref_logprob", "entropy")


def batch(seed: int, rows: int = ROWS, width: int = WIDTH) -> dict[str, np.ndarray]:
    """The usual columns, padded, with all bits of a float32 and any token id: nothing that compresses."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(np.log(FILLED * width), 0.6, rows), 8, width).astype(np.int64)
    mask = np.arange(width) < lengths[:, None]
    columns = {name: rng.normal(-1, 1, (rows, width)).astype(np.float32) for name in LOGPROBS}
    columns["advantage"] = np.where(mask, rng.normal(size=(rows, 1)), 0).astype(np.float32)
    return {**columns, "response_mask": mask, "token_id": rng.integers(0, 151_000, (rows, width)), "response_length": lengths}


def cpu(work: Callable[[], object]) -> float:
    """CPU seconds of the calling thread."""
    begin = time.thread_time()
    work()
    return time.thread_time() - begin


def as_they_are(columns: dict[str, np.ndarray], path: Path) -> None:
    pd.DataFrame({name: list(values) for name, values in columns.items()}).to_parquet(path)


def row_per_token(columns: dict[str, np.ndarray], path: Path) -> None:
    mask = columns["response_mask"]
    pd.DataFrame({name: values[mask] for name, values in columns.items() if values.ndim == 2}).to_parquet(path)


@pytest.mark.slow
@pytest.mark.timed
def test_the_trainers_thread_pays_a_small_part_of_what_pandas_takes(tmp_path: Path) -> None:
    batches = [batch(seed) for seed in range(3)]
    padded, flat, recorder_alone, recorder_beside = [], [], [], []
    with Recorder(tmp_path / "run", quota=None) as recorder:
        for step in range(0, 30, 2):
            one, other = batches[step % 3], batches[(step + 1) % 3]
            gc.collect()
            padded.append(cpu(lambda one=one: as_they_are(one, tmp_path / "baseline.parquet")))
            flat.append(cpu(lambda one=one: row_per_token(one, tmp_path / "baseline.parquet")))
            recorder_alone.append(cpu(lambda one=one, step=step: recorder.log_batch(step=step, **one)))
            recorder_beside.append(cpu(lambda other=other, step=step: recorder.log_batch(step=step + 1, **other)))
            recorder.flush()
    assert recorder.guard.reason is None
    assert recorder.dropped_steps == 0
    for recorded in (recorder_alone, recorder_beside):
        assert statistics.median(padded) > 30 * statistics.median(recorded)
        # The fastest form for pandas, without padding: 22 to 28 where it is quiet; neighbours in the cache cost us more.
        assert statistics.median(flat) > 12 * statistics.median(recorded)


@pytest.mark.parametrize(("keep", "promised"), [(32, 24.0), (16, 13.0)], ids=["float32", "bfloat16"])
def test_bytes_of_a_token(tmp_path: Path, keep: int, promised: float) -> None:
    """The promise holds for values that do not compress; an advantage that is constant in a row costs next to nothing."""
    columns = batch(0)
    for name in (*LOGPROBS, "advantage"):
        columns[name] = (columns[name].view(np.uint32) & np.uint32((0xFFFFFFFF << (32 - keep)) & 0xFFFFFFFF)).view(np.float32)
    with Recorder(tmp_path / "run") as recorder:
        recorder.log_batch(step=1, **columns)
    size = sum(path.stat().st_size for path in (tmp_path / "run").glob("*.parquet"))
    assert size / columns["response_mask"].sum() <= promised
    (got,) = open_run(tmp_path / "run").batches(["logprob"])
    np.testing.assert_array_equal(got.columns["logprob"], columns["logprob"][columns["response_mask"]])


def test_a_slow_disk_costs_whole_steps_and_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_part, held = RunWriter.write_part, []

    def slowly(self: RunWriter, *args: Any, **kwargs: Any) -> None:
        time.sleep(0.3)
        write_part(self, *args, **kwargs)

    monkeypatch.setattr(RunWriter, "write_part", slowly)
    columns = batch(0, rows=16, width=1024)
    kept = int(columns["response_mask"].sum())
    limit = 3 << 20
    recorder = Recorder(tmp_path / "run", queue_bytes=limit)
    for step in range(1, 101):
        for microbatch in range(2):
            recorder.log_batch(step=step, microbatch=microbatch, **columns)
        backlog = recorder._backlog
        held.append(backlog._nbytes + backlog._held)
        time.sleep(0.005)
    recorder.close()
    assert recorder.guard.reason is None
    assert recorder.dropped_steps > 0
    assert max(held) <= limit + 40 * kept
    run = open_run(tmp_path / "run")
    steps = np.concatenate([got.columns["step"] for got in run.batches(["step", "microbatch"])])
    assert set(np.unique(steps, return_counts=True)[1].tolist()) == {32}, "a step is there whole or not at all"
    assert len(np.unique(steps)) == 100 - recorder.dropped_steps
    (result,) = [result for result in check(run).results if result.name == "dropped-steps"]
    assert result.outcome == "found"
    assert str(recorder.dropped_steps) in result.findings[0].message


def test_rows_that_the_writer_holds_count(tmp_path: Path) -> None:
    """A step is held until it is complete, and one that does not fit is dropped however often its batches are taken."""
    columns = batch(0, rows=16, width=1024)
    recorder = Recorder(tmp_path / "run", queue_bytes=2 << 20)
    for microbatch in range(60):
        recorder.log_batch(step=1, microbatch=microbatch, **columns)
        time.sleep(0.002)
    recorder.log_batch(step=2, **columns)
    recorder.close()
    assert recorder.dropped_steps == 1
    steps = [got.step for got in open_run(tmp_path / "run").batches(["step"])]
    assert steps == [2]


def test_what_blocks_gets_room_though_no_step_is_complete(tmp_path: Path) -> None:
    columns = batch(0, rows=16, width=1024)
    recorder = Recorder(tmp_path / "run", queue_bytes=1 << 20, blocking=True)
    for microbatch in range(20):
        recorder.log_batch(step=1, microbatch=microbatch, **columns)
    recorder.close()
    assert recorder.dropped_steps == 0
    assert sum(len(got.columns["microbatch"]) for got in open_run(tmp_path / "run").batches(["microbatch"])) == 320


def test_rows_share_no_memory_with_what_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    rows = Copies.rows
    monkeypatch.setattr(Copies, "rows", lambda self, *args, **kwargs: made.append(rows(self, *args, **kwargs)) or made[-1])
    given = [batch(seed, rows=16, width=1024) for seed in range(6)]
    with Recorder(tmp_path / "run") as recorder:
        for microbatch, columns in enumerate(given):
            recorder.log_batch(step=1, microbatch=microbatch, **columns)
            time.sleep(0.01)
    for columns, got in zip(given, made, strict=True):
        assert all(array.flags.owndata for array in got.columns.values())
        np.testing.assert_array_equal(got.columns["logprob"], columns["logprob"][columns["response_mask"]])


def test_the_guide_can_be_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[2] / "docs/guide/cost.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102 - the guide's own lines
    for name in ("recorder", "patient"):
        names[name].log_batch(step=1, **batch(0, rows=4, width=256))
        names[name].close()
    assert [len(list(open_run(tmp_path / "runs" / run).batches(["logprob"]))) for run in ("a", "b")] == [1, 1]
