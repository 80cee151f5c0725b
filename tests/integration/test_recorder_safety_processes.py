"""Forks, threads and every way of ending: only the process that records writes, and what was flushed survives its end."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from rl_doctor import Recorder, open_run
from tests.integration.test_recorder_safety import log_step, read_steps

pytestmark = [pytest.mark.timeout(300), pytest.mark.skipif(os.name != "posix", reason="made of what POSIX systems have")]

SCRIPT = """
import os, signal, sys, threading, time
import numpy as np
from rl_doctor import Recorder
from tests.integration.test_recorder_safety import log_step

# A shell that started the tests in the background may have had the signal ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
recorder = Recorder(sys.argv[1])
for step in (1, 2):
    log_step(recorder, step)
assert recorder.flush()
log_step(recorder, 3)
"""


def ended(folder: Path, end: str) -> tuple[int, str]:
    """Exit status and standard error of a script that records two flushed steps, a third one, and ends."""
    command = [sys.executable, "-c", f"{SCRIPT}\n{end}\n", str(folder)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("end", "code", "status", "steps"),
    [
        ("sys.exit(0)", 0, "complete", [1, 2, 3]),
        ("raise KeyboardInterrupt", -signal.SIGINT, "running", [1, 2, 3]),
        ("os.kill(os.getpid(), signal.SIGINT); time.sleep(60)", -signal.SIGINT, "running", [1, 2, 3]),
        ("with recorder: raise KeyboardInterrupt", -signal.SIGINT, "running", [1, 2, 3]),
        ("threading.Thread(target=lambda: 1 / 0).start()", 0, "complete", [1, 2, 3]),
        ("threading.Thread(target=log_step, args=(recorder, 4)).start()", 0, "complete", [1, 2, 3, 4]),
        # These leave no time: what was not flushed may be lost.
        ("os._exit(5)", 5, "running", [1, 2]),
        ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", -signal.SIGTERM, "running", [1, 2]),
        ("os.abort()", -signal.SIGABRT, "running", [1, 2]),
    ],
)
def test_ends(tmp_path: Path, end: str, code: int, status: str, steps: list[int]) -> None:
    returned, errors = ended(tmp_path / "run", end)
    assert returned == code
    assert "rl-doctor" not in errors
    found = read_steps(tmp_path / "run")
    assert found[: len(steps)] == steps
    assert open_run(tmp_path / "run").info.status == status


def test_an_interrupt_while_waiting_for_a_flush_gets_through(tmp_path: Path) -> None:
    end = """
from rl_doctor.collectors import recorder as module
module._CLOSE_SECONDS = module._GRACE_SECONDS = 0.5
os.fsync = lambda descriptor: time.sleep(300)
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
recorder.flush()
"""
    returned, errors = ended(tmp_path / "run", end)
    assert returned == -signal.SIGINT
    assert "KeyboardInterrupt" in errors
    assert read_steps(tmp_path / "run") == [1, 2]


def use(recorder: Recorder) -> None:
    """Everything that a recorder can be asked for; none of it may raise, wait or write elsewhere than where it records."""
    for step in (7, 8):
        log_step(recorder, step)
    recorder.retry_step(8)
    assert not recorder.recording
    assert not recorder.flush()
    assert recorder.session in {None, 1}
    with recorder:
        recorder.log_batch(nonsense=1)
    recorder.detach()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("ending", ["sys.exit(0)", "os._exit(0)", "raise SystemExit"])
def test_a_forked_process_that_ends_writes_nothing(tmp_path: Path, ending: str) -> None:
    end = f"""
from tests.integration.test_recorder_safety_processes import contents, use
import warnings
recorder.flush()
before = contents(recorder_folder := __import__("pathlib").Path(sys.argv[1]))
warnings.simplefilter("ignore")
child = os.fork()
if child == 0:
    use(recorder)
    {ending}
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert contents(recorder_folder) == before
log_step(recorder, 4)
"""
    returned, errors = ended(tmp_path / "run", end)
    assert returned == 0, errors
    assert errors.count("\n") == 1, "the child says once that it does not record"
    assert "records nothing; that one goes on" in errors
    assert read_steps(tmp_path / "run") == [1, 2, 3, 4]
    assert open_run(tmp_path / "run").info.status == "complete"


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_forks_at_any_moment_do_not_hang(tmp_path: Path) -> None:
    """The writer and the trainer hold their locks at some of these forks."""
    recorder = Recorder(tmp_path / "run", quota=None)
    log_step(recorder, 1)
    recorder.flush()
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            recorder.log_metrics(1, {"loss": 1.0})
            recorder.flush()

    thread = threading.Thread(target=busy)
    thread.start()
    children = []
    try:
        for _ in range(30):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    use(recorder)
                    status = 0
                finally:
                    os._exit(status)
            children.append(child)
            time.sleep(0.01)
    finally:
        stop.set()
        thread.join()
    end = time.monotonic() + 60
    states: dict[int, int] = {}
    while len(states) < len(children) and time.monotonic() < end:
        for child in set(children) - set(states):
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                states[child] = os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    for child in set(children) - set(states):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert states == dict.fromkeys(children, 0)
    recorder.close()
    assert read_steps(tmp_path / "run") == [1]
    assert open_run(tmp_path / "run").info.status == "complete"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_other_processes_do_not_record(tmp_path: Path, method: str) -> None:
    recorder = Recorder(tmp_path / "run")
    log_step(recorder, 1)
    recorder.flush()
    before = contents(tmp_path / "run")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        process = multiprocessing.get_context(method).Process(target=use, args=(recorder,))
        process.start()
        process.join(100)
    assert process.exitcode == 0
    assert contents(tmp_path / "run") == before
    log_step(recorder, 2)
    recorder.close()
    assert read_steps(tmp_path / "run") == [1, 2]


def test_a_copy_records_nothing(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run") as recorder:
        log_step(recorder, 1)
        copy = pickle.loads(pickle.dumps(recorder))  # noqa: S301
        use(copy)
        log_step(recorder, 2)
    assert read_steps(tmp_path / "run") == [1, 2]


def test_metrics_from_several_threads(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run") as recorder:

        def log(number: int) -> None:
            for step in range(1, 101):
                recorder.log_metrics(step, {f"metric{number}": float(step)})

        threads = [threading.Thread(target=log, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for step in range(1, 6):
            log_step(recorder, step)
        for thread in threads:
            thread.join()
    logged = open_run(tmp_path / "run").metrics()
    for number in range(4):
        assert logged.series(f"metric{number}")[1].tolist() == list(range(1, 101))
    assert read_steps(tmp_path / "run") == [1, 2, 3, 4, 5]


def test_the_reason_of_an_exception_in_a_block_is_not_replaced(tmp_path: Path) -> None:
    def fails() -> Any:
        with Recorder(tmp_path / "run") as recorder:
            log_step(recorder, 1)
            raise MemoryError("out of memory")

    with pytest.raises(MemoryError):
        fails()
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "running"
    assert read_steps(tmp_path / "run") == [1]
