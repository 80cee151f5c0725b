"""Environments of trainers: built once, never half, never under somebody's feet. What is built here is one small file."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools import trainer_env

ROOT = Path(__file__).parents[2]

# A build that takes as long as it is told, in a process of its own, as pip is.
BUILDER = """
import subprocess, sys
from tools import trainer_env

def build(trainer, home, lock):
    home.mkdir()
    command = f'echo begun >> "$LOG"; sleep {sys.argv[2]}; touch {home}/python'
    subprocess.run(["sh", "-c", command], pass_fds=(lock,), check=True)
    (home / trainer_env.MARKER).touch()

trainer_env.build = build
with trainer_env.environment(sys.argv[1]):
    print("ready", flush=True)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    return trainer_env.cache()


def builder(seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", BUILDER, "trl", str(seconds)], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def wait_until_begun(tmp_path: Path) -> None:
    end = time.monotonic() + 60
    while not (tmp_path / "log").exists():
        assert time.monotonic() < end
        time.sleep(0.02)


def make(home: Path, *, used: float = 0.0) -> Path:
    home.mkdir(parents=True)
    (home / trainer_env.MARKER).touch()
    os.utime(home / trainer_env.MARKER, (used, used))
    return home


@pytest.mark.parametrize("trainer", sorted(set(trainer_env.FOLDERS.values())))
def test_everything_in_an_environment_is_pinned_and_none_of_it_is_ours(trainer: str) -> None:
    lines = [line for line in trainer_env.requirements(trainer).read_text("utf-8").splitlines() if not line.startswith("#")]
    assert all(line.count("==") == 1 and not line.startswith(("-", " ")) for line in lines), lines
    names = [line.partition("==")[0].lower().replace("_", "-") for line in lines]
    assert len(set(names)) == len(names)
    assert {"torch", "pip", "setuptools", "wheel", "pytest", "pytest-timeout", "hatchling", "numpy", "pyarrow"} <= set(names)
    assert "rl-doctor" not in names


def test_every_folder_of_trainer_tests_has_an_environment() -> None:
    assert {path.parent.name for path in (ROOT / "tests" / "trainers").glob("*/test_*.py")} <= set(trainer_env.FOLDERS)


def test_another_environment_for_other_requirements_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pins = tmp_path / "requirements.txt"
    monkeypatch.setattr(trainer_env, "requirements", lambda _trainer: pins)
    pins.write_text("# a\ntorch==1\n")
    first = trainer_env.folder("trl")
    pins.write_text("# another comment\n\ntorch==1\n")
    assert trainer_env.folder("trl") == first
    pins.write_text("torch==2\n")
    assert trainer_env.folder("trl") != first


def test_two_who_need_it_build_it_once(tmp_path: Path) -> None:
    both = [builder(0.3), builder(0.3)]
    assert [process.communicate(timeout=60)[0] for process in both] == ["ready\n", "ready\n"]
    assert (tmp_path / "log").read_text() == "begun\n"


def test_a_build_that_was_killed_is_begun_anew_after_what_it_started_has_ended(tmp_path: Path) -> None:
    home = trainer_env.folder("trl")
    killed = builder(2)
    wait_until_begun(tmp_path)
    killed.send_signal(signal.SIGKILL)
    killed.wait(60)
    assert not trainer_env.remove(home), "what pip is still writing is not removed"
    again = subprocess.run(
        [sys.executable, "-c", BUILDER.replace("home.mkdir()", "assert (home / 'python').exists()"), "trl", "0"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert again.stdout == "ready\n", again.stderr
    assert (tmp_path / "log").read_text() == "begun\nbegun\n"
    assert (home / trainer_env.MARKER).exists()
    killed.communicate(timeout=60)


def test_a_real_build_begins_from_nothing_and_a_failed_one_is_not_taken_for_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    home = trainer_env.folder("trl")
    home.mkdir(parents=True)
    (home / "left").touch()
    steps = []

    def fail_at_last(command: list[str], **_: object) -> None:
        steps.append(command)
        if "--requirement" in command:
            raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(subprocess, "run", fail_at_last)
    with pytest.raises(subprocess.CalledProcessError), trainer_env.environment("trl"):
        pass
    assert not (home / "left").exists()
    assert not (home / trainer_env.MARKER).exists()
    assert [command[-1] for command in steps[:3]] == [str(home), "wheel", "torch"]


def test_the_longest_unused_is_pruned_but_not_what_is_in_use_or_belongs_to_another(cache: Path) -> None:
    present = make(trainer_env.folder("trl"))
    oldest, middle, newest = (make(cache / f"trl-{used}", used=used) for used in (1, 2, 3))
    other, half = make(cache / "verl-1"), cache / "trl-half"
    half.mkdir()
    with trainer_env.locked(oldest, fcntl.LOCK_SH), trainer_env.environment("trl"):
        pass
    assert {path for path in cache.iterdir() if path.is_dir()} == {present, newest, oldest, other}
    assert not middle.exists()
    assert trainer_env.last_used(present) > 3


def test_clean_removes_everything_but_what_is_in_use(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = make(cache / "trl-1"), make(cache / "verl-1")
    monkeypatch.setattr(sys, "argv", ["trainer_env.py", "clean"])
    with trainer_env.locked(first, fcntl.LOCK_SH), pytest.raises(SystemExit, match="trl-1 is in use and stays"):
        trainer_env.main()
    assert first.exists()
    assert not second.exists()
    with pytest.raises(SystemExit) as ended:
        trainer_env.main()
    assert ended.value.code is None
    assert list(cache.iterdir()) == []
