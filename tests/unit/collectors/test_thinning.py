"""A run that exceeds its quota loses tokens of old steps, the same on all ranks, and nothing else; and it says so."""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_doctor import Recorder, check, open_run
from rl_doctor.collectors import check_process, gently, thinning
from rl_doctor.collectors.findings import FindingsCheck, spans_of_findings
from rl_doctor.errors import ChangedError, DoctorError
from rl_doctor.store import layout
from rl_doctor.store.thinning import Plan, StepsOfRun, choose, read_plan, sizes, spans_of, thin_part, write_plan

ROWS, WIDTH = 8, 512
STEP_BYTES = 2 * 4 * ROWS * WIDTH
"""About what the tokens of a step take: two columns of noise in float32."""


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thinning, "_MEASURE_SECONDS", 0.0)
    monkeypatch.setattr(thinning, "_MEASURE_PAUSE", 0.0)
    monkeypatch.setattr(thinning, "_SETTLE_SECONDS", 0.0)


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """No run is checked for findings."""
    monkeypatch.setattr(FindingsCheck, "start", lambda *_: None)


def columns(step: int, rank: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(1000 * rank + step)
    return {
        "response_mask": np.ones((ROWS, WIDTH), bool), "response_length": np.full(ROWS, WIDTH),
        "logprob": rng.normal(-5, 0.5, (ROWS, WIDTH)).astype(np.float32), "padded_width": WIDTH,
        "old_logprob": rng.normal(-5, 0.5, (ROWS, WIDTH)).astype(np.float32), "epoch": 0, "minibatch": 0, "microbatch": 0,
        "reward": rng.normal(size=ROWS), "rank": rank, "uid": [f"{step}-{rank}-{row}" for row in range(ROWS)],
    }  # fmt: skip


def record(recorder: Recorder, steps: range, rank: int = 0, rollout: Callable[[int], int] | None = None) -> None:
    for step in steps:
        more = {} if rollout is None else {"rollout_step": rollout(step)}
        recorder.log_batch(step=step, **columns(step, rank), **more)
        recorder.log_metrics(step, {"loss": float(step)})
        recorder.end_step(step)
        if step % 2 == 0:
            recorder.flush()


def read(folder: Path) -> dict[tuple[int, int], bool]:
    """Whether each step has tokens, by step and rank; asserts that all that is there is what was logged."""
    found: dict[tuple[int, int], bool] = {}
    names = ["logprob", "old_logprob", "reward", "rank", "tokens_dropped", "response_length", "padded_width", "uid"]
    for part in open_run(folder).batches(names):
        for rank in np.unique(part.columns["rank"]).tolist():
            rows = part.columns["rank"] == rank
            given = columns(part.step, rank)
            np.testing.assert_array_equal(part.columns["reward"][rows], given["reward"])
            assert part.columns["uid"][rows].tolist() == given["uid"]
            assert (part.columns["response_length"] == WIDTH).all()
            assert (part.columns["padded_width"] == WIDTH).all()
            lengths = np.diff(part.splits)[rows]
            dropped = part.columns["tokens_dropped"] if "tokens_dropped" in part.columns else np.zeros(len(rows), bool)
            np.testing.assert_array_equal(lengths == 0, dropped[rows])
            assert len(set(lengths.tolist())) == 1
            found[part.step, rank] = bool(lengths[0])
            if lengths[0]:
                tokens = np.repeat(rows, np.diff(part.splits))
                for name in ("logprob", "old_logprob"):
                    np.testing.assert_array_equal(part.columns[name][tokens], given[name].ravel())
    return found


def whole_steps(folder: Path, rank: int = 0) -> set[int]:
    return {step for (step, owner), whole in read(folder).items() if whole and owner == rank}


def claim(folder: Path, rank: int = 0, session: int = 1) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / layout.writer_name(session, rank)).read_text())
    return found


def sequences(folder: Path) -> list[layout.PartName]:
    names = (layout.parse_part(path.name) for path in folder.iterdir())
    return sorted(name for name in names if name is not None and name.table == "sequences")


@pytest.fixture
def three_parts(tmp_path: Path) -> Path:
    """A run of six steps in three parts."""
    with Recorder(tmp_path / "run", quota=None) as recorder:
        record(recorder, range(1, 7))
    return tmp_path / "run"


def test_a_part_loses_the_tokens_of_some_steps_and_nothing_else(three_parts: Path) -> None:
    before = open_run(three_parts).facts
    gone = [thin_part(three_parts, name, lambda step: step in {1, 5, 6}) for name in sequences(three_parts)]
    assert gone == [(2,), (3, 4), ()]
    assert whole_steps(three_parts) == {1, 5, 6}
    facts = open_run(three_parts).facts
    assert (facts.sequences, facts.incomplete_steps, facts.skipped_parts) == (before.sequences, (), ())
    assert sorted(path.name for path in three_parts.glob("tokens-*")) == ["tokens-s1-r0-0-v1.parquet", "tokens-s1-r0-2.parquet"]
    assert [thin_part(three_parts, name, lambda step: step in {1, 5, 6}) for name in sequences(three_parts)] == [(), (), ()]
    assert thin_part(three_parts, sequences(three_parts)[0], lambda _: False) == (1,)
    assert whole_steps(three_parts) == {5, 6}
    assert not check(open_run(three_parts)).run.skipped_parts


@pytest.mark.parametrize("keeps", [lambda step: step == 1, lambda _: False], ids=["some", "none"])
@pytest.mark.parametrize("stage", ["tokens", "sequences", "unlink"])
def test_what_is_interrupted_is_readable_and_finished_by_the_next_call(
    three_parts: Path, monkeypatch: pytest.MonkeyPatch, stage: str, keeps: Callable[[int], bool]
) -> None:
    calls: list[Path] = []
    write, unlink = layout.write_durably, Path.unlink

    def stop_at(path: Path, *rest: Any, **more: Any) -> Any:
        calls.append(path)
        if path.name.startswith(stage):
            raise KeyboardInterrupt
        return write(path, *rest, **more)

    def stop_unlink(path: Path, *rest: Any, **more: Any) -> None:
        if stage == "unlink" and path.suffix == ".parquet":
            raise KeyboardInterrupt
        unlink(path, *rest, **more)

    name = sequences(three_parts)[0]
    with monkeypatch.context() as patched:
        patched.setattr(layout, "write_durably", stop_at)
        patched.setattr(Path, "unlink", stop_unlink)
        if stage == "tokens" and not keeps(1):
            patched.undo()  # nothing is left to copy
        else:
            with pytest.raises(KeyboardInterrupt):
                thin_part(three_parts, name, keeps)
    assert whole_steps(three_parts) >= {3, 4, 5, 6}
    assert not open_run(three_parts).facts.skipped_parts
    thin_part(three_parts, name, keeps)
    assert whole_steps(three_parts) == {3, 4, 5, 6} | ({1} if keeps(1) else set())
    assert len(list(three_parts.glob("tokens-s1-r0-0*"))) == int(keeps(1))


def test_a_reader_that_was_overtaken_reads_again(three_parts: Path) -> None:
    run = open_run(three_parts)
    thin_part(three_parts, sequences(three_parts)[0], lambda step: step == 1)
    with pytest.raises(ChangedError, match="was thinned while it was read"):
        list(run.batches(["logprob"]))
    assert any(note.startswith("thinned: ") for note in check(run).run.notes)


@pytest.mark.usefixtures("unchecked")
def test_a_run_that_exceeds_its_quota_is_thinned_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder, quota = tmp_path / "run", 30 * STEP_BYTES
    with caplog.at_level(logging.WARNING, "rl_doctor"), Recorder(folder, quota=quota) as recorder:
        record(recorder, range(1, 101))
    assert sizes(folder).total <= quota * 1.1
    kept = whole_steps(folder)
    assert {1, 2, 99, 100} <= kept
    plan = read_plan(folder)
    assert plan is not None
    assert len({step for step in kept if 8 < step < plan.until}) >= 2
    assert kept == {step for step in range(1, 101) if plan.keeps(step)}
    assert claim(folder)["thinned_steps"] == 100 - len(kept)
    assert claim(folder)["dropped_steps"] == claim(folder)["tokenless_steps"] == 0
    told = [record.getMessage() for record in caplog.records if "quota" in record.getMessage()]
    assert len(told) == len(set(told)) == plan.stage
    report = check(open_run(folder))
    gone = sorted(set(range(1, 101)) - kept)
    assert f"thinned: the tokens of {len(gone)} steps ({gone[0]} to {gone[-1]}) were left out to save space" in report.run.notes
    np.testing.assert_array_equal(open_run(folder).metrics().series("loss")[0], np.arange(1, 101))


@pytest.mark.usefixtures("unchecked")
def test_two_ranks_thin_the_same_steps(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with Recorder(folder, quota=60 * STEP_BYTES, info={"world_size": 2}) as first:
        with Recorder(folder, rank=1, session=first.session) as second:
            for step in range(1, 81):
                for rank, recorder in enumerate((first, second)):
                    record(recorder, range(step, step + 1), rank)
            record(second, range(81, 82), 1)  # hears of the last plan
            second.flush()
        record(first, range(81, 82))
    assert len(whole_steps(folder)) < 81
    assert whole_steps(folder, 0) == whole_steps(folder, 1)
    assert claim(folder, 0)["thinned_steps"] == claim(folder, 1)["thinned_steps"] > 0


@pytest.mark.usefixtures("unchecked")
def test_steps_of_one_generation_batch_stay_together(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with Recorder(folder, quota=50 * STEP_BYTES) as recorder:
        record(recorder, range(1, 81), rollout=lambda step: step - (step - 1) % 4)
    batches = StepsOfRun(folder).generation_batches()
    assert batches == [tuple(range(first, first + 4)) for first in range(1, 81, 4)]
    kept = whole_steps(folder)
    assert 8 <= len(kept) < 80
    assert all(set(batch) <= kept or kept.isdisjoint(batch) for batch in batches)


def test_a_step_of_several_generation_batches_stands_alone(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run") as recorder:
        for step in (1, 2, 3):
            recorder.log_batch(step=step, **columns(step), rollout_step=np.arange(ROWS) % 2 + step)
    assert StepsOfRun(tmp_path / "run").generation_batches() == [(1,), (2,), (3,)]


def test_what_is_kept_is_the_first_the_newest_those_with_findings_and_a_regular_subset() -> None:
    batches = [(step,) for step in range(1, 201)]
    plan = choose(batches, 40, ((50, 53), (100, 180)), Plan(-1, ()))
    kept = {step for step in range(1, 201) if plan.keeps(step)}
    assert len(kept) <= 40
    assert set(range(1, 9)) | set(range(191, 201)) | {50, 51, 52, 53} <= kept
    assert {100, 101, 102, 103, 177, 178} <= kept
    assert {step for step in range(1, 201) if (step - 1) % 2**plan.stage == 0} <= kept
    assert not kept & {150, 151, 152}
    later = choose([(step,) for step in range(1, 401)], 40, (), plan)
    assert later.stage > plan.stage
    assert {step for step in range(1, 191) if later.keeps(step)} <= kept


@pytest.mark.parametrize("room", [4, 7])
def test_there_is_always_a_plan_and_it_frees_something(room: int) -> None:
    for n in (9, 50):
        plan = choose([(step,) for step in range(n)], room, ((0, n),), Plan(-1, ()))
        kept = [step for step in range(n) if plan.keeps(step)]
        assert len(kept) < n
        assert len(kept) <= room
        assert kept[-1] == n - 1


def test_a_plan_is_what_was_written(tmp_path: Path) -> None:
    assert read_plan(tmp_path) is None
    plan = Plan(90, ((1, 8), (16, 16)), 3, ((40, 44),), stopped=True)
    write_plan(tmp_path, plan)
    assert read_plan(tmp_path) == plan
    assert spans_of([5, 1, 2, 3, 9]) == ((1, 3), (5, 5), (9, 9))
    (tmp_path / layout.THINNING_NAME).write_text("{}")
    with pytest.raises(DoctorError, match=layout.THINNING_NAME):
        read_plan(tmp_path)


def spike(step: int) -> dict[str, Any]:
    """Columns with a defect at steps 12 and 13: log-probabilities above 0."""
    given = columns(step)
    return {**given, "logprob": np.abs(given["logprob"])} if step in {12, 13} else given


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_steps_with_findings_keep_their_tokens_and_the_verdict_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thinning, "_WAIT_UNTIL", 1e9)
    monkeypatch.setattr(gently.shutil, "which", lambda _: None)  # at low priority a busy machine would not get to it
    folder, step, end = tmp_path / "run", 0, time.monotonic() + 250
    with Recorder(folder, quota=30 * STEP_BYTES) as recorder:
        while not (folder / layout.THINNING_NAME).exists() and time.monotonic() < end:
            step += 1
            recorder.log_batch(step=step, **spike(step))
            recorder.flush()
            time.sleep(3 if step > 30 else 0)
        recorder.log_batch(step=step + 1, **spike(step + 1))
    plan = read_plan(folder)
    assert plan is not None
    assert (12, 13) in plan.findings
    whole = {part.step for part in open_run(folder).batches(["logprob"]) if part.n_tokens}
    assert {12, 13} <= whole
    assert len(whole) < step
    found = {(item.code, item.evidence[0].first_step) for item in check(open_run(folder)).findings}
    assert ("RLD001", 12) in found


def test_a_check_that_fails_is_said_once_and_the_subset_alone_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(check_process.sys, "executable", shutil.which("false"))
    monkeypatch.setattr(thinning, "_WAIT_UNTIL", 1e9)
    with caplog.at_level(logging.WARNING, "rl_doctor"), Recorder(tmp_path / "run", quota=20 * STEP_BYTES) as recorder:
        record(recorder, range(1, 81))
    told = [record.getMessage() for record in caplog.records if "could not look for findings" in record.getMessage()]
    assert len(told) == 1
    assert 4 < len(whole_steps(tmp_path / "run")) < 40


def test_a_check_that_takes_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    sleeper = tmp_path / "sleeper"
    sleeper.write_text("#!/bin/sh\nexec sleep 100\n")
    sleeper.chmod(0o755)
    monkeypatch.setattr(check_process.sys, "executable", str(sleeper))
    asked = FindingsCheck(told.append)
    asked.start(tmp_path)
    assert asked.running
    assert asked.take() == ()
    monkeypatch.setattr(check_process.time, "monotonic", lambda: 1e12)
    assert not asked.running
    assert asked.take() == ()
    assert len(told) == 1


def test_errors_come_before_warnings_among_the_steps_with_findings() -> None:
    def finding(severity: str, first: int | None, last: int | None) -> dict[str, Any]:
        return {"findings": [{"severity": severity, "evidence": [{"first_step": first, "last_step": last}]}]}

    results = [finding("warning", 3, 4), finding("info", 1, 2), finding("error", 9, 9), finding("error", None, None)]
    assert spans_of_findings({"results": results}) == ((9, 9), (3, 4))


@pytest.mark.usefixtures("unchecked")
def test_without_room_for_a_few_steps_the_tokens_of_new_ones_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    with caplog.at_level(logging.WARNING, "rl_doctor"), Recorder(folder, quota=4 * STEP_BYTES) as recorder:
        record(recorder, range(1, 41))
    kept = whole_steps(folder)
    assert 1 in kept
    assert max(kept) < 20
    assert claim(folder)["tokenless_steps"] > 20
    assert claim(folder)["tokenless_steps"] + claim(folder)["thinned_steps"] + len(kept) == 40
    assert caplog.text.count("the tokens of new steps are left out from now on") == 1
    with Recorder(folder, quota=100 * STEP_BYTES) as recorder:  # a larger quota, and they are kept again
        record(recorder, range(41, 43))
    assert {41, 42} <= whole_steps(folder)


Usage = namedtuple("Usage", ["total", "used", "free"])  # noqa: PYI024 - as shutil has it


def test_a_disk_that_others_fill_keeps_room_and_tokens_come_back_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    free = [10 << 30]
    monkeypatch.setattr(thinning.shutil, "disk_usage", lambda _: Usage(100 << 30, 0, free[0]))
    with caplog.at_level(logging.WARNING, "rl_doctor"), Recorder(tmp_path / "run") as recorder:
        for step, left in enumerate((10, 10, 0.5, 0.5, 1.5, 1.5, 3, 3), 1):
            free[0] = int(left * 2**30)
            recorder.log_batch(step=step, **columns(step))
            recorder.flush()
    assert whole_steps(tmp_path / "run") == {1, 2, 3, 8}  # a part is written before the disk is looked at
    assert caplog.text.count("free on the disk") == 1
    assert claim(tmp_path / "run")["tokenless_steps"] == 4


def test_a_share_is_of_the_free_space_and_of_what_the_run_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    begin = thinning.Thinner.begin

    def spy(self: thinning.Thinner, writer: Any) -> None:
        begin(self, writer)
        seen.append(self._quota)

    monkeypatch.setattr(thinning.shutil, "disk_usage", lambda _: Usage(10**9, 0, 10**8))
    monkeypatch.setattr(thinning.Thinner, "begin", spy)
    with Recorder(tmp_path / "run") as recorder:
        record(recorder, range(1, 5))
    with Recorder(tmp_path / "run", quota=0.5) as recorder:
        taken = sizes(tmp_path / "run").total
        record(recorder, range(5, 7))
    assert seen[0] == pytest.approx(10**7, rel=1e-3)
    assert seen[1] == pytest.approx((10**8 + taken) / 2, rel=1e-3)


@pytest.mark.usefixtures("unchecked")
def test_a_resumed_run_goes_on_thinning_and_finishes_what_was_begun(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with Recorder(folder, quota=None) as recorder:
        record(recorder, range(1, 21))
    write_plan(folder, Plan(16, ((1, 4), (8, 8)), 2))
    left = folder / "tokens-s1-r0-1-v1.parquet"
    left.write_bytes(b"what a kill left")
    with Recorder(folder, quota=1 << 40) as recorder:
        record(recorder, range(21, 25))
    assert whole_steps(folder) == {1, 2, 3, 4, 8, *range(17, 25)}
    assert not left.exists()
    assert claim(folder, session=2)["thinned_steps"] == 11


@pytest.mark.usefixtures("unchecked")
def test_steps_that_are_recorded_again_keep_their_tokens(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with Recorder(folder, quota=None) as recorder:
        record(recorder, range(1, 21))
    write_plan(folder, Plan(16, ((1, 4), (8, 8)), 2))
    with Recorder(folder, quota=1 << 40) as recorder:
        record(recorder, range(7, 19))
    with Recorder(folder, quota=1 << 40) as recorder:
        record(recorder, range(21, 25))
    assert whole_steps(folder) == {1, 2, 3, 4, *range(7, 25)}
    assert read_plan(folder) == Plan(6, ((1, 4),), 2)


@pytest.mark.parametrize("quota", [0, -1, "a lot", True])
def test_a_quota_that_is_none_ends_the_recording_and_not_the_training(
    tmp_path: Path, quota: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with Recorder(tmp_path / "run", quota=quota) as recorder:
        record(recorder, range(1, 3))
    assert "quota is a number of bytes" in caplog.text


@pytest.mark.usefixtures("unchecked")
def test_thinning_that_fails_is_said_once_and_rows_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> Iterator[None]:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(thinning, "thin_part", refuse)
    folder = tmp_path / "run"
    with caplog.at_level(logging.WARNING, "rl_doctor"), Recorder(folder, quota=20 * STEP_BYTES) as recorder:
        record(recorder, range(1, 61))
    assert caplog.text.count("cannot save space (OSError: [Errno 28] No space left on device)") == 1
    assert len(read(folder)) == 60
    assert sizes(folder).total < 35 * STEP_BYTES
    assert claim(folder)["tokenless_steps"] > 20


def test_the_guide_says_what_the_code_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    guide = (Path(__file__).parents[3] / "docs" / "guide" / "saving-space.md").read_text()
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.WARNING, "rl_doctor"):
        for snippet in (part.split("```")[0] for part in guide.split("```python\n")[1:]):
            for line in snippet.splitlines():
                names: dict[str, Any] = {"Recorder": Recorder}
                exec(line, names)  # noqa: S102 - the guide's own lines
                if "recorder" in names:
                    record(names["recorder"], range(1, 3))
                    names["recorder"].close()
    assert all("no column 'group'" in record.getMessage() for record in caplog.records)
    assert [open_run(path).info.sampling for path in sorted(tmp_path.joinpath("runs").iterdir())] == [0.25, None, None, None]
    members = {field.name for field in fields(Plan)}
    assert {f"`{name}`" for name in members} <= set(guide.split())
