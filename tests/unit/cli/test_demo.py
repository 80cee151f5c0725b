"""The demo: recorded runs are found by their index, and each must show what the index says."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rl_doctor.cli.main import main
from rl_doctor.demo import DemoRun, recorded_runs
from rl_doctor.errors import InputError
from tests.integration.bad_input import rows, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "healthy.parquet", [{"step": row["step"], "reward": row["reward"]} for row in rows()])
    broken = rows()
    broken[170]["logprob"] = [math.inf] * len(broken[170]["logprob"])
    write(tmp_path / "broken.parquet", broken)
    index = [
        {"name": "healthy.parquet", "title": "A healthy run", "fault": None},
        {"name": "broken.parquet", "title": "An infinite logprob", "fault": "non-finite"},
    ]
    (tmp_path / "index.json").write_text(json.dumps(index), "utf-8")
    return tmp_path


def demo(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[object, str]:
    @contextmanager
    def there() -> Iterator[tuple[DemoRun, ...]]:
        with recorded_runs(folder) as runs:
            yield runs

    monkeypatch.setattr("rl_doctor.demo.recorded_runs", there)
    with pytest.raises(SystemExit) as ended:
        main(["demo"])
    return ended.value.code, capsys.readouterr().out


def test_the_index_names_the_runs_in_order(folder: Path) -> None:
    with recorded_runs(folder) as runs:
        assert runs == (
            DemoRun(folder / "healthy.parquet", "A healthy run", None),
            DemoRun(folder / "broken.parquet", "An infinite logprob", "non-finite"),
        )


def test_reports_and_a_verdict_for_each(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = demo(folder, monkeypatch, capsys)
    assert code == 0
    for part in ("== A healthy run", "== An infinite logprob", "RLD601 non-finite", "rl-doctor check"):
        assert part in out
    assert [line.partition("  ")[0] for line in out.splitlines() if "expected" in line.lower()] == ["as expected"] * 2


def test_a_fault_that_is_not_found_fails_the_demo(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder / "broken.parquet", [{"step": row["step"], "reward": row["reward"]} for row in rows()])
    code, out = demo(folder, monkeypatch, capsys)
    assert code == 1
    assert "NOT AS EXPECTED non-finite expected" in out


def test_a_healthy_run_that_is_not_judged_so_fails_the_demo(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "healthy.parquet").write_bytes((folder / "broken.parquet").read_bytes())
    code, out = demo(folder, monkeypatch, capsys)
    assert code == 1
    assert "NOT AS EXPECTED healthy expected" in out


def test_no_index_and_a_missing_run_are_errors(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no recorded runs"), recorded_runs(tmp_path / "empty"):
        pass
    (folder / "broken.parquet").unlink()
    with pytest.raises(InputError, match=r"broken\.parquet, which is not there"), recorded_runs(folder):
        pass
