"""The verdict that is kept of a run, and when it counts."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import rl_doctor.demo
from rl_doctor.cli.judging import States, judge
from rl_doctor.live import known
from rl_doctor.live.known import alive, remembered, written
from rl_doctor.rules.registry import rules

DEMO = Path(rl_doctor.demo.__file__).parent
ALL = tuple(rules().values())


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Path(shutil.copy(DEMO / "kl-sign.parquet", tmp_path))


def _known(path: Path) -> str | None:
    return remembered(path, written(path))


def test_a_check_keeps_its_verdict_until_the_run_changes(run: Path) -> None:
    assert _known(run) is None
    judge(run, ALL, states=States.used)
    assert _known(run) == "error"
    os.utime(run, (1.0, 1.0))
    assert _known(run) is None


def test_the_verdict_of_another_version_is_none(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge(run, ALL, states=States.used)
    monkeypatch.setattr(known, "__version__", "0")
    assert _known(run) is None


def test_some_of_the_rules_or_states_left_aside_keep_none(run: Path) -> None:
    judge(run, ALL[:3], states=States.used)
    judge(run, ALL, required=("RLD101",), states=States.used)
    judge(run, ALL, states=States.unused)
    judge(run, ALL, states=States.verified)
    judge(run, ALL, first_steps=5, states=States.used)
    assert _known(run) is None


def test_a_log_keeps_none_and_is_never_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    log = Path(shutil.copy(DEMO / "truncated.trainer_state.json", tmp_path))
    judge(log, ALL, states=States.used)
    assert _known(log) is None
    assert not alive(log)


def test_what_is_not_there_was_never_written_to(tmp_path: Path) -> None:
    assert written(tmp_path / "gone") == 0.0
    assert not alive(tmp_path / "gone")


def test_one_run_of_a_file_is_as_old_as_the_file(run: Path) -> None:
    assert written(run.with_name(f"{run.name}#1")) == written(run) > 0


def test_a_recording_that_goes_on_is_alive_as_long_as_its_pace_allows(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"schema_version": 1, "status": "running"}')
    now = written(tmp_path)
    assert alive(tmp_path, now + 500)
    assert not alive(tmp_path, now + 700)
    (tmp_path / "run.json").write_text('{"schema_version": 1, "status": "complete"}')
    assert not alive(tmp_path, now)
    (tmp_path / "run.json").write_text("[1")
    assert not alive(tmp_path, now)
