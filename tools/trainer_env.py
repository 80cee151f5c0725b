"""Run the tests of real trainers, each in an environment of its own that is built if need be, as many at once as there are cores.

Environments lie outside the checkout, below ``$XDG_CACHE_HOME/rl-doctor/trainers`` (by default ``~/.cache``), in folders named
after the trainer and a hash of all that they are built from. Checkouts share them, so they hold packages of others only: the
code under test comes from the checkout. An environment is whole once its marker is there. Who builds, uses or removes one holds
a lock that ends with the process and those that it started: a build that was killed is begun anew, and two never mix.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS: Mapping[str, str] = {"trl": "trl", "verl": "verl", "openrlhf": "openrlhf", "loops": "trl"}
"""Folder of ``tests/trainers`` -> trainer whose ``requirements.txt`` its tests need; those that take longest first."""

RECIPE = 1
"""To be raised when the way an environment is built changes."""

KEEP = 2
"""Environments of a trainer that stay: the one in use, and that of the branch before."""

BUILD_SETTINGS: Mapping[str, str] = {"DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"}
"""deepspeed compiles no kernels, and asks no GPU which it could."""

MARKER = "complete"
SUFFIX = ".lock"


def cache() -> Path:
    """The folder of all environments."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if Path(home).is_absolute() else Path.home() / ".cache") / "rl-doctor" / "trainers"


def requirements(trainer: str) -> Path:
    """The file that pins a trainer's environment."""
    return ROOT / "tests" / "trainers" / trainer / "requirements.txt"


def folder(trainer: str) -> Path:
    """Where the environment of a trainer lies: another folder for other requirements, another Python or another machine."""
    pins = [line for line in requirements(trainer).read_text("utf-8").splitlines() if line and not line.startswith("#")]
    built_from = [str(RECIPE), *sorted(BUILD_SETTINGS.items()), sys.version, platform.machine(), sys.base_prefix, *pins]
    return cache() / f"{trainer}-{hashlib.sha256(repr(built_from).encode()).hexdigest()[:16]}"


@contextmanager
def locked(home: Path, kind: int) -> Iterator[int]:
    """Hold the lock of an environment.

    Args:
        home: its folder.
        kind: ``fcntl.LOCK_SH`` to use it, ``LOCK_EX`` to build or remove it, each with ``LOCK_NB`` not to wait.

    Yields:
        The lock's file descriptor, for the processes that go on with the work if this one is killed.

    Raises:
        BlockingIOError: another holds it, and waiting was not asked for.
    """
    home.parent.mkdir(parents=True, exist_ok=True)
    path = home.with_name(home.name + SUFFIX)
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(lock, kind)
            # Who removed the environment while this waited has removed the lock's file too.
            if is_file_of(lock, path):
                yield lock
                return
        finally:
            os.close(lock)


def is_file_of(descriptor: int, path: Path) -> bool:
    """Whether what is open under the descriptor is the file that has the path now."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def build(trainer: str, home: Path, lock: int) -> None:
    """Build an environment from nothing.

    Args:
        trainer: its name.
        home: its folder; what a build that was killed left there is removed.
        lock: descriptor of the lock that is held.
    """
    start = time.monotonic()
    say(f"building the environment of {trainer} in {home}")
    shutil.rmtree(home, ignore_errors=True)
    pins = str(requirements(trainer))
    install = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    steps = [
        [sys.executable, "-m", "venv", str(home)],
        [*install, "--constraint", pins, "pip", "setuptools", "wheel"],
        # With what it needs, which differs from build to build; everything else is named in the file and needs no resolver.
        [*install, "--constraint", pins, "torch"],
        [*install, "--no-deps", "--no-build-isolation", "--requirement", pins],
    ]
    for step in steps:
        subprocess.run(step, env={**clean_environment(), **BUILD_SETTINGS}, pass_fds=(lock,), check=True)
    (home / MARKER).write_text(f"{trainer}\n", "utf-8")
    say(f"built the environment of {trainer} in {time.monotonic() - start:.0f} s")


def prune(trainer: str, used: Path) -> None:
    """Remove the environments of a trainer that were used longest ago, but none that is in use."""
    others = [path for path in cache().glob(f"{trainer}-*") if path.is_dir() and path != used]
    for home in sorted(others, key=last_used, reverse=True)[KEEP - 1 :]:
        remove(home)


def last_used(home: Path) -> float:
    """When the environment was used last, in seconds; one that is not whole was never used."""
    try:
        return (home / MARKER).stat().st_mtime
    except FileNotFoundError:
        return 0.0


def remove(home: Path) -> bool:
    """Remove an environment; whether that could be done, since nobody uses it."""
    try:
        with locked(home, fcntl.LOCK_EX | fcntl.LOCK_NB):
            (home / MARKER).unlink(missing_ok=True)
            shutil.rmtree(home, ignore_errors=True)
            home.with_name(home.name + SUFFIX).unlink(missing_ok=True)
    except BlockingIOError:
        return False
    return True


@contextmanager
def environment(trainer: str) -> Iterator[tuple[Path, int]]:
    """The Python of a trainer's environment, which is whole and stays so inside the block, and the lock that sees to it."""
    home = folder(trainer)
    while True:
        with locked(home, fcntl.LOCK_SH) as lock:
            if (home / MARKER).exists():
                (home / MARKER).touch()
                prune(trainer, home)
                yield home / "bin" / "python", lock
                return
        with locked(home, fcntl.LOCK_EX) as lock:
            if not (home / MARKER).exists():
                build(trainer, home, lock)


def clean_environment() -> dict[str, str]:
    """The caller's environment without what points to another Python."""
    return {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}}


def run(name: str, arguments: Sequence[str], *, alone: bool) -> int:
    """Run pytest over a folder of ``tests/trainers`` with its environment; its exit code.

    Beside others it computes with one thread, and what it prints comes in one piece, once it has ended.
    """
    with environment(FOLDERS[name]) as (python, lock):
        settings = {} if alone else {"OMP_NUM_THREADS": "1"}
        settings |= clean_environment()
        settings |= {"PYTHONPATH": str(ROOT), "PATH": f"{python.parent}{os.pathsep}{settings.get('PATH', os.defpath)}"}
        command = [str(python), "-m", "pytest", f"tests/trainers/{name}", "-m", "trainer", *arguments]
        say(f"tests/trainers/{name}, with {python}")
        start, caught = time.monotonic(), None if alone else subprocess.PIPE
        ended = subprocess.run(
            command, cwd=ROOT, env=settings, pass_fds=(lock,), stdout=caught, stderr=caught and subprocess.STDOUT, check=False
        )
    said = (ended.stdout or b"").decode(errors="replace")
    say(f"tests/trainers/{name} took {time.monotonic() - start:.0f} s\n{said}")
    return ended.returncode


def say(line: str) -> None:
    """Print a line, at once."""
    print(f"trainer_env: {line}", flush=True)


def main() -> None:
    """Run tests, or remove the environments."""
    parser = argparse.ArgumentParser(description="Run the tests of real trainers in environments of their own, built if need be.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    test = verbs.add_parser("test", help="run folders of tests/trainers, as many at once as there are cores")
    test.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(FOLDERS)}; all by default")
    test.add_argument("--pytest", default=[], action="append", metavar="ARG", help="a further argument of pytest; repeatable")
    verbs.add_parser("clean", help="remove all environments that nobody uses")
    chosen = parser.parse_args()
    if chosen.verb == "clean":
        left = [home for home in sorted(cache().glob("*-*")) if home.is_dir() and not remove(home)]
        raise SystemExit("\n".join(f"{home} is in use and stays" for home in left) or None)
    names = chosen.names or list(FOLDERS)
    if unknown := [name for name in names if name not in FOLDERS]:
        parser.error(f"no such folder: {', '.join(unknown)}; there are {', '.join(FOLDERS)}")
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        started = {name: pool.submit(run, name, chosen.pytest, alone=len(names) == 1) for name in names}
    failed = []
    for name, suite in started.items():
        try:
            failed += [name] if suite.result() else []
        except subprocess.CalledProcessError as error:
            raise SystemExit(f"trainer_env: {FOLDERS[name]}: {' '.join(map(str, error.cmd))} failed") from error
    raise SystemExit(f"trainer_env: failed: {', '.join(failed)}" if failed else None)


if __name__ == "__main__":
    main()
