"""Keeping states while recording: by another process, one at a time, that nothing waits for and nothing fails for."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rl_doctor import Recorder
from rl_doctor.analyzer.kept.places import FOLDER
from rl_doctor.collectors import states
from rl_doctor.collectors.states import StatesProcess
from rl_doctor.live.keep import keep
from rl_doctor.store.writer import RunWriter
from tests.property.kept_runs import INFO, check, told, write


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "_FIRST_SECONDS", 0.0)


def script(tmp_path: Path, text: str) -> tuple[str, ...]:
    path = tmp_path / "keeps.py"
    path.write_text(f"import pathlib, sys, time\nfolder = pathlib.Path(sys.argv[1])\n{text}\n")
    return (sys.executable, str(path))


def until(done: Callable[[], object], seconds: float = 240.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_one_runs_at_a_time_and_then_waits(tmp_path: Path) -> None:
    process = StatesProcess(tmp_path, print, script(tmp_path, "(folder / f'{time.time_ns()}.ran').touch(); time.sleep(1)"))
    process.after_part((1,))
    until(lambda: list(tmp_path.glob("*.ran")))
    process.after_part((2,))
    assert len(list(tmp_path.glob("*.ran"))) == 1
    until(lambda: not process._running())
    process.after_part((3,))
    assert not process._running()
    assert len(list(tmp_path.glob("*.ran"))) == 1


def test_what_still_runs_at_the_end_is_ended(tmp_path: Path) -> None:
    process = StatesProcess(tmp_path, print, script(tmp_path, "time.sleep(600)"))
    process.after_part((1,))
    start = time.monotonic()
    process.stop()
    assert time.monotonic() - start < 30
    process.stop()


def test_a_process_that_cannot_start_is_told_once_and_recording_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("shutil.which", lambda _: None)
    process = StatesProcess(tmp_path, said.append, (str(tmp_path / "nothing"),))
    for step in range(3):
        process.after_part((step,))
    assert len(said) == 1
    assert "states are not kept" in said[0]


def test_what_it_keeps_is_what_a_check_and_the_app_use(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write(RunWriter(folder, INFO), [[1, 2], [3, 4]])
    keep(folder)
    kept = {path.name for path in (folder / FOLDER).iterdir()}
    for everything in (False, True):
        assert told(check(folder, keep=True, everything=everything)) == told(check(folder, keep=False, everything=everything))
    assert {path.name for path in (folder / FOLDER).iterdir()} == kept
    keep(tmp_path / "nothing")


def test_a_recorder_has_states_kept(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with Recorder(folder, info={"trainer": "custom", "algorithm": "grpo"}, states=True) as recorder:
        for step in (1, 2, 3):
            values = np.full((2, 3), -0.5, np.float32)
            recorder.log_batch(
                step=step, logprob=values, old_logprob=values, response_mask=np.ones((2, 3), bool), reward=[0.0, 1.0]
            )
            recorder.end_step(step)
            recorder.flush()
        until((folder / FOLDER / "facts.states").exists)
    assert recorder.guard.reason is None
    found = check(folder, keep=True)
    assert told(found) == told(check(folder, keep=False))
