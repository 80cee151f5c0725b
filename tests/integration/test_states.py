"""States from the command line: used, left aside, damaged, tampered with, written by several at once, by one that is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rl_doctor.analyzer.kept.cupboard import SUFFIX
from rl_doctor.analyzer.kept.places import FOLDER
from rl_doctor.analyzer.kept.sheet import Sheet, read, write
from rl_doctor.store.writer import RunWriter
from tests.property import kept_runs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    kept_runs.write(RunWriter(path, kept_runs.INFO), [[1, 2], [3, 4], [5, 6]])
    return path


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rl_doctor", "check", str(folder), "--output-format", "json", *options]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "100"}
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, dict[str, Any], str]:
    """Exit code, report without its time, standard error."""
    output, said = process.communicate(timeout=240)
    document = json.loads(output)
    document.pop("created_at", None)
    return process.returncode, document, said


def check(folder: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    return ended(start(folder, *options))


def states(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / FOLDER).glob(f"*{SUFFIX}")}


def test_without_the_cache_nothing_is_read_or_written(folder: Path) -> None:
    code, report, said = check(folder, "--no-cache")
    assert not said
    assert not (folder / FOLDER).exists()
    assert check(folder)[:2] == (code, report)
    kept = states(folder)
    for name in kept:
        (folder / FOLDER / name).write_bytes(b"nonsense")
    assert check(folder, "--no-cache") == (code, report, "")
    assert all(data == b"nonsense" for data in states(folder).values())


def test_damaged_states_are_told_and_computed_anew(folder: Path) -> None:
    code, report, _ = check(folder)
    kept = states(folder)
    for name, data in kept.items():
        (folder / FOLDER / name).write_bytes(data[: len(data) // 2] + b"?" + data[len(data) // 2 + 1 :])
    again, other, said = check(folder)
    assert (again, other) == (code, report)
    assert "damaged" in said
    assert "Traceback" not in said
    assert states(folder).keys() == kept.keys()
    assert check(folder) == (code, report, "")


def test_states_that_are_not_those_of_the_run_fail_verification(folder: Path) -> None:
    check(folder)
    assert check(folder, "--verify")[2] == ""
    path = folder / FOLDER / f"run0{SUFFIX}"
    sheet = read(path)
    assert sheet is not None
    values = sheet.document["points"]["reward.mean"][1]
    sheet.arrays[values] = sheet.arrays[values] + 1e-15
    write(path, Sheet(sheet.document, sheet.arrays))
    code, report, said = check(folder, "--verify")
    assert code == 2
    assert "kept states differ from the run" in said
    assert "at step 1" in said
    assert report["failure"]
    assert "Traceback" not in said


def test_verification_and_no_cache_contradict_each_other(folder: Path) -> None:
    process = start(folder, "--verify", "--no-cache")
    _, said = process.communicate(timeout=240)
    assert process.returncode == 2
    assert "give one of them" in said


def test_two_checks_at_once_leave_whole_states(folder: Path) -> None:
    _, report, _ = check(folder, "--no-cache")
    pair = [start(folder) for _ in range(3)]
    assert all(ended(process)[1] == report for process in pair)
    assert check(folder) == check(folder, "--verify")
    assert not list((folder / FOLDER).glob("*.tmp"))


@pytest.mark.parametrize("seconds", [0.3, 0.6, 0.9, 1.2])
def test_a_check_that_is_killed_harms_no_later_one(folder: Path, seconds: float) -> None:
    process = start(folder)
    time.sleep(seconds)
    process.kill()
    process.communicate()
    expected = check(folder, "--no-cache")
    assert check(folder) == expected
    assert check(folder, "--verify") == expected


def test_a_write_that_stops_half_way_is_not_taken_for_states(folder: Path) -> None:
    _, report, _ = check(folder)
    for name, data in states(folder).items():
        (folder / FOLDER / name).write_bytes(data[:100])
    assert check(folder)[1] == report
