"""A process killed at any moment loses nothing that a flush had acknowledged, and leaves a run that reads and goes on."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from rl_doctor import Recorder, Run, check, open_run
from rl_doctor.errors import DoctorError
from tests.integration.recording import MICRO_BATCHES, POINTS, ROWS, WIDTH, log_step, record, values

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL"),
]

FILES = ("tokens-", "contexts-", "sequences-", "metrics-", "writer-", "run.json")
RANDOM_KILLS = 24


def killed(
    folder: Path, *, kill: tuple[str, str, int] | None = None, flushes: int = 0, seconds: float = 0.0, first: int = 1
) -> int:
    """Record in a process that is killed: at a point of a write, or some time after so many flushes; the last flushed step."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tests.integration.recording"])
    ours, theirs = processes.Pipe(duplex=False)
    process = processes.Process(target=record, args=(str(folder), theirs, first, kill))
    process.start()
    theirs.close()
    said = [first - 1]
    try:
        while len(said) < flushes + 2 or kill is not None:
            said.append(ours.recv())
        process.join(seconds)
        process.kill()
        while True:
            said.append(ours.recv())
    except EOFError:
        process.join()
    assert process.exitcode == -signal.SIGKILL
    return said[-1]


def rows_of(run: Run) -> dict[int, set[str]]:
    """Uids by step; every value is checked to be the one that was logged."""
    found: dict[int, set[str]] = {}
    for batch in run.batches(["logprob", "uid", "microbatch", "padded_width"]):
        expected = np.concatenate([values(batch.step, micro)[0] for micro in batch.columns["microbatch"]])
        np.testing.assert_array_equal(batch.columns["logprob"], expected)
        assert (batch.columns["padded_width"] == WIDTH).all()
        uids = batch.columns["uid"].tolist()
        assert len(uids) == len(set(uids))
        assert not found.setdefault(batch.step, set()) & set(uids)
        found[batch.step].update(uids)
    return found


def whole(step: int) -> set[str]:
    return {f"{step}-{micro}-{row}" for micro in range(MICRO_BATCHES) for row in range(ROWS)}


def assert_survived(folder: Path, flushed: int) -> None:
    """What was flushed is there, nothing torn is taken for whole, and what is left over is named."""
    run = open_run(folder)
    found = rows_of(run)
    for step, uids in found.items():
        assert uids == whole(step) or step in run.facts.incomplete_steps
    assert set(range(1, flushed + 1)) <= {step for step in found if step not in run.facts.incomplete_steps}
    assert max(found, default=0) - flushed <= 1, "at most the step in work is there beyond"
    logged, losses = run.metrics().series("loss")
    assert set(range(1, flushed + 1)) <= set(logged.tolist())
    np.testing.assert_array_equal(losses, logged)
    assert run.info.status == "running"
    names = {path.name for path in folder.iterdir()}
    left = {name for name in names if name.endswith(".tmp")}
    left |= {name for name in names if name.startswith(("tokens-", "contexts-"))} - {
        name.replace("sequences-", table) for name in names if name.startswith("sequences-") for table in ("tokens-", "contexts-")
    }
    for name in left:
        assert any(note.startswith(name) for note in run.facts.notes), name
    assert run.facts.skipped_parts == ()
    assert not [finding for finding in check(run).findings if finding.code in {"RLD003", "RLD004", "RLD005"}]


def assert_goes_on(folder: Path, flushed: int) -> None:
    """The training resumes from the last flushed step in the same folder, and the run is whole."""
    with Recorder(folder, info={"trainer": "custom"}) as recorder:
        for step in range(flushed + 1, flushed + 4):
            log_step(recorder, step)
        assert recorder.flush()
    run = open_run(folder)
    assert rows_of(run) == {step: whole(step) for step in range(1, flushed + 4)}
    assert (run.info.status, run.facts.incomplete_steps, run.facts.unsorted_steps, run.facts.repeated_rows) == (
        "complete", (), 0, 0,
    )  # fmt: skip
    assert len(run.info.sessions) >= 1
    assert run.metrics().series("loss")[0].tolist() == list(range(1, flushed + 4))


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_within_a_write(tmp_path: Path, point: str) -> None:
    for file in FILES:
        for nth in (1, 2) if file in {"writer-", "run.json"} else (1, 3):
            folder = tmp_path / f"{file}{nth}"
            first = 1
            if file in {"writer-", "run.json"} and nth == 2:
                # The second of these in a folder: at the opening of a session that resumes.
                with Recorder(folder, info={"trainer": "custom"}) as recorder:
                    log_step(recorder, 1)
                    log_step(recorder, 2)
                first, kill = 3, (point, file, 1)
            else:
                kill = (point, file, nth)
            flushed = killed(folder, kill=kill, first=first)
            assert bool(list(folder.glob(f"{file}*.tmp"))) == (point in {"torn", "written", "synced"})
            if not list(folder.glob("*-*.parquet")):
                assert flushed == 0
                with pytest.raises(DoctorError, match=r"no rows recorded|not a run folder"):
                    open_run(folder)
            elif first == 1:
                assert_survived(folder, flushed)
            assert_goes_on(folder, flushed)


def test_a_kill_at_any_time(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(RANDOM_KILLS):
        folder = tmp_path / str(number)
        flushed = killed(folder, flushes=number % 4, seconds=float(rng.uniform(0, 0.04)))
        assert flushed >= number % 4
        if flushed:
            assert_survived(folder, flushed)
        assert_goes_on(folder, flushed)
