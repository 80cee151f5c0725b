"""Whatever happens to the disk, the training goes on, one line says so, and what was flushed is there."""

from __future__ import annotations

import errno
import json
import logging
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_doctor import Recorder, check, open_run
from rl_doctor.collectors import recorder as recorder_module
from rl_doctor.errors import DoctorError
from rl_doctor.store import layout

pytestmark = [pytest.mark.timeout(300), pytest.mark.skipif(os.name != "posix", reason="made of what POSIX systems have")]

NOBODY = 65534


def log_step(recorder: Recorder, step: int, rows: int = 4, width: int = 16) -> None:
    rng = np.random.default_rng(step)
    recorder.log_batch(
        step=step, response_mask=np.ones((rows, width), bool), response_length=np.full(rows, width),
        logprob=-rng.random((rows, width), np.float32), uid=[f"{step}-{row}" for row in range(rows)],
    )  # fmt: skip
    recorder.log_metrics(step, {"loss": float(step)})
    recorder.end_step(step)


def read_steps(folder: Path, rows: int = 4, width: int = 16) -> list[int]:
    """Steps of a run, each checked to be whole and as it was logged."""
    found = []
    for batch in open_run(folder).batches(["logprob"]):
        assert batch.n_sequences == rows
        expected = -np.random.default_rng(batch.step).random((rows, width), np.float32)
        np.testing.assert_array_equal(batch.columns["logprob"], expected.ravel())
        found.append(batch.step)
    return found


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "rl_doctor" and record.levelno >= logging.WARNING]


def assert_detached(folder: Path, *words: str) -> None:
    """The folder says that recording stopped early, and why."""
    assert json.loads((folder / "run.json").read_text())["status"] == "detached"
    notes = [note for note in check(open_run(folder)).run.notes if "stopped early" in note]
    assert len(notes) == 1
    for word in words:
        assert word in notes[0]


@contextmanager
def mounted(folder: Path, size: str) -> Iterator[Path]:
    """A small file system in memory."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=False, capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"no file system can be mounted: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


class TestFullDisk:
    def test_the_training_goes_on_and_stays_unrecorded(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with mounted(tmp_path / "disk", "1m") as disk:
            filler = disk / "filler"
            filler.write_bytes(bytes(400 << 10))
            recorder = Recorder(disk / "run", quota=None)
            flushed = 0
            for step in range(1, 40):
                log_step(recorder, step, width=4096)
                flushed = step if recorder.flush() else flushed
            assert 0 < flushed < 39
            recorder._thread.join(30)  # it saves what it can before it ends
            filler.unlink()
            before = sorted(path.name for path in (disk / "run").iterdir())
            log_step(recorder, 40)
            assert not recorder.flush()
            recorder.close()
            assert sorted(path.name for path in (disk / "run").iterdir()) == before, "it does not start again by itself"
            (line,) = said(caplog)
            assert "No space left" in line
            assert "training goes on" in line
            found = read_steps(disk / "run", width=4096)
            assert found == list(range(1, found[-1] + 1))
            assert flushed <= found[-1] <= flushed + 1
            assert_detached(disk / "run", "No space left")
            assert not list((disk / "run").glob("*.tmp"))
            with Recorder(disk / "run", quota=None) as again:
                log_step(again, found[-1] + 1, width=4096)
            assert read_steps(disk / "run", width=4096) == list(range(1, found[-1] + 2)), "a new session records again"

    @pytest.mark.parametrize("room", [0, 100, 700, 2_000, 6_000, 9_000, 14_000, 20_000, 33_000])
    def test_at_any_byte(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, room: int
    ) -> None:
        """The disk is full from some byte on, and nothing more can be written, not even why."""
        left = room
        durably = layout.write_durably

        def until_full(path: Path, write: Callable[[Any], object]) -> None:
            def some(file: Any) -> None:
                nonlocal left
                with tempfile.TemporaryFile() as whole:
                    write(whole)
                    whole.seek(0)
                    data = whole.read()
                file.write(data[:left])
                left -= len(data)
                if left < 0:
                    left = 0
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            durably(path, some)

        monkeypatch.setattr(layout, "write_durably", until_full)
        recorder = Recorder(tmp_path / "run", quota=None)
        flushed = 0
        for step in range(1, 9):
            log_step(recorder, step)
            flushed = step if recorder.flush() else flushed
        recorder.close()
        assert flushed < 8
        (line,) = said(caplog)
        assert "No space left" in line
        monkeypatch.undo()
        assert not list((tmp_path / "run").glob("*.tmp"))
        if not flushed:
            with pytest.raises(DoctorError):
                read_steps(tmp_path / "run")
            return
        run = open_run(tmp_path / "run")
        assert read_steps(tmp_path / "run") == list(range(1, flushed + 1))
        assert run.info.status == "running"
        with Recorder(tmp_path / "run") as again:
            log_step(again, flushed + 1)
        assert read_steps(tmp_path / "run") == list(range(1, flushed + 2))

    def test_a_file_may_not_grow(self, tmp_path: Path) -> None:
        assert in_child(_limited, tmp_path / "run") == 0
        assert read_steps(tmp_path / "run") == [1, 2]
        assert_detached(tmp_path / "run", "File too large")


def _limited(folder: Path) -> None:
    recorder = Recorder(folder, quota=None)
    log_step(recorder, 1)
    log_step(recorder, 2)
    assert recorder.flush()
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
    log_step(recorder, 3, width=20_000)
    assert not recorder.flush()
    log_step(recorder, 4)
    recorder.close()
    assert recorder.guard.reason is not None


def in_child(target: Callable[..., None], *args: Any, seconds: float = 60) -> int | None:
    """Exit status of a function in a process of its own; None if it did not end."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tests.integration.recording"])
    process = processes.Process(target=target, args=args)
    process.start()
    process.join(seconds)
    status = process.exitcode
    process.kill()
    process.join()
    return status


class TestPermissions:
    @pytest.fixture
    def shared(self) -> Iterator[Path]:
        """A folder that another user can reach."""
        folder = Path(tempfile.mkdtemp())
        folder.chmod(0o777)
        yield folder
        for path in folder.rglob("*"):
            if path.is_dir():
                path.chmod(0o700)
        shutil.rmtree(folder)

    @pytest.mark.parametrize("mode", [0o555, 0o000, 0o444, 0o333])
    def test_a_folder_without_permissions(self, shared: Path, mode: int) -> None:
        (shared / "run").mkdir(mode=0o777)
        (shared / "run").chmod(mode)
        assert in_child(_as_nobody, shared / "run", None) == 0
        (shared / "run").chmod(0o755)
        assert list((shared / "run").iterdir()) == []

    def test_permissions_go_in_the_middle(self, shared: Path) -> None:
        assert in_child(_as_nobody, shared / "run", 0o555) == 0
        (shared / "run").chmod(0o755)
        assert read_steps(shared / "run") == [1]

    def test_a_run_of_another_user(self, shared: Path) -> None:
        with Recorder(shared / "run") as recorder:
            log_step(recorder, 1)
        (shared / "run").chmod(0o755)
        before = {path.name: path.read_bytes() for path in (shared / "run").iterdir()}
        if os.getuid() == 0:
            assert in_child(_as_nobody, shared / "run", None) == 0
        assert {path.name: path.read_bytes() for path in (shared / "run").iterdir()} == before

    def test_a_file_system_turns_read_only(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with mounted(tmp_path / "disk", "1m") as disk:
            recorder = Recorder(disk / "run", quota=None)
            log_step(recorder, 1)
            assert recorder.flush()
            subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
            log_step(recorder, 2)
            assert not recorder.flush()
            recorder.close()
            (line,) = said(caplog)
            assert "Read-only file system" in line
            assert read_steps(disk / "run") == [1]


def _as_nobody(folder: Path, later: int | None) -> None:
    """Record as a user without rights; ``later`` is the folder's mode from the second step on."""
    with tempfile.TemporaryDirectory() as usual, Recorder(usual, quota=None) as recorder:
        log_step(recorder, 1)  # imports what recording needs: that user may not be able to read the interpreter's own modules
    if os.getuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("rl_doctor").addHandler(handler)
    recorder = Recorder(folder, quota=None)
    if later is not None:
        log_step(recorder, 1)
        assert recorder.flush()
        folder.chmod(later)
    for step in (2, 3):
        log_step(recorder, step)
        assert not recorder.flush()
    recorder.close()
    (line,) = lines
    assert "ermission" in line
    assert str(folder) in line


class TestFolderGoes:
    def test_removed(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        recorder = Recorder(tmp_path / "run")
        log_step(recorder, 1)
        assert recorder.flush()
        shutil.rmtree(tmp_path / "run")
        log_step(recorder, 2)
        assert not recorder.flush()
        recorder.close()
        (line,) = said(caplog)
        assert "removed" in line
        assert not (tmp_path / "run").exists(), "nobody wants it back"

    @pytest.mark.parametrize("flush", [True, False])
    def test_replaced_by_another_run(self, tmp_path: Path, caplog: pytest.LogCaptureFixture, flush: bool) -> None:
        folder = tmp_path / "run"
        first = Recorder(folder, info={"trainer": "custom"})
        log_step(first, 1)
        assert first.flush()
        shutil.rmtree(folder)
        with Recorder(folder, info={"trainer": "verl"}) as second:
            for step in (1, 2):
                log_step(second, step)
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        log_step(first, 7)
        assert not (flush and first.flush())
        first.close()
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
        (line,) = said(caplog)
        assert "replaced" in line

    @pytest.mark.parametrize("kind", ["file", "fifo", "dangling"])
    def test_what_is_no_folder(self, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str) -> None:
        path = tmp_path / "run"
        if kind == "file":
            path.write_text("mine")
        elif kind == "fifo":
            os.mkfifo(path)
        else:
            path.symlink_to(tmp_path / "file" / "nowhere")
            (tmp_path / "file").write_text("mine")
        started = time.monotonic()
        with Recorder(path) as recorder:
            log_step(recorder, 1)
        assert time.monotonic() - started < 20
        (line,) = said(caplog)
        assert str(path) in line
        assert recorder.session is None


class TestSlowDisk:
    def test_the_trainer_does_not_wait_and_whole_steps_are_dropped(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        sync, trainer = os.fsync, threading.get_ident()
        naps = []

        def slow(descriptor: int) -> None:
            assert threading.get_ident() != trainer, "the trainer's thread touched the disk"
            naps.append(descriptor)
            time.sleep(0.5)
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", slow)
        started = time.monotonic()
        recorder = Recorder(tmp_path / "run", queue_bytes=40_000)
        waits = [time.monotonic() - started]
        for step in range(1, 61):
            time.sleep(0.05)
            started = time.monotonic()
            for _ in range(2):
                log_step_part(recorder, step)
            recorder.log_metrics(step, {"loss": float(step)})
            recorder.end_step(step)
            waits.append(time.monotonic() - started)
        monkeypatch.setattr(os, "fsync", sync)
        recorder.close()
        assert len(naps) > 4, "the disk was slow while steps were made"
        assert sum(waits) < 0.5 * len(naps) / 2
        first, total = said(caplog)
        assert "queue of 40000 bytes is full" in first
        assert f"{recorder.dropped_steps} step(s)" in total
        run = open_run(tmp_path / "run")
        steps = {batch.step: batch.n_sequences for batch in run.batches(["logprob"])}
        assert set(steps.values()) == {8}, "a step is there whole or not at all"
        assert run.facts.dropped_steps == recorder.dropped_steps == 60 - len(steps) > 0
        assert any(finding.code == "RLD004" for finding in check(run).findings)

    def test_a_disk_that_hangs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        hang, sync = threading.Event(), os.fsync

        def never(descriptor: int) -> None:
            hang.wait(60)
            sync(descriptor)

        recorder = Recorder(tmp_path / "run", queue_bytes=200_000)
        log_step(recorder, 1)
        assert recorder.flush()
        monkeypatch.setattr(os, "fsync", never)
        monkeypatch.setattr(recorder_module, "_CLOSE_SECONDS", 1.0)
        monkeypatch.setattr(recorder_module, "_GRACE_SECONDS", 1.0)
        started = time.monotonic()
        for step in range(2, 200):
            log_step(recorder, step)
        assert not recorder.flush(timeout=0.2)
        recorder.close()
        assert time.monotonic() - started < 40
        (line,) = said(caplog)
        assert "was not done" in line
        assert read_steps(tmp_path / "run") == [1]
        hang.set()
        recorder._thread.join(30)
        assert_detached(tmp_path / "run", "was not done")

    def test_a_disk_that_hangs_at_the_opening(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(recorder_module, "_OPEN_SECONDS", 0.5)
        monkeypatch.setattr(recorder_module, "_CLOSE_SECONDS", 0.5)
        monkeypatch.setattr(recorder_module, "_GRACE_SECONDS", 0.5)
        (tmp_path / "run").mkdir()
        os.mkfifo(tmp_path / "run" / "run.json")  # reading it never ends
        started = time.monotonic()
        recorder = Recorder(tmp_path / "run")
        log_step(recorder, 1)
        assert time.monotonic() - started < 20, "the hang has no end"
        assert recorder.session is None
        log_step(recorder, 2)
        recorder.close()
        assert time.monotonic() - started < 40
        (line,) = said(caplog)
        assert "could not be opened in" in line
        with (tmp_path / "run" / "run.json").open("wb"):
            pass  # lets the thread go
        recorder._thread.join(30)


def log_step_part(recorder: Recorder, step: int) -> None:
    recorder.log_batch(
        step=step, response_mask=np.ones((4, 16), bool), response_length=np.full(4, 16), logprob=np.full((4, 16), -1.0 * step)
    )


SCRIPT = """
import os, sys, time, threading
import numpy as np
from rl_doctor import Recorder
from rl_doctor.collectors import recorder as module
from rl_doctor.store import layout

def batch(step, rows=4, width=16):
    return dict(step=step, response_mask=np.ones((rows, width), bool), response_length=np.full(rows, width),
                logprob=np.random.default_rng(step).random((rows, width), np.float32) * -1)

module._CLOSE_SECONDS = 0.2
module._GRACE_SECONDS = float(sys.argv[2])
recorder = Recorder(sys.argv[1])
recorder.log_batch(**batch(1))
assert recorder.flush()
"""


@pytest.mark.parametrize(
    ("end", "grace"),
    [
        ("os.fsync = lambda descriptor: time.sleep(300)\nfor step in range(2, 9): recorder.log_batch(**batch(step))", 1.0),
        # The writer is at work, in and out of Arrow, while the interpreter goes.
        (
            "for step in range(2, 400): recorder.log_batch(**batch(step, 16, 512)); recorder.log_metrics(step, {'loss': 1.0})",
            60.0,
        ),
    ],
    ids=["hanging", "busy"],
)
def test_the_interpreter_ends_in_time(tmp_path: Path, end: str, grace: float) -> None:
    for number in range(2):
        folder = tmp_path / str(number)
        command = [sys.executable, "-c", f"{SCRIPT}\n{end}\nprint('end', flush=True)", str(folder), str(grace)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "end\n"
            started = time.monotonic()
            _, errors = process.communicate(timeout=100)
            waited = time.monotonic() - started
        assert process.returncode == 0, errors
        assert waited < 60
        assert errors.count("\n") <= 1, errors
        assert 1 in {batch.step for batch in open_run(folder).batches(["logprob"])}
