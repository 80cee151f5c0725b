"""A gap between engine and trainer that turns up before the gradient explodes, and one that does not come first."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rules.scalars import Floats, autoregressive, result


def _level(rng: np.random.Generator, base: float, since: int, factor: float, n: int = 300) -> Floats:
    """A positive series around ``base`` that grows to ``factor`` times it over 20 steps from ``since`` on."""
    grown = np.clip((np.arange(n) - since) / 20.0, 0.0, 1.0)
    return np.asarray(base * np.exp(np.log(factor) * grown + 0.05 * autoregressive(rng, n, 0.3)))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("lead", [10, 60])
def test_the_lead_is_told(seed: int, lead: int) -> None:
    rng = np.random.default_rng(seed)
    values = {"mismatch.k3": _level(rng, 1e-3, 220 - lead, 6.0), "optim.grad_norm": _level(rng, 0.3, 220, 20.0)}
    found = result("RLD122", values).findings
    assert len(found) == 1
    assert found[0].severity == "warning"
    told = int(found[0].message.split(" steps before")[0].rsplit(" ", 1)[1])
    assert abs(told - lead) <= 8
    assert found[0].first_step is not None
    assert abs(found[0].first_step - (220 - lead)) <= 8


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("gap", "factor"), [(400, 6.0), (220, 6.0), (260, 6.0)])
def test_a_gap_that_does_not_come_first_is_no_cause(seed: int, gap: int, factor: float) -> None:
    rng = np.random.default_rng(seed)
    values = {"mismatch.k3": _level(rng, 1e-3, gap, factor), "optim.grad_norm": _level(rng, 0.3, 220, 20.0)}
    assert not result("RLD122", values).findings


@pytest.mark.parametrize("seed", range(20))
def test_silent_where_the_gradient_does_not_explode(seed: int) -> None:
    rng = np.random.default_rng(seed)
    quiet = {"mismatch.abs": _level(rng, 0.02, 100, 5.0), "optim.grad_norm": np.exp(0.3 * autoregressive(rng, 300, 0.8))}
    assert not result("RLD122", quiet).findings
