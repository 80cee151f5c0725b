"""Every rule finds its disease, and no other rule speaks up beside it unless the table says why."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from rl_doctor.causes.registry import causes
from rl_doctor.report.model import SEVERITY_ORDER
from rl_doctor.rules.registry import rules
from tests.diseases.catalogue import Disease, diseases
from tests.diseases.recorded import RECORDED, load
from tests.diseases.verdict import Verdict, company, verdict

_RULES = {rule.name for rule in rules().values()}
_HOSTS = ("single_turn", "agentic")
"""Recorded runs that the matrix puts diseases into; the scorecard takes all."""
_UNFOUND = pytest.mark.xfail(reason="no rule finds it yet")
_TABLE = [pytest.param(name, marks=() if disease.rule in _RULES else _UNFOUND) for name, disease in diseases().items()]
_INJECTED = [name for name, disease in diseases().items() if disease.inject is not None and disease.rule in _RULES]


def _told(found: Verdict, own: str, *, of_the_log: bool) -> list[str]:
    """Names of the causes, the first one first; but for its ``own`` without those of a log that says what sound rows said."""
    of_logs = {"logged-metric-mismatch", *(name for name, one in causes().items() if "logged-metric-mismatch" in one.explains)}
    return [name for name in found.causes if of_the_log or name not in of_logs - {own}]


@cache
def _undamaged(run: str) -> Verdict:
    return verdict(load(run))


def _assert_found(disease: Disease, found: Verdict, *, of_the_log: bool = True) -> None:
    assert not found.crashed
    assert disease.rule in found.found, found.skipped.get(disease.rule, "passed")
    severity, message = found.found[disease.rule]
    assert SEVERITY_ORDER[severity] >= SEVERITY_ORDER[disease.least], message
    if disease.cause is not None:
        assert _told(found, disease.cause, of_the_log=of_the_log)[:1] == [disease.cause]


@pytest.mark.parametrize("name", _TABLE)
def test_rule_finds_its_disease(name: str) -> None:
    """With one seed: the scorecard has more."""
    disease = diseases()[name]
    found = verdict(disease.make(0))
    _assert_found(disease, found)
    assert not company(disease, found)


def test_every_rule_has_a_disease() -> None:
    assert {disease.rule for disease in diseases().values()} >= _RULES


@pytest.mark.parametrize("run", RECORDED)
def test_silent_on_healthy_recorded_runs(run: str) -> None:
    found = verdict(load(run))
    assert not found.crashed
    assert not found.alarms()


@pytest.mark.parametrize(
    ("name", "run"),
    [(name, run) for name in _INJECTED for run in _HOSTS],
)
def test_rule_finds_its_disease_in_a_recorded_run(name: str, run: str) -> None:
    disease, whole = diseases()[name], load(run)
    assert disease.inject is not None
    if lacks := sorted(set(disease.needs) - set(whole.columns)):
        pytest.skip(f"the recorded run has no {lacks[0]}")
    damaged = disease.inject(whole.copy(), np.random.default_rng(0))
    found = verdict(damaged)
    if found.skipped.get(disease.rule, "").startswith(("length", "config")):
        pytest.skip(f"the recorded run is too short, or another kind of training: {found.skipped[disease.rule]}")
    _assert_found(disease, found, of_the_log=False)
    allowed: Any = disease.allowed | {"logged-metric-mismatch"}
    assert not company(replace(disease, allowed=allowed), found, _undamaged(run))
