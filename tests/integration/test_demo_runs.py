"""The recorded runs that ship with the package: small, without text, and judged as their index says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rl_doctor import check, open_run
from rl_doctor.demo import DemoRun, recorded_runs

INDEX: list[dict[str, Any]] = json.loads((Path(__file__).parents[2] / "rl_doctor" / "demo" / "index.json").read_text("utf-8"))
TEXT = {"prompt", "response"}
LARGEST = 3_000_000


@pytest.fixture(scope="module")
def runs() -> Iterator[dict[str, DemoRun]]:
    with recorded_runs() as found:
        yield {run.path.name: run for run in found}


@pytest.mark.parametrize("entry", INDEX, ids=lambda entry: str(entry["name"]))
def test_check_reports_exactly_the_faults_that_were_made(entry: dict[str, Any], runs: dict[str, DemoRun]) -> None:
    report = check(open_run(runs[entry["name"]].path))
    assert [result.name for result in report.results if result.outcome == "crashed"] == []
    assert {finding.name for finding in report.findings if finding.severity == "error"} == set(entry["errors"])
    assert report.exit_code() == (1 if entry["errors"] else 0)
    if entry["fault"] is None:
        assert [finding.name for finding in report.findings if finding.severity == "warning"] == []


def test_one_run_is_healthy_and_its_reward_rises(runs: dict[str, DemoRun]) -> None:
    (healthy,) = [run for run in runs.values() if run.fault is None]
    steps, rewards = open_run(healthy.path).metrics().series("reward")
    assert len(steps) >= 20
    assert rewards[-5:].mean() > 1.3 * rewards[:5].mean()


def test_faults_are_named_by_rules_and_told_apart(runs: dict[str, DemoRun]) -> None:
    assert len({run.fault for run in runs.values()}) >= 6
    assert len({run.title for run in runs.values()}) == len(runs)


def test_they_are_small_and_hold_no_text(runs: dict[str, DemoRun]) -> None:
    assert sum(run.path.stat().st_size for run in runs.values()) <= LARGEST
    for run in runs.values():
        assert TEXT.isdisjoint(open_run(run.path).columns)
