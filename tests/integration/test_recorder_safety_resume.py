"""Trainings that resume, go back, try again, change their size or share a folder: each step counts once, and that is said."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_doctor import Recorder, Run, check, open_run
from rl_doctor.report import text
from rl_doctor.store import layout
from rl_doctor.store.pack import pack

pytestmark = pytest.mark.timeout(300)

DATA_FAULTS = {"RLD003", "RLD004", "RLD005", "RLD020"}


def log_step(recorder: Recorder, step: int, mark: float = 0.0, micro_batches: int = 2, rank: int = 0) -> None:
    """A step of which the mark tells the attempt."""
    for microbatch in range(micro_batches):
        log_micro_batch(recorder, step, mark, microbatch, rank)
    recorder.log_metrics(step, {"loss": step + mark})


def log_micro_batch(recorder: Recorder, step: int, mark: float, microbatch: int, rank: int = 0) -> None:
    rng = np.random.default_rng(step)
    logprob = -1 - rng.random((4, 6), np.float32)
    recorder.log_batch(
        step=step, microbatch=microbatch, rank=rank, response_mask=np.ones((4, 6), bool), response_length=np.full(4, 6),
        logprob=logprob, old_logprob=logprob, advantage=np.repeat([[-1.0], [1.0]], 2, 0), reward=np.array([0.0, 1, 0, 1]) + mark,
        group=[f"{step}-{rank}-{microbatch}-{row // 2}" for row in range(4)],
        uid=[f"{step}-{rank}-{microbatch}-{row}" for row in range(4)],
    )  # fmt: skip


def marks(run: Run) -> dict[int, list[float]]:
    """The mark of every row, by step."""
    found: dict[int, list[float]] = {}
    for batch in run.batches(["reward"]):
        found.setdefault(batch.step, []).extend((batch.columns["reward"] - [0, 1, 0, 1] * (batch.n_sequences // 4)).tolist())
    return found


def assert_no_data_fault(folder: Path) -> None:
    findings = [finding for finding in check(open_run(folder)).findings if finding.code in DATA_FAULTS]
    assert not findings, findings


def notes(folder: Path, word: str) -> list[str]:
    return [note for note in check(open_run(folder)).run.notes if word in note]


def test_a_resume_replaces_what_it_repeats(tmp_path: Path) -> None:
    for steps, mark in ((range(1, 9), 0.0), (range(6, 12), 10.0)):
        with Recorder(tmp_path / "run") as recorder:
            for step in steps:
                log_step(recorder, step, mark)
    run = open_run(tmp_path / "run")
    assert marks(run) == {step: [0.0 if step < 6 else 10.0] * 8 for step in range(1, 12)}
    assert run.metrics().series("loss")[1].tolist() == [step + (0 if step < 6 else 10) for step in range(1, 12)]
    assert run.facts.incomplete_steps == ()
    (note,) = notes(tmp_path / "run", "replaced")
    assert "steps 6 to 8 of session 1" in note
    assert_no_data_fault(tmp_path / "run")


def test_a_resume_that_stops_before_it_has_caught_up(tmp_path: Path) -> None:
    for steps, mark in ((range(1, 9), 0.0), (range(4, 6), 10.0)):
        with Recorder(tmp_path / "run") as recorder:
            for step in steps:
                log_step(recorder, step, mark)
    assert marks(open_run(tmp_path / "run")) == {step: [10.0 if step in (4, 5) else 0.0] * 8 for step in range(1, 9)}
    (note,) = notes(tmp_path / "run", "from before")
    assert "steps 6 to 8 of session 1" in note
    assert "step 4" in note


@pytest.mark.parametrize("flush", [True, False])
def test_going_back_within_a_process(tmp_path: Path, caplog: pytest.LogCaptureFixture, flush: bool) -> None:
    with Recorder(tmp_path / "run") as recorder:
        for steps, mark in ((range(1, 10), 0.0), (range(3, 8), 10.0), (range(2, 4), 20.0)):
            for step in steps:
                log_step(recorder, step, mark)
                assert not flush or recorder.flush()
    expected = {step: [20.0 if step in (2, 3) else 10.0 if 4 <= step <= 7 else 0.0] * 8 for step in range(1, 10)}
    if not flush:
        # Step 9 had begun and not ended when the training went back, and so had 7: no later attempt has reached them again.
        del expected[9]
        expected[7] = [0.0] * 8
    run = open_run(tmp_path / "run")
    assert marks(run) == expected
    assert (run.facts.incomplete_steps, run.facts.unsorted_steps, run.facts.repeated_rows) == ((7, 9) if flush else (), 0, 0)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "step 3 after step 9" in line
    (note,) = notes(tmp_path / "run", "went back in session 1")
    assert "steps 2 to 7" in note or "steps 2 to 6" in note
    assert not [finding for finding in check(run).findings if finding.code in DATA_FAULTS - {"RLD004"}]
    pack(run, tmp_path / "run.parquet")
    assert marks(open_run(tmp_path / "run.parquet")) == expected


def test_a_step_in_work_again_is_not_complete(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run")
    for step in range(1, 6):
        log_step(recorder, step)
        recorder.end_step(step)
    log_micro_batch(recorder, 3, 10.0, 0)
    assert recorder.flush()
    run = open_run(tmp_path / "run")
    assert run.facts.incomplete_steps == (3,)
    assert marks(run)[3] == [10.0] * 4
    recorder.close()


@pytest.mark.parametrize("flush", [True, False])
def test_a_step_that_is_tried_again_counts_once(tmp_path: Path, flush: bool) -> None:
    """A loop that catches an error in the middle of a step and repeats it with smaller micro-batches."""
    with Recorder(tmp_path / "run") as recorder:
        for step in range(1, 6):
            try:
                log_micro_batch(recorder, step, 0.0, 0)
                assert not flush or recorder.flush()
                if step == 3:
                    raise MemoryError("out of memory")  # noqa: TRY301
                log_micro_batch(recorder, step, 0.0, 1)
            except MemoryError:
                recorder.retry_step(step)
                for microbatch in range(3):
                    log_micro_batch(recorder, step, 10.0, microbatch)
    run = open_run(tmp_path / "run")
    assert marks(run) == {step: [10.0] * 12 if step == 3 else [0.0] * 8 for step in range(1, 6)}
    assert run.facts.incomplete_steps == ()
    assert_no_data_fault(tmp_path / "run")


def test_rows_of_a_failed_attempt_that_nobody_took_back_are_reported(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run") as recorder:
        for step in range(1, 6):
            log_micro_batch(recorder, step, 0.0, 0)
            if step == 3:
                log_micro_batch(recorder, step, 0.0, 0)
    (finding,) = [finding for finding in check(open_run(tmp_path / "run")).findings if finding.code == "RLD003"]
    assert "4 of 24 rows repeat" in finding.message


def ranks(folder: Path, number: int, steps: range, mark: float, *, unfinished: int | None = None) -> None:
    """Record with so many ranks; of which one may stop after the first step."""
    info = {"trainer": "custom", "world_size": number, "writing_ranks": list(range(number))}
    first = Recorder(folder, info=info)
    recorders = [first, *(Recorder(folder, rank=rank, session=first.session) for rank in range(1, number))]
    for step in steps:
        for rank, recorder in enumerate(recorders):
            if rank != unfinished or step == steps[0]:
                log_step(recorder, step, mark, rank=rank)
    for recorder in recorders:
        recorder.close()


def test_another_world_size_after_each_resume(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    ranks(folder, 2, range(1, 6), 0.0)
    ranks(folder, 1, range(5, 8), 10.0)
    ranks(folder, 3, range(7, 10), 20.0)
    run = open_run(folder)
    sizes = {step: 2 if step < 5 else 1 if step < 7 else 3 for step in range(1, 10)}
    assert {step: len(rows) for step, rows in marks(run).items()} == {step: 8 * size for step, size in sizes.items()}
    assert run.facts.incomplete_steps == ()
    told = notes(folder, "world size")
    assert len(told) == 2
    assert "1 in session 2, 2 in session 1" in told[0]
    assert "3 in session 3, 1 in session 2" in told[1]
    assert_no_data_fault(folder)


@pytest.mark.parametrize("session", [0, 1, 2])
def test_a_rank_that_stopped_makes_the_steps_of_its_session_incomplete(tmp_path: Path, session: int) -> None:
    folder = tmp_path / "run"
    for number, (size, steps) in enumerate(((2, range(1, 4)), (3, range(4, 7)), (2, range(7, 10)))):
        ranks(folder, size, steps, 0.0, unfinished=1 if number == session else None)
    assert open_run(folder).facts.incomplete_steps == tuple(range(3 * session + 2, 3 * session + 4))


def _record(folder: str, trainer: str, go: Any, done: Any) -> None:
    recorder = Recorder(folder, info={"trainer": trainer})
    assert recorder.session
    done.wait()  # both have begun
    for step in range(1, 6):
        log_step(recorder, step, 0.0 if trainer == "trl" else 10.0)
        assert recorder.flush()
        time.sleep(0.01)
    go.wait(60)
    recorder.close()


def test_two_processes_that_record_into_one_folder(tmp_path: Path) -> None:
    processes = multiprocessing.get_context("forkserver")
    go, done = processes.Event(), processes.Barrier(2)
    both = [processes.Process(target=_record, args=(str(tmp_path / "run"), name, go, done)) for name in ("trl", "verl")]
    for process in both:
        process.start()
    go.set()
    for process in both:
        process.join(120)
        assert process.exitcode == 0
    run = open_run(tmp_path / "run")
    assert max(int(item["session"]) for item in run.info.sessions) == 2
    claims = {number: json.loads((tmp_path / "run" / layout.writer_name(number, 0)).read_text()) for number in (1, 2)}
    assert all(claim["status"] == "complete" for claim in claims.values())
    found = marks(run)
    last = 0.0 if run.info.trainer == "trl" else 10.0
    assert found == {step: [last] * 8 for step in range(1, 6)}, "run.json and the rows are of the same process"
    assert len(notes(tmp_path / "run", "session 1 went on after session 2 had begun")) == 1
    assert_no_data_fault(tmp_path / "run")


class TestPaths:
    @pytest.mark.parametrize(
        "name", ["with space", "Übung/größe/試", "a'b\"c", "-dash", "%s %d {x}", "x" * 255, "/".join(["y" * 200] * 10)]
    )
    def test_names(self, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
        with Recorder(tmp_path / name) as recorder:
            log_step(recorder, 1)
        assert not caplog.records
        assert marks(open_run(tmp_path / name)) == {1: [0.0] * 8}

    @pytest.mark.skipif(os.name != "posix", reason="bytes in names")
    def test_a_name_that_is_no_text(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe"))
        with Recorder(folder) as recorder:
            log_step(recorder, 1)
            recorder.flush()
            recorder.log_batch(step=2, logprob=[[1.0]], reward=[1, 2])
        told = [record.getMessage() for record in caplog.records]
        assert any("step 2 is left out" in line for line in told)
        assert all(line.isprintable() for line in told)
        folder = folder.rename(tmp_path / "text")
        assert marks(open_run(folder)) == {1: [0.0] * 8}
        assert json.loads((folder / "run.json").read_text())["status"] == "complete"

    @pytest.mark.parametrize("name", ["x" * 256, "/".join(["z" * 250] * 17)])
    def test_names_that_are_too_long(self, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
        with Recorder(tmp_path / name) as recorder:
            log_step(recorder, 1)
        (record,) = caplog.records
        assert "too long" in record.getMessage()

    def test_the_working_directory_changes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "elsewhere" / "run").mkdir(parents=True)
        monkeypatch.chdir(tmp_path)
        recorder = Recorder("run")
        monkeypatch.chdir(tmp_path / "elsewhere")
        log_step(recorder, 1)
        assert recorder.flush()
        log_step(recorder, 2)
        recorder.close()
        assert list((tmp_path / "elsewhere" / "run").iterdir()) == []
        assert sorted(marks(open_run(tmp_path / "run"))) == [1, 2]

    def test_the_working_directory_is_gone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "gone").mkdir()
        monkeypatch.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()
        with Recorder("run") as recorder:
            log_step(recorder, 1)
        assert len(caplog.records) == 1
        monkeypatch.chdir(tmp_path)

    def test_a_linked_folder(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "real")
        with Recorder(tmp_path / "link") as recorder:
            log_step(recorder, 1)
        assert marks(open_run(tmp_path / "real")) == marks(open_run(tmp_path / "link")) == {1: [0.0] * 8}
        assert (tmp_path / "link").is_symlink()

    @pytest.mark.skipif(os.name != "posix", reason="modes")
    @pytest.mark.parametrize("mask", [0o077, 0o022, 0o002])
    def test_the_umask_is_kept(self, tmp_path: Path, mask: int) -> None:
        before = os.umask(mask)
        try:
            with Recorder(tmp_path / "run") as recorder:
                log_step(recorder, 1)
        finally:
            os.umask(before)
        assert {path.stat().st_mode & 0o777 for path in (tmp_path / "run").iterdir()} == {0o666 & ~mask}
        assert (tmp_path / "run").stat().st_mode & 0o777 == 0o777 & ~mask


def test_a_clock_that_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(np.arange(2e9, 0, -1e6).tolist())
    for steps, mark in ((range(1, 4), 0.0), (range(3, 6), 10.0)):
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda: next(clock))
            with Recorder(tmp_path / "run") as recorder:
                for step in steps:
                    log_step(recorder, step, mark)
    run = open_run(tmp_path / "run")
    assert marks(run) == {step: [0.0 if step < 3 else 10.0] * 8 for step in range(1, 6)}
    assert run.metrics().series("loss")[1].tolist() == [1, 2, 13, 14, 15]
    assert not notes(tmp_path / "run", "had begun")


def test_the_names_of_a_new_folder_are_durable_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[str] = set()
    sync = os.fsync

    def watch(descriptor: int) -> None:
        synced.add(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        sync(descriptor)

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("open files cannot be named")
    monkeypatch.setattr(os, "fsync", watch)
    with Recorder(tmp_path / "a" / "b" / "run") as recorder:
        log_step(recorder, 1)
    assert {str(tmp_path / name) for name in (".", "a", "a/b", "a/b/run")} <= synced


def test_a_step_that_restarts_at_every_epoch_is_told_with_what_to_do(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Recorder(tmp_path / "run") as recorder:
        for epoch in range(3):
            for step in range(1, 6):
                log_step(recorder, step, 10.0 * epoch)
    assert marks(open_run(tmp_path / "run")) == {step: [20.0] * 8 for step in range(1, 6)}
    assert len(caplog.records) == 1
    report = check(open_run(tmp_path / "run"))
    first = report.run.notes[0]
    assert re.search(r"steps 1 to [45] \([45] steps\) were recorded again", first)  # the last one may not have ended
    assert "let step count over the whole training" in first
    assert "let step count over the whole training" in " ".join(text.render([report], width=120).split())
