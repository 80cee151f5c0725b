"""``rl-doctor watch`` on runs that grow under the test, stop, are killed and go on."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from rich.cells import cell_len

from rl_doctor import Recorder
from tests.integration.growing import INFO, log_step
from tests.unit.live.server import Received, received

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform == "win32", reason="signals and terminals of POSIX"),
]

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "rl_doctor" / "demo"
SECRET = "T0ps3cretHook"  # noqa: S105 - of nobody
PATIENCE = 60.0
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Watching:
    """A watch in another process, in a pipe or on a terminal of 80 columns; what it prints is collected."""

    def __init__(
        self, folder: Path, *arguments: object, terminal: bool = False, variables: Mapping[str, str] | None = None
    ) -> None:
        environment = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "COLUMNS", "TERM"}}
        environment |= {"XDG_CACHE_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "rl_doctor", "watch", *map(str, arguments), "--interval", "0.2"]
        mine, theirs = pty.openpty() if terminal else os.pipe()
        if terminal:
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
            environment["TERM"] = "xterm"
        self.process = subprocess.Popen(
            command, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL, cwd=folder, env=environment | dict(variables or {})
        )
        os.close(theirs)
        self._parts: list[bytes] = []
        self._reader = threading.Thread(target=self._read, args=(mine,))
        self._reader.start()

    def _read(self, descriptor: int) -> None:
        while True:
            try:
                part = os.read(descriptor, 65536)
            except OSError:  # the terminal is gone
                break
            if not part:
                break
            self._parts.append(part)
        os.close(descriptor)

    @property
    def text(self) -> str:
        """All that it has printed."""
        return b"".join(self._parts).decode()

    def wait_for(self, text: str) -> None:
        """Wait until it has printed a text."""
        until(lambda: text in self.text, lambda: f"{text!r} in {self.text}")

    def end(self, number: int | None = None) -> int:
        """Its exit code, after a signal if one is given."""
        if number is not None:
            self.process.send_signal(number)
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.wait()
            self._reader.join()


def until(holds: Callable[[], bool], why: Callable[[], str]) -> None:
    """Wait until something holds."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, why()
        time.sleep(0.05)


@pytest.fixture
def server() -> Iterator[Received]:
    with received() as found:
        yield found


@pytest.fixture
def secret(server: Received) -> dict[str, str]:
    pytest.importorskip("apprise")
    return {"RL_DOCTOR_NOTIFY": server.url(SECRET)}


def test_a_run_that_grows(tmp_path: Path, server: Received, secret: dict[str, str]) -> None:
    watching = Watching(tmp_path, "run", variables=secret)
    watching.wait_for("waiting: run is not there yet")
    with Recorder(tmp_path / "run", info=INFO) as recorder:
        for step in range(1, 5):
            log_step(recorder, step)
        watching.wait_for("run · custom · grpo · running")
        assert server.got == []
        log_step(recorder, 5, fault=True)
        written = time.monotonic()
        watching.wait_for("ERROR The mask is as wide as the padded batch. (RLD010")
        assert time.monotonic() - written < 30
        until(lambda: len(server.got) == 1, lambda: watching.text)
        log_step(recorder, 6, fault=True)
        for step in range(7, 11):
            log_step(recorder, step)
        watching.wait_for("over: The mask is as wide as the padded batch. (RLD010; not since step 6)")
    assert watching.end() == 1
    assert "finished: complete; 1 error" in watching.text
    assert server.titles == ["ERROR in run: The mask is as wide as the padded batch."]
    assert "since step 5" in server.got[0]["message"]
    assert "check run" in server.got[0]["message"]
    assert server.paths == [f"/{SECRET}"]
    assert SECRET not in watching.text
    again = Watching(tmp_path, "run", variables=secret)
    assert again.end() == 1
    assert len(server.got) == 1, "a run that is watched again is not told again"


def test_a_run_that_is_killed_and_goes_on(tmp_path: Path, server: Received, secret: dict[str, str]) -> None:
    folder = tmp_path / "run"
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.growing", str(folder), "10000"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    while program.stdout.readline().strip() != "6":
        assert program.poll() is None
    program.send_signal(signal.SIGKILL)
    program.wait()
    program.stdout.close()
    hour_ago = time.time() - 3600
    for file in folder.iterdir():
        os.utime(file, (hour_ago, hour_ago))
    watching = Watching(tmp_path, "run", variables=secret)
    watching.wait_for("STALLED: nothing written for 60 min")
    kept = tmp_path / "cache" / "rl-doctor" / "watch"
    until(lambda: any('"quiet": 3' in file.read_text() for file in kept.glob("*.json")), lambda: watching.text)
    assert len(server.got) == 1
    assert watching.end(signal.SIGINT) == 130
    again = Watching(tmp_path, "run", variables=secret)
    again.wait_for("STALLED")
    with Recorder(folder, info=INFO) as recorder:
        for step in range(7, 10):
            log_step(recorder, step)
        again.wait_for("writes again, at step")
        until(lambda: len(server.got) == 2, lambda: again.text)
    assert again.end() == 0
    assert server.titles == ["run stopped writing 60 min ago", "run writes again"]


def test_fail_fast_ends_at_the_first_error_and_sends_before(tmp_path: Path, server: Received, secret: dict[str, str]) -> None:
    recorder = Recorder(tmp_path / "run", info=INFO)
    for step in range(1, 4):
        log_step(recorder, step)
    watching = Watching(tmp_path, "run", "--fail-fast", variables=secret)
    watching.wait_for("running")
    log_step(recorder, 4, fault=True)
    assert watching.end() == 1
    recorder.close()
    assert len(server.got) == 1


def test_fail_fast_is_for_errors_alone(tmp_path: Path) -> None:
    warned = Watching(tmp_path, DEMO / "reward-unit.parquet", "--fail-fast", "--select", "RLD427")
    assert warned.end() == 0
    assert "WARNING" in warned.text


def test_a_server_that_refuses_costs_a_line(tmp_path: Path, server: Received, secret: dict[str, str]) -> None:
    server.status = 500
    watching = Watching(tmp_path, DEMO / "temperature.parquet", "--notify", "json://127.0.0.1:1/other", variables=secret)
    assert watching.end() == 1
    assert "could not be sent to JSON (address 1) (no answer, or refused)" in watching.text
    assert "could not be sent to JSON (address 2) (HTTP 500)" in watching.text
    assert "finished: complete" in watching.text
    assert SECRET not in watching.text
    server.status = 200
    again = Watching(tmp_path, DEMO / "temperature.parquet", variables=secret)
    assert again.end() == 1
    assert len(server.got) == 1, "what could not be sent is sent by the next watch"


@pytest.mark.parametrize("url", [f"slack://{SECRET}", f"{SECRET}", f"nope://{SECRET}"])
def test_a_wrong_address_is_not_shown(tmp_path: Path, url: str) -> None:
    pytest.importorskip("apprise")
    watching = Watching(tmp_path, "run", "--notify", url)
    assert watching.end() == 2
    assert SECRET not in watching.text
    assert len(watching.text.splitlines()) == 1


def frames(text: str) -> list[str]:
    """What a terminal showed, redraw by redraw, without colours."""
    return [_CONTROL.sub("", frame) for frame in re.split(r"(?:\r?\x1b\[2K(?:\x1b\[1A)?)+", text)]


def test_on_a_terminal_the_table_is_redrawn_in_place(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run", info=INFO)
    log_step(recorder, 1)
    watching = Watching(tmp_path, "run", terminal=True)
    watching.wait_for("step 1 ")
    for step in range(2, 5):
        log_step(recorder, step, fault=True)
    watching.wait_for("RLD010")
    watching.wait_for("step 4 ")
    time.sleep(2.5)
    shown = watching.text
    assert watching.end(signal.SIGINT) == 130
    recorder.close()
    assert watching.text.rstrip().endswith("\x1b[?25h"), "the cursor is shown again"
    assert "\x1b[1;31m" in shown
    last = frames(shown)[-1]
    assert "run · custom · grpo · step 4" in last
    assert "✖ error" in last
    assert "going on" in last
    assert all(cell_len(line) <= 80 for frame in frames(shown) for line in frame.splitlines())
    assert all(frame.count("severity") <= 1 for frame in frames(shown))


def test_without_colour(tmp_path: Path) -> None:
    watching = Watching(tmp_path, DEMO / "temperature.parquet", terminal=True, variables={"NO_COLOR": "1"})
    assert watching.end() == 1
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", watching.text)
    assert "complete · 1 error" in _CONTROL.sub("", watching.text)


def test_a_dumb_terminal_gets_lines(tmp_path: Path) -> None:
    watching = Watching(tmp_path, DEMO / "healthy.parquet", terminal=True, variables={"TERM": "dumb"})
    assert watching.end() == 0
    assert "\x1b" not in watching.text
    assert "finished: complete; nothing found; exit 0" in watching.text


def test_terminated(tmp_path: Path) -> None:
    watching = Watching(tmp_path, "run", terminal=True)
    watching.wait_for("waiting")
    assert watching.end(signal.SIGTERM) == 143
    assert watching.text.rstrip().endswith("\x1b[?25h")


def test_in_chinese_and_where_the_reader_goes_away(tmp_path: Path) -> None:
    watching = Watching(tmp_path, DEMO / "stale-old-logprob.parquet", "--lang", "zh", variables={"PYTHONIOENCODING": "utf-8"})
    assert watching.end() == 1
    assert "1 个错误" in watching.text
    command = f"{sys.executable} -m rl_doctor watch {DEMO / 'healthy.parquet'} | head -1"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr == ""
