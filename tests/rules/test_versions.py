"""Stamps that cannot be right, and what the lag that they tell costs."""

from __future__ import annotations

import numpy as np
import pytest

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Finding
from rl_doctor.rules.registry import rules
from rl_doctor.rules.runner import run_rules
from rl_doctor.rules.spans import weighted
from rl_doctor.rules.view import View
from rl_doctor.schema import RunInfo
from tests.rules.scalars import CONFIG, Floats, with_config

ROWS = 64


def _series(name: str, values: Floats | float, count: int = ROWS) -> Series:
    part = np.broadcast_to(np.asarray(values, float), (40,)).copy()
    return Series(name, "1", np.arange(40), part, np.full(40, count))


def _found(code: str, **values: Floats | float) -> tuple[Finding, ...]:
    names = {name.replace("__", "."): part for name, part in values.items()}
    made = {name: _series(name, part) for name, part in names.items()}
    return run_rules([rules()[code]], View(RunInfo(config=CONFIG), made))[0].findings


def test_stamps_that_lag_are_in_order() -> None:
    clean = {"version__ahead_frac": 0.0, "version__missing_frac": 0.0, "version__distinct_frac": 4 / ROWS}
    assert not _found("RLD120", **clean, version__weight_max=np.arange(40.0), version__policy_max=np.arange(40.0) + 4)


def test_one_sample_of_a_run_that_is_ahead_is_found() -> None:
    ahead = np.zeros(40)
    ahead[30] = 1 / ROWS
    found = _found("RLD120", version__ahead_frac=ahead, stale__min=np.where(ahead > 0, -206.0, 0.0))
    assert [item.suspect for item in found] == ["version-stamps-ahead"]
    assert "206 versions" in found[0].message
    assert (found[0].first_step, found[0].severity) == (30, "warning")


def test_versions_that_are_all_ahead_by_one_are_a_matter_of_counting() -> None:
    found = _found("RLD120", version__ahead_frac=1.0, stale__min=-1.0, stale__max=-1.0)
    assert [item.severity for item in found] == ["info"]


def test_a_counter_of_samples_is_told_from_versions() -> None:
    assert [item.suspect for item in _found("RLD120", version__distinct_frac=1.0)] == ["version-stamps-count-samples"]
    few = {"version.distinct_frac": _series("version.distinct_frac", 1.0, count=4)}
    assert not run_rules([rules()["RLD120"]], View(RunInfo(config=CONFIG), few))[0].findings


def test_a_column_without_any_stamp_is_no_fault_of_the_stamps() -> None:
    assert not _found("RLD120", version__missing_frac=1.0)
    assert [item.suspect for item in _found("RLD120", version__missing_frac=0.05)] == ["version-stamps-missing"]


def test_a_rank_that_goes_back_is_found_and_a_restart_of_all_is_not() -> None:
    policy = np.arange(40.0)
    back = np.where(policy < 25, policy, policy - 25)
    ranks = {"version__weight_by__rank__0": policy, "version__weight_by__rank__1": back}
    found = _found("RLD120", version__policy_max=policy, version__ahead_frac=0.0, **ranks)
    assert [item.suspect for item in found] == ["version-stamps-go-back"]
    assert found[0].evidence[0].where == {"rank": "1"}
    assert not _found("RLD120", version__policy_max=back, version__ahead_frac=0.0, version__weight_by__rank__1=back)


def test_without_versions_it_is_skipped() -> None:
    missing = {"version.ahead_frac": ("policy_version", "weight_version")}
    made = run_rules([rules()["RLD120"]], View(RunInfo(config=CONFIG), {}, missing))[0]
    assert (made.outcome, made.missing) == ("skipped", ("policy_version", "weight_version"))


@pytest.mark.parametrize(
    ("lag", "slope", "expected"),
    [(0.3, 0.05, None), (1.0, 0.01, "info"), (4.0, 0.01, "warning"), (4.0, 0.0, "info"), (12.0, None, "warning")],
)
def test_what_a_lag_costs_grades_it(lag: float, slope: float | None, expected: str | None) -> None:
    values = {"stale__mean": lag}
    if slope is not None:
        values |= {"stale__gap_slope": slope, "stale__gap_slope_error": 0.002}
    found = _found("RLD121", **values)
    assert (found[0].severity if found else None) == expected


def test_staleness_that_is_corrected_is_by_design() -> None:
    made = {name: _series(name, value) for name, value in {"stale.mean": 4.0, "stale.gap_slope": 0.05}.items()}
    info = RunInfo(config=with_config(is_correction="tis"))
    assert not run_rules([rules()["RLD121"]], View(info, made))[0].findings
    bypass = {**made, "mismatch.bypass_frac": _series("mismatch.bypass_frac", 1.0)}
    assert not run_rules([rules()["RLD121"]], View(RunInfo(config=CONFIG), bypass))[0].findings


def test_the_slope_is_pooled_by_its_error() -> None:
    slope, error = _series("stale.gap_slope", np.tile([0.02, 9.0], 20)), _series("e", np.tile([0.01, 1e6], 20))
    value, of = weighted(slope, error)
    assert value == pytest.approx(0.02, abs=1e-6)
    assert of == pytest.approx(0.01 / np.sqrt(20), rel=1e-6)
