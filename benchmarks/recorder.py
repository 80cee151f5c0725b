"""What recording costs: the trainer's thread beside a synchronous pandas.to_parquet, the disk, and whether the writer keeps up.

Needs torch and pandas (the environment of the tests against TRL has both). All figures of one line come from one run, in turns.

    python benchmarks/recorder.py                # host memory
    python benchmarks/recorder.py --device cuda  # the share of a step that the trainer waits, and that nothing synchronises
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from rl_doctor import Recorder

SEQUENCES, WIDTH, FILLED = 64, 4096, 0.28
LARGE_STEP = 8_000 * 8_000
USUAL = ("logprob", "old_logprob", "rollout_logprob", "ref_logprob", "advantage", "entropy", "response_mask", "token_id")


@dataclass(frozen=True)
class Batch:
    """Padded columns of a micro-batch, and its lengths."""

    columns: dict[str, torch.Tensor]
    lengths: torch.Tensor

    @property
    def tokens(self) -> int:
        return int(self.lengths.sum())


def make(dtype: torch.dtype, seed: int, *, rows: int = SEQUENCES, width: int = WIDTH, filled: float = FILLED) -> Batch:
    """A batch of which that share of positions is filled; log-probabilities that differ little, as those of a policy do."""
    rng = np.random.default_rng(seed)
    lengths = rng.lognormal(0, 0.8, rows)
    for _ in range(20):
        lengths = np.clip(lengths * (filled * rows * width / lengths.sum()), 8, width)
    lengths = lengths.astype(np.int64)
    mask = np.arange(width) < lengths[:, None]
    # Most tokens are all but certain: the probability of the sampled one is near 1 more often than not.
    old = np.log(rng.beta(2.0, 0.35, (rows, width)).clip(1e-9))
    drift = rng.normal(0, 0.02, (rows, width)) * np.minimum(1, -old)
    columns: dict[str, np.ndarray] = {
        "logprob": old + drift,
        "old_logprob": old,
        "rollout_logprob": old + rng.normal(0, 0.01, (rows, width)) * np.minimum(1, -old),
        "ref_logprob": old + 3 * drift,
        "advantage": np.where(mask, rng.normal(size=(rows, 1)), 0),
        "entropy": -old * rng.gamma(2, 0.5, (rows, width)),
    }
    tensors = {name: torch.from_numpy(np.where(mask, values, 0)).to(dtype) for name, values in columns.items()}
    ids = np.minimum(rng.zipf(1.3, (rows, width)), 151_000)
    tensors |= {"response_mask": torch.from_numpy(mask), "token_id": torch.from_numpy(np.where(mask, ids, 0))}
    return Batch(tensors, torch.from_numpy(lengths))


def sequence_columns(batch: Batch) -> dict[str, Any]:
    rows = len(batch.lengths)
    return {
        "response_length": batch.lengths,
        "reward": torch.zeros(rows),
        "group": [str(row // 8) for row in range(rows)],
        "uid": [str(row) for row in range(rows)],
    }


def _plain(values: torch.Tensor) -> np.ndarray:
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()


def flat_with_pandas(batch: Batch, path: Path) -> None:
    """One row per token."""
    mask = batch.columns["response_mask"]
    flat = {name: _plain(values[mask]) for name, values in batch.columns.items()}
    flat["sequence"] = np.repeat(np.arange(len(mask)), batch.lengths.numpy())
    pd.DataFrame(flat).to_parquet(path)


def lists_with_pandas(batch: Batch, path: Path) -> None:
    """One row per sequence."""
    mask = batch.columns["response_mask"]
    rows = {name: [_plain(row[kept]) for row, kept in zip(values, mask, strict=True)] for name, values in batch.columns.items()}
    pd.DataFrame(rows).to_parquet(path)


def padded_with_pandas(batch: Batch, path: Path) -> None:
    """The tensors as they are: one row per sequence, padding included."""
    pd.DataFrame({name: list(_plain(values)) for name, values in batch.columns.items()}).to_parquet(path)


PANDAS: dict[str, Callable[[Batch, Path], None]] = {
    "as they are": padded_with_pandas,
    "lists": lists_with_pandas,
    "row per token": flat_with_pandas,
}


def loss(batch: Batch) -> float:
    """What a trainer does with the columns right before they are recorded."""
    columns, mask = batch.columns, batch.columns["response_mask"]
    ratio = (columns["logprob"] - columns["old_logprob"]).exp()
    terms = -torch.minimum(ratio * columns["advantage"], ratio.clamp(0.8, 1.2) * columns["advantage"])
    penalty = columns["ref_logprob"] - columns["rollout_logprob"] + columns["entropy"] + (columns["token_id"] < 0)
    return float(((terms + penalty) * mask).sum())


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU milliseconds of the calling thread."""
    wall, cpu = time.perf_counter(), time.thread_time()
    work()
    return (time.perf_counter() - wall) * 1e3, (time.thread_time() - cpu) * 1e3


@contextlib.contextmanager
def recording(**options: Any) -> Iterator[tuple[Recorder, Path]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        with Recorder(path, **options) as recorder:
            yield recorder, path
        if recorder.guard.reason:
            raise SystemExit(recorder.guard.reason)


@dataclass(frozen=True)
class Cost:
    """Medians in milliseconds of wall and CPU time of the calling thread for one batch."""

    pandas: dict[str, tuple[float, float]]
    idle: tuple[float, float]
    busy: tuple[float, float]
    tokens: int

    def ratio(self, recorded: Sequence[float], clock: int, form: str | None = None) -> float:
        """How many times as long a way with pandas takes (by default the fastest); clock 0 is wall time, 1 CPU time."""
        others = self.pandas.values() if form is None else [self.pandas[form]]
        return min(other[clock] for other in others) / recorded[clock]


def _median(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median(pair[0] for pair in pairs), statistics.median(pair[1] for pair in pairs)


def trainer_cost(dtype: torch.dtype, repeats: int) -> Cost:
    """The calls in turn: pandas in each form, the recorder with an idle writer, and with one that is still at work."""
    batches = [make(dtype, seed) for seed in range(3)]
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in (*PANDAS, "idle", "busy")}
    with tempfile.TemporaryDirectory() as folder, recording(quota=None) as (recorder, _):
        scratch = Path(folder) / "baseline.parquet"

        def record(step: int, batch: Batch) -> tuple[float, float]:
            loss(batch)
            return timed(lambda: recorder.log_batch(step=step, **sequence_columns(batch), **batch.columns))

        for step in range(repeats):
            batch = batches[step % len(batches)]
            for name, write in PANDAS.items():
                loss(batch)
                found[name].append(timed(lambda write=write, batch=batch: write(batch, scratch)))
            recorder.flush()
            found["idle"].append(record(3 * step, batch))
            recorder.end_step(3 * step)
            found["busy"].append(record(3 * step + 1, batches[(step + 1) % 3]))
            recorder.flush()
    medians = {name: _median(times[min(2, len(times) - 1) :]) for name, times in found.items()}
    pandas = {name: medians.pop(name) for name in PANDAS}
    return Cost(pandas, **medians, tokens=batches[0].tokens)


@dataclass(frozen=True)
class Writing:
    """What the writer thread takes for a token, and what lies on disk."""

    cpu_ns: float
    wall_ns: float
    bytes: float


def writer_cost(batches: Sequence[Batch], repeats: int) -> Writing:
    """Record batches and wait for the disk; the CPU time is that of all threads but the calling one."""
    with recording(quota=None) as (recorder, path):
        recorder.log_batch(step=0, **sequence_columns(batches[0]), **batches[0].columns)
        recorder.flush()
        before = sum(part.stat().st_size for part in path.glob("*.parquet"))
        wall, cpu, own = time.perf_counter(), time.process_time(), time.thread_time()
        tokens = 0
        for step in range(1, repeats + 1):
            batch = batches[step % len(batches)]
            recorder.log_batch(step=step, **sequence_columns(batch), **batch.columns)
            tokens += batch.tokens
        recorder.flush()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu - (time.thread_time() - own)
        size = sum(part.stat().st_size for part in path.glob("*.parquet")) - before
    return Writing(cpu / tokens * 1e9, wall / tokens * 1e9, size / tokens)


def slowdown(dtype: torch.dtype, repeats: int) -> tuple[float, float]:
    """Milliseconds that a loop of small operations takes for a batch, without and with a writer at work beside it."""
    batch = make(dtype, 0)
    small = torch.randn(64, 64)

    def work() -> None:
        for _ in range(2000):
            small.mul(1.0001).add(0.1)

    without, beside = [], []
    with recording(quota=None) as (recorder, _):
        for step in range(repeats):
            without.append(timed(work)[0])
            recorder.log_batch(step=step, **sequence_columns(batch), **batch.columns)
            recorder.end_step(step)
            beside.append(timed(work)[0])
            recorder.flush()
    return statistics.median(without), statistics.median(beside)


def report(repeats: int) -> None:
    torch.set_num_threads(1)
    print(f"{SEQUENCES} x {WIDTH} padded, {FILLED:.0%} filled, columns {', '.join(USUAL)}; medians of {repeats}")
    print("milliseconds of the trainer's thread for a batch: wall (CPU)")
    costs = {}
    for dtype in (torch.float32, torch.bfloat16):
        gc.collect()
        cost = costs[dtype] = trainer_cost(dtype, repeats)
        rows = {f"pandas, {form}": times for form, times in cost.pandas.items()}
        rows |= {"recorder": cost.idle, "recorder, writer busy": cost.busy}
        for label, (wall, cpu) in rows.items():
            print(f"  {dtype!s:15} {label:22} {wall:8.2f} ({cpu:.2f})")
        for form in PANDAS:
            ratios = [f"{cost.ratio(times, clock, form):.0f}" for times in (cost.idle, cost.busy) for clock in (0, 1)]
            print(f"  {dtype!s:15} pandas, {form} / recorder: idle {ratios[0]} ({ratios[1]}), busy {ratios[2]} ({ratios[3]})")
    print("the writer thread, per token")
    for dtype in (torch.float32, torch.bfloat16):
        writing = writer_cost([make(dtype, seed) for seed in range(3)], repeats)
        print(
            f"  {dtype!s:15} {writing.cpu_ns:.0f} ns of CPU, {writing.wall_ns:.0f} ns in all, {writing.bytes:.1f} bytes on disk"
        )
        trainer = costs[dtype].busy[1] / costs[dtype].tokens * LARGE_STEP / 1e3
        print(
            f"  {'':15} a step of 8,000 sequences of 8,000 tokens, reckoned from these: trainer {trainer:.1f} s of CPU, "
            f"writer {writing.cpu_ns * LARGE_STEP / 1e9:.0f} s of CPU, {writing.bytes * LARGE_STEP / 1e9:.2f} GB; "
            f"the writer keeps up if the step takes longer than {writing.wall_ns * LARGE_STEP / 1e9:.0f} s, on one process"
        )
    for dtype in (torch.float32, torch.bfloat16):
        without, beside = slowdown(dtype, repeats)
        print(f"  {dtype!s:15} 4,000 small operations: {without:.1f} ms without, {beside:.1f} ms beside a writer at work")


def report_cuda(repeats: int) -> None:
    """The share of a step that recording takes of the training thread and of its stream; any synchronisation is an error."""
    device = torch.device("cuda")
    batch = make(torch.float32, 0)
    columns = {name: values.to(device) for name, values in batch.columns.items()}
    others = {
        **sequence_columns(batch),
        "response_length": batch.lengths.to(device),
        "reward": torch.zeros(SEQUENCES, device=device),
    }
    weight = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)

    def step_of_work() -> None:
        x = weight
        for _ in range(20):
            x = weight @ x * 1e-2

    def step(recorder: Recorder | None, number: int) -> tuple[float, float]:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        step_of_work()
        blocked = 0.0
        if recorder is not None:
            torch.cuda.set_sync_debug_mode("error")
            blocked = timed(lambda: recorder.log_batch(step=number, **others, **columns))[0]
            recorder.log_metrics(number, {"loss": columns["logprob"].mean()})
            torch.cuda.set_sync_debug_mode("default")
        step_of_work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end), blocked

    without, beside, blocked = [], [], []
    with recording(quota=None) as (recorder, _):
        for number in range(repeats):
            without.append(step(None, number)[0])
            time_of_step, wait = step(recorder, number)
            beside.append(time_of_step)
            blocked.append(wait)
    plain, recorded, wait = (statistics.median(times[2:]) for times in (without, beside, blocked))
    print(f"step on the device: {plain:.2f} ms without, {recorded:.2f} ms with recording ({recorded / plain - 1:+.2%})")
    print(f"the training thread spends {wait:.2f} ms in log_batch, {wait / plain:.2%} of the step; nothing synchronised")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--repeats", type=int, default=25)
    arguments = parser.parse_args()
    if arguments.device == "cpu":
        report(arguments.repeats)
    elif torch.cuda.is_available():
        report_cuda(arguments.repeats)
    else:
        sys.exit("no CUDA device here: not measured")


if __name__ == "__main__":
    main()
