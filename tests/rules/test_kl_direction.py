"""Sign and direction of the KL to the reference, and updates that end early."""

from dataclasses import replace

import numpy as np
import pytest

from rl_doctor.report.model import Result
from rl_doctor.rules.registry import rules
from rl_doctor.rules.runner import run_rules
from rl_doctor.schema import RunConfig, RunInfo
from tests.rules.scalars import autoregressive, result, series, severity, view

HONEST = ("k1", "k2", "k3", "abs")
TURNED = ("k3_reversed", *(f"{form}_negated" for form in HONEST))
FORMS = (*HONEST, *TURNED)


def _gaps(count: int = 100, **levels: float) -> Result:
    level = dict.fromkeys(FORMS, 0.6) | levels
    made = {f"ref.kl_recorded_gap_{form}": series(form, np.full(20, value), count=count) for form, value in level.items()}
    return run_rules([rules()["RLD206"]], replace(view({}), all_series=made))[0]


@pytest.mark.parametrize("form", FORMS)
def test_a_recorded_term_is_reversed_only_where_a_swapped_form_fits(form: str) -> None:
    found = _gaps(**{form: 1e-6}).findings
    assert [item.severity for item in found] == (["error"] if form in TURNED else [])


def test_nothing_is_said_where_both_directions_agree_or_nothing_fits() -> None:
    assert not _gaps(k3=1e-6, k3_reversed=5e-4).findings
    assert not _gaps().findings
    assert _gaps(count=1, k3_reversed=1e-6).outcome == "skipped"


def test_a_signed_kl_below_zero_beyond_noise_is_a_warning() -> None:
    noise = 0.002 * autoregressive(np.random.default_rng(0), 200, 0.5)
    assert severity("RLD206", {"ref.kl_k1": noise - 0.01}) == "warning"
    assert severity("RLD206", {"ref.kl": noise - 0.01}) == "warning"
    assert severity("RLD206", {"ref.kl_k1": noise + 0.01}) is None


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_a_signed_kl_that_scatters_around_zero_is_left_alone(rho: float) -> None:
    found = [
        severity("RLD206", {"ref.kl_k1": 0.05 * autoregressive(np.random.default_rng(seed), 100, rho)}) for seed in range(60)
    ]
    assert found == [None] * 60


def test_trainers_that_log_minus_k1_are_left_alone() -> None:
    run = view({"ref.kl": np.full(60, -0.01) + 1e-4 * autoregressive(np.random.default_rng(1), 60)})
    assert run_rules([rules()["RLD206"]], run)[0].findings
    assert not run_rules([rules()["RLD206"]], replace(run, info=RunInfo(trainer="minimind")))[0].findings


def test_updates_that_end_early_are_told_against_the_configuration_or_the_run_itself() -> None:
    passes = np.where(np.arange(50) < 10, 4.0, 2.0)
    assert severity("RLD606", {"update.passes_mean": passes}) == "warning"
    assert severity("RLD606", {"update.passes_mean": np.full(50, 2.0)}, RunConfig(epochs=4)) == "warning"
    assert severity("RLD606", {"update.passes_mean": passes[::-1].copy()}) == "info"


def test_whole_updates_and_single_passes_are_left_alone() -> None:
    passes = np.full(50, 4.0)
    passes[-1] = passes[7] = 1.0
    assert severity("RLD606", {"update.passes_mean": passes}) is None
    assert result("RLD606", {"update.passes_mean": np.ones(50)}).reason == "data"
    assert result("RLD606", {"update.passes_mean": np.full(5, 2.0)}).reason == "length"


def test_a_small_kl_that_is_below_zero_in_every_row_is_told() -> None:
    for seed in range(20):
        small = -1e-4 * np.exp(0.1 * np.random.default_rng(seed).standard_normal(100))
        assert severity("RLD206", {"ref.kl": small}) == "warning"
        assert severity("RLD006", {"ref.kl_k3": 0.05 * small}) == "warning"
        assert severity("RLD206", {"ref.kl": small * np.sign(np.random.default_rng(seed).standard_normal(100))}) is None


def test_a_signed_kl_that_falls_ever_further_below_zero_is_a_warning() -> None:
    noise = np.random.default_rng(0).standard_normal(60)
    falling = -np.linspace(0.0, 1.5, 60) * (1.0 + 0.2 * noise)
    (found,) = result("RLD206", {"ref.kl": falling}).findings
    assert found.severity == "warning"
    assert "and goes from" in found.message
    assert not result("RLD206", {"ref.kl": -falling}).findings
    assert not result("RLD206", {"ref.kl": 0.01 * autoregressive(np.random.default_rng(1), 60, 0.9)}).findings


def test_a_logged_kl_below_zero_contradicts_tokens_whose_kl_is_above() -> None:
    own, told = series("ref.kl_k1", np.linspace(0.0, 0.5, 12), count=2000), series("ref.kl", -np.linspace(0.0, 0.5, 12))
    made = run_rules([rules()["RLD206"]], replace(view({}), all_series={"ref.kl_k1": own, "ref.kl": told}))[0]
    assert [(item.severity, item.suspect) for item in made.findings] == [("error", "kl-sign-turned")]
    right = replace(told, values=own.values)
    assert not run_rules([rules()["RLD206"]], replace(view({}), all_series={"ref.kl_k1": own, "ref.kl": right}))[0].findings
