"""Starts the app: a server on this machine alone, and the lines that say how to reach it."""

from __future__ import annotations

import contextlib
import getpass
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Final

from rl_doctor.app import decoding
from rl_doctor.app.look import OPTIONS
from rl_doctor.errors import InputError, UsageError, shown
from rl_doctor.live.listing import Listing

LOCAL: Final = "127.0.0.1"
_LOOPBACK: Final = frozenset({LOCAL, "localhost", "::1"})
_USUAL: Final = range(8511, 8531)
"""Ports tried first, so that a tunnel that is there goes on working when the app is started again."""
_NEEDED: Final = ("streamlit", "plotly", "pandas")
_WHOLE: Final = frozenset({".json", ".parquet"})
"""Endings of files that are written at once: one in which nothing can be judged will not get more."""
_START_SECONDS: Final = 120.0
_END_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Place:
    """Where the app is served.

    Attributes:
        address: that is listened at.
        port: a free one.
        base_path: what stands in the address before the app's own, without slashes around it.
    """

    address: str
    port: int
    base_path: str = ""

    @property
    def url(self) -> str:
        """The address to open, on this machine or at the other end of a tunnel."""
        host = {"0.0.0.0": LOCAL, "::": LOCAL, "::1": "[::1]"}.get(self.address, self.address)  # noqa: S104 - it is compared
        return f"http://{host}:{self.port}/{self.base_path}"

    @property
    def tunnel(self) -> str:
        """The command that makes the address work on another machine."""
        return f"ssh -L {self.port}:{LOCAL}:{self.port} {getpass.getuser()}@{socket.gethostname()}"


def serve(runs: Sequence[Path], place: Place, tell: Callable[[str], None], tokenizer: Path | None = None) -> None:
    """Serve the app until it is interrupted.

    Args:
        runs: runs and folders of runs.
        place: where; ``place_for`` finds one.
        tell: is given the lines for the user as soon as the app answers.
        tokenizer: a local tokenizer, which gives the text of token ids.

    Raises:
        UsageError: the app's packages are not installed, the tokenizer cannot be loaded, or the server does not start.
        InputError: a run is not there.
    """
    for path in runs:
        if not path.exists() and "#" not in path.name and shown(path) == str(path):
            raise InputError(f"{path}: no such file or folder")
    _require_packages()
    found = Listing(runs)
    _refuse_unreadable(found, tell)
    if tokenizer is not None:
        decoding.load(tokenizer)
    with _server(_command(runs, place), tokenizer) as server:
        _wait(server, place)
        lines = [f"rl-doctor {_named(found)} at {place.url}"]
        if place.address in _LOOPBACK:
            lines += [f"from another machine: {place.tunnel}", "    and open the same address there"]
        tell("\n".join([*lines, "Ctrl-C ends it.", ""]))
        if server.wait() != 0:
            raise UsageError(f"the app's server ended with exit code {server.returncode}")


def place_for(address: str, port: int | None, base_path: str, *, open_to_others: bool) -> Place:
    """The place asked for, with a port that is free.

    Raises:
        UsageError: others could reach the address and that was not asked for; or the port is taken.
    """
    if address not in _LOOPBACK and not open_to_others:
        raise UsageError(
            f"--address {address}: whoever reaches it can read the run's prompts and responses, for there is no login; "
            "leave it out and use the ssh tunnel that is printed, or add --open-to-others"
        )
    for each in [port] if port is not None else [*_USUAL, 0]:
        if (free := _free(address, each)) is not None:
            return Place(address, free, base_path.strip("/"))
    raise UsageError(f"--port {port}: in use at {address}; leave it out, and a free one is found")


def _free(address: str, port: int) -> int | None:
    """The port, if it is free; for 0 one that is."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        if os.name == "posix":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return None
        return int(probe.getsockname()[1])


def _require_packages() -> None:
    if lacking := [name for name in _NEEDED if not _there(name)]:
        raise _lacking(lacking)


def _there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _lacking(names: Sequence[str]) -> UsageError:
    return UsageError(f"rl-doctor app: {', '.join(names)} not installed; run: pip install 'rl-doctor[app]'")


def _require_imports() -> None:
    """Say which package is there and cannot be imported, after the server did not start."""
    lacking = []
    for name in _NEEDED:
        try:
            import_module(name)
        except ImportError:
            lacking.append(name)
    if lacking:
        raise _lacking(lacking)


def _command(runs: Sequence[Path], place: Place) -> list[str]:
    options = {
        **OPTIONS, "server.address": place.address, "server.port": str(place.port), "server.baseUrlPath": place.base_path,
    }  # fmt: skip
    flags = [f"--{name}={value}" for name, value in options.items()]
    script = str(Path(__file__).with_name("script") / "start.py")
    return [sys.executable, "-m", "streamlit", "run", script, *flags, "--", *(str(path) for path in runs)]


@contextlib.contextmanager
def _server(command: Sequence[str], tokenizer: Path | None) -> Iterator[subprocess.Popen[bytes]]:
    """The server as a process that ends when this one is interrupted or told to end."""
    told = {} if tokenizer is None else {decoding.VARIABLE: str(tokenizer.resolve())}
    server = subprocess.Popen(  # noqa: S603 - our own words
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=os.environ | told
    )
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield server
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
        if server.poll() is None:
            server.terminate()
            try:
                server.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _wait(server: subprocess.Popen[bytes], place: Place) -> None:
    """Wait until the server answers."""
    health = f"{place.url.rstrip('/')}/_stcore/health"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end:
        if server.poll() is not None:
            _require_imports()
            raise UsageError(f"the app's server did not start (exit code {server.returncode})")
        with contextlib.suppress(OSError), opener.open(health, timeout=2.0) as answer:
            if answer.status == 200:
                return
        time.sleep(_PAUSE_SECONDS)
    raise UsageError(f"the app's server does not answer at {health} after {_START_SECONDS:.0f} s")


def _refuse_unreadable(found: Listing, tell: Callable[[str], None]) -> None:
    """Say which files cannot be read.

    Raises:
        InputError: none of the paths can be, nor become a run.
    """
    failed = list(found.unreadable())
    broken = [error for path, error in failed if isinstance(error, InputError) or path.suffix in _WHOLE]
    if broken and len(broken) == len(found.paths):
        tell("".join(f"{error}\n" for error in broken[:-1]))
        raise InputError(str(broken[-1]))
    tell("".join(f"not shown now: {error}\n" for _, error in failed))


def _named(found: Listing) -> str:
    """What is shown, or waited for, and how much of the folders is not."""
    runs = found.runs()
    left = f" ({found.left_out} other entries are neither recordings nor logs)" if found.left_out else ""
    if not runs:
        return f"waits for a run in {', '.join(map(shown, found.folders))}{left}"
    if len(found.paths) > 1:
        return f"shows {len(runs)} runs{left}"
    if list(runs.values()) == list(found.paths):
        return f"shows {shown(found.paths[0])}"
    return f"shows {len(runs)} {'run' if len(runs) == 1 else 'runs'} of {shown(found.paths[0])}{left}"
