"""Runs of which only scalars were logged: the right verdict in every kind, from series and from a trainer's own file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from rl_doctor import check, open_run
from rl_doctor.report.model import Result
from rl_doctor.rules.registry import rules
from rl_doctor.rules.runner import run_rules
from tests.rules.peers import FAULTS, HEALTHY, TRL, VERL, Scenario, write_trl, write_verl
from tests.rules.scalars import alarms, view

SEEDS = 20
FILES = 2
"""Seeds that are written and read as files."""
WRITERS = {"trl": (write_trl, TRL), "verl": (write_verl, VERL)}


def _by_code(results: Iterable[Result]) -> dict[str, Result]:
    return {result.code: result for result in results}


def _assert_told(scenario: Scenario, results: dict[str, Result]) -> None:
    found = {item.severity for item in results[scenario.code].findings}
    assert found, results[scenario.code]
    assert found == {"info"} if scenario.mild else found & {"warning", "error"}
    assert alarms(results) <= {scenario.code} | scenario.beside


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_series_raise_no_alarm(name: str) -> None:
    for seed in range(SEEDS):
        results = _by_code(run_rules(rules().values(), view(HEALTHY[name].make(seed))))
        assert not alarms(results), seed


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_told_from_series(name: str) -> None:
    for seed in range(SEEDS):
        _assert_told(FAULTS[name], _by_code(run_rules(rules().values(), view(FAULTS[name].make(seed)))))


@pytest.mark.parametrize("trainer", WRITERS)
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_logs_raise_no_alarm(name: str, trainer: str, tmp_path: Path) -> None:
    write, _ = WRITERS[trainer]
    for seed in range(FILES):
        report = check(open_run(write(HEALTHY[name].make(seed), tmp_path)))
        assert report.run.trainer == trainer
        assert not alarms(_by_code(report.results)), seed


@pytest.mark.parametrize("trainer", WRITERS)
@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_told_from_logs(name: str, trainer: str, tmp_path: Path) -> None:
    scenario = FAULTS[name]
    write, names = WRITERS[trainer]
    if not all(any(known.startswith(lacking) for known in names) for lacking in scenario.lacks):
        pytest.skip(f"{trainer} does not log {', '.join(scenario.lacks)}")
    for seed in range(FILES):
        _assert_told(scenario, _by_code(check(open_run(write(scenario.make(seed), tmp_path))).results))
