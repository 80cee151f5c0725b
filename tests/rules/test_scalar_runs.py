"""Whole runs of which only scalars were logged: what must be said of them, and what must not."""

import numpy as np
import pytest

from rl_doctor.schema import RunConfig
from tests.rules.scalars import COMPANIONS, FAULTS, HEALTHY, alarms, judge, view

SEEDS = 20


@pytest.mark.parametrize("kind", HEALTHY)
def test_healthy_runs_raise_no_alarm(kind: str) -> None:
    found = {seed: alarms(judge(view(HEALTHY[kind](np.random.default_rng(seed))))) for seed in range(SEEDS)}
    assert {seed: codes for seed, codes in found.items() if codes} == {}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found_with_their_severity_and_little_else(fault: str) -> None:
    make, code, severities = FAULTS[fault]
    for seed in range(SEEDS):
        results = judge(view(make(np.random.default_rng(seed))))
        found = results[code].findings
        assert found, f"{code} is silent at seed {seed}"
        assert {item.severity for item in found} <= severities
        assert alarms(results) <= {code} | COMPANIONS.get(fault, frozenset())


def test_findings_do_not_depend_on_what_the_configuration_leaves_out() -> None:
    make, _, _ = FAULTS["nan gradient"]
    results = judge(view(make(np.random.default_rng(0)), RunConfig()))
    assert alarms(results) == {"RLD601"}


def test_a_long_log_is_judged_quickly() -> None:
    run = HEALTHY["healthy"](np.random.default_rng(0))
    long = {name: np.tile(values, 25) for name, values in run.items() if name != "reward.mean"}
    results = judge(view(long))
    assert sum(result.seconds for result in results.values()) < 2.0
