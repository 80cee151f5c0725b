"""What a folder of runs is taken for, and what becomes of the list while it changes."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

import rl_doctor.demo
from rl_doctor.cli.judging import States, judge
from rl_doctor.live import listing
from rl_doctor.live.listing import Listing
from rl_doctor.rules.registry import rules

DEMO = Path(rl_doctor.demo.__file__).parent
HOUR = 3_600
LOG = '{"step": 1, "reward": 1.0}\n{"step": 2, "reward": 1.5}\n'


@pytest.fixture(autouse=True)
def _look_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_LEAST_SECONDS", 0.0)


def test_a_folder_lists_recordings_and_logs_and_counts_the_rest(tmp_path: Path) -> None:
    shutil.copy(DEMO / "healthy.parquet", tmp_path)
    shutil.copy(DEMO / "truncated.trainer_state.json", tmp_path)
    (tmp_path / "history.csv").write_text("step,reward\n1,0.5\n2,0.6\n")
    (tmp_path / "log.jsonl").write_text(LOG)
    (tmp_path / "notes.md").write_text("words\n")
    (tmp_path / "settings.json").write_text('{"lr": 1e-6}')
    (tmp_path / "waiting").mkdir()
    found = Listing([tmp_path])
    assert set(found.runs()) == {"healthy.parquet", "history.csv", "log.jsonl", "truncated.trainer_state.json"}
    assert found.left_out == 3


def test_what_appears_later_is_listed_and_what_goes_is_remembered(tmp_path: Path) -> None:
    found = Listing([tmp_path])
    assert not found.runs()
    assert found.folders == (tmp_path,)
    shutil.copy(DEMO / "healthy.parquet", tmp_path / "a.parquet")
    assert list(found.runs()) == ["a.parquet"]
    folder = tmp_path / "b"
    folder.mkdir()
    assert list(found.runs()) == ["a.parquet"]
    (folder / "run.json").write_text('{"schema_version": 1, "status": "running"}')
    assert set(found.runs()) == {"a.parquet", "b"}
    (tmp_path / "a.parquet").unlink()
    assert list(found.runs()) == ["b"]
    assert found.path("a.parquet") == tmp_path / "a.parquet"
    assert found.path("c") is None


def test_the_logs_of_one_run_are_one_run_and_those_of_several_are_several(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(LOG)
    assert list(Listing([tmp_path]).runs().values()) == [tmp_path]
    (tmp_path / "metrics2.jsonl").write_text(LOG)
    assert set(Listing([tmp_path]).runs()) == {"metrics.jsonl", "metrics2.jsonl"}


def test_runs_of_one_name_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        shutil.copy(DEMO / "healthy.parquet", tmp_path / name)
    assert list(Listing([tmp_path / "x", tmp_path / "y"]).runs()) == [
        str(tmp_path / "x" / "healthy.parquet"), str(tmp_path / "y" / "healthy.parquet"),
    ]  # fmt: skip


def test_a_file_that_was_written_on_is_recognised_then(tmp_path: Path) -> None:
    shutil.copy(DEMO / "healthy.parquet", tmp_path)
    (tmp_path / "train.jsonl").write_text("")
    found = Listing([tmp_path])
    assert list(found.runs()) == ["healthy.parquet"]
    (tmp_path / "train.jsonl").write_text(LOG)
    assert set(found.runs()) == {"healthy.parquet", "train.jsonl"}


def _aged(path: Path, hours: float) -> Path:
    """A run whose files were all written so long ago."""
    at = time.time() - hours * HOUR
    for each in (path, *(path.iterdir() if path.is_dir() else ())):
        os.utime(each, (at, at))
    return path


def _recording(path: Path, status: str, hours: float) -> Path:
    path.mkdir()
    (path / "run.json").write_text(f'{{"schema_version": 1, "status": "{status}"}}')
    return _aged(path, hours)


def test_the_runs_of_a_folder_are_listed_newest_first_and_runs_that_are_named_as_they_are(tmp_path: Path) -> None:
    old, new = tmp_path / "a.parquet", tmp_path / "b.parquet"
    for hours, path in ((2, old), (1, new)):
        _aged(Path(shutil.copy(DEMO / "healthy.parquet", path)), hours)
    _recording(tmp_path / "c", "complete", 1.5)
    assert list(Listing([tmp_path]).runs()) == ["b.parquet", "c", "a.parquet"]
    assert list(Listing([old, new]).runs()) == ["a.parquet", "b.parquet"]
    assert Listing([old, new]).first == "a.parquet"


def test_a_part_that_is_added_makes_a_run_the_newest_and_keeping_its_states_does_not(tmp_path: Path) -> None:
    _recording(tmp_path / "a", "complete", 3)
    _recording(tmp_path / "b", "complete", 2)
    found = Listing([tmp_path])
    assert list(found.runs()) == ["b", "a"]
    (tmp_path / "a" / ".rl_doctor").mkdir()
    assert list(found.runs()) == ["b", "a"]
    for number, hours in ((9, 4), (10, 1)):
        (tmp_path / "a" / f"sequences-s0-r0-{number}.parquet").write_text("")
        _aged(tmp_path / "a" / f"sequences-s0-r0-{number}.parquet", hours)
    assert list(found.runs()) == ["a", "b"]


def test_of_a_folder_the_newest_that_goes_on_is_opened_else_the_worst_known_else_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, hours in (("healthy.parquet", 1), ("reward-unit.parquet", 2), ("truncated.parquet", 3), ("kl-sign.parquet", 4)):
        _aged(Path(shutil.copy(DEMO / name, tmp_path)), hours)
    found = Listing([tmp_path])
    assert found.first == "healthy.parquet"
    for name in ("healthy.parquet", "truncated.parquet"):
        judge(tmp_path / name, tuple(rules().values()), states=States.used)
    assert found.first == "truncated.parquet"
    judge(tmp_path / "kl-sign.parquet", tuple(rules().values()), states=States.used)
    assert found.first == "truncated.parquet"
    judge(tmp_path / "reward-unit.parquet", tuple(rules().values()), states=States.used)
    assert found.first == "reward-unit.parquet"
    _recording(tmp_path / "silent", "running", 5)
    assert found.first == "reward-unit.parquet"
    _recording(tmp_path / "live", "running", 0)
    assert found.first == "live"


def test_nothing_is_opened_of_an_empty_folder(tmp_path: Path) -> None:
    assert Listing([tmp_path]).first is None
