"""Every rule finds its disease, and no other rule speaks up beside it unless the table says why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rl_doctor.report.model import SEVERITY_ORDER
from rl_doctor.rules.registry import rules
from tests.diseases.catalogue import Disease, diseases
from tests.diseases.recorded import RECORDED, load
from tests.diseases.verdict import Verdict, verdict

_RULES = {rule.name for rule in rules().values()}
_SEEDS = range(3)
_UNFOUND = pytest.mark.xfail(reason="no rule finds it yet")
_TABLE = [pytest.param(name, marks=() if disease.rule in _RULES else _UNFOUND) for name, disease in diseases().items()]
_INJECTED = [name for name, disease in diseases().items() if disease.inject is not None and disease.rule in _RULES]


def _company(disease: Disease, found: Verdict, before: Verdict | None = None) -> dict[str, str]:
    """Warnings and errors that neither the table allows nor the run had before."""
    known = {disease.rule, *disease.allowed, *(before.alarms() if before else ())}
    return {name: message for name, message in found.alarms().items() if name not in known}


def _assert_found(disease: Disease, found: Verdict) -> None:
    assert not found.crashed
    assert disease.rule in found.found, found.skipped.get(disease.rule, "passed")
    severity, message = found.found[disease.rule]
    assert SEVERITY_ORDER[severity] >= SEVERITY_ORDER[disease.least], message


@pytest.mark.parametrize("seed", _SEEDS)
@pytest.mark.parametrize("name", _TABLE)
def test_rule_finds_its_disease(name: str, seed: int) -> None:
    disease = diseases()[name]
    found = verdict(disease.make(seed))
    _assert_found(disease, found)
    assert not _company(disease, found)


def test_every_rule_has_a_disease() -> None:
    assert {disease.rule for disease in diseases().values()} >= _RULES


@pytest.mark.parametrize("run", RECORDED)
def test_silent_on_healthy_recorded_runs(run: str) -> None:
    found = verdict(load(run))
    assert not found.crashed
    assert not found.alarms()


@pytest.mark.parametrize(
    ("name", "run"),
    [(name, run) for name in _INJECTED for run in RECORDED],
)
def test_rule_finds_its_disease_in_a_recorded_run(name: str, run: str) -> None:
    disease, whole = diseases()[name], load(run)
    assert disease.inject is not None
    if lacks := sorted(set(disease.needs) - set(whole.columns)):
        pytest.skip(f"the recorded run has no {lacks[0]}")
    damaged = disease.inject(whole.copy(), np.random.default_rng(0))
    found = verdict(damaged)
    if found.skipped.get(disease.rule, "").startswith("length"):
        pytest.skip(f"the recorded run is too short: {found.skipped[disease.rule]}")
    _assert_found(disease, found)
    allowed: Any = disease.allowed | {"logged-metric-mismatch"}
    assert not _company(replace(disease, allowed=allowed), found, verdict(whole))
