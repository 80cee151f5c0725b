"""Formulas against references: 50 digits for the KL kernels, plain loops for the rest."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_doctor.analyzer.formulas import advantage, kl, policy_loss, returns

mpmath.mp.dps = 50


def one(function: object, x: float) -> float:
    return float(function(np.array([x]))[0])  # type: ignore[operator]


def exact_k3(x: float) -> mpmath.mpf:
    exact = mpmath.mpf(x)
    return mpmath.exp(exact) - 1 - exact if abs(x) > 1e-12 else exact**2 / 2 * (1 + exact / 3 + exact**2 / 12 + exact**3 / 60)


@given(st.floats(min_value=-1e3, max_value=700.0, allow_subnormal=False))
def test_k3_to_a_relative_error_of_1e_12(x: float) -> None:
    expected = exact_k3(x)
    if abs(x) > 1e-140:
        assert abs(mpmath.mpf(one(kl.k3, x)) - expected) <= expected * mpmath.mpf("1e-14")


@pytest.mark.parametrize("x", [0.125, -0.125, math.nextafter(0.125, 0), math.nextafter(-0.125, 0), 1e-8, -1e-8, 1e-300])
def test_k3_at_the_seam_and_near_zero(x: float) -> None:
    expected = exact_k3(x)
    assert one(kl.k3, x) == pytest.approx(float(expected), rel=1e-15)


@pytest.mark.parametrize(
    ("x", "expected"), [(0.0, 0.0), (math.inf, math.inf), (-math.inf, math.inf), (800.0, math.inf), (math.nan, math.nan)]
)
def test_k3_at_the_ends(x: float, expected: float) -> None:
    assert str(one(kl.k3, x)) == str(expected)


@given(st.lists(st.floats(min_value=-50, max_value=50), max_size=40))
def test_k3_is_never_negative(values: list[float]) -> None:
    assert (kl.k3(np.array(values, np.float64)) >= 0).all()


def test_k1_and_k2() -> None:
    assert one(kl.k1, -0.25) == 0.25
    assert one(kl.k2, -0.25) == 0.03125


def test_the_estimators_agree_in_expectation() -> None:
    rng = np.random.default_rng(0)
    p, q = (rng.dirichlet(np.ones(6)) for _ in range(2))
    x = np.log(q) - np.log(p)
    divergence = float(np.sum(p * np.log(p / q)))
    assert np.sum(p * kl.k1(x)) == pytest.approx(divergence)
    assert np.sum(p * kl.k3(x)) == pytest.approx(divergence)


def loss(r: float, a: float, dual: float | None = None) -> float:
    return float(policy_loss.surrogate_loss(np.log([r]), np.array([a]), 0.2, 0.3, dual)[0])


@pytest.mark.parametrize(
    ("r", "a", "dual", "expected"),
    [
        (1.0, 2.0, None, -2.0),
        (1.5, 2.0, None, -2.6),
        (0.5, 2.0, None, -1.0),
        (0.5, -2.0, None, 1.6),
        (1.5, -2.0, None, 3.0),
        (5.0, -2.0, None, 10.0),
        (5.0, -2.0, 3.0, 6.0),
        (5.0, 2.0, 3.0, -2.6),
        (2.0, -2.0, 3.0, 4.0),
    ],
)
def test_the_clipped_surrogate(r: float, a: float, dual: float | None, expected: float) -> None:
    assert loss(r, a, dual) == pytest.approx(expected, rel=1e-14)


def plain_gae(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    found, carried, following = [], 0.0, 0.0
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        carried = reward + gamma * following - value + gamma * lam * carried
        following = value
        found.append(carried)
    return found[::-1]


@given(
    st.lists(st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), max_size=12), max_size=6),
    st.sampled_from([0.0, 0.5, 0.99, 1.0]),
    st.sampled_from([0.0, 0.95, 1.0]),
)
def test_gae_equals_the_backward_recursion(sequences: list[list[tuple[float, float]]], gamma: float, lam: float) -> None:
    expected = [x for s in sequences for x in plain_gae([r for r, _ in s], [v for _, v in s], gamma, lam)]
    rewards, values = (np.array([pair[i] for s in sequences for pair in s], np.float64) for i in range(2))
    splits = np.cumsum([0, *map(len, sequences)]).astype(np.int64)
    np.testing.assert_allclose(returns.gae_advantage(rewards, values, splits, gamma, lam), expected, rtol=1e-12, atol=1e-12)


def test_a_nan_stays_in_its_sequence() -> None:
    found = returns.discounted_sums(np.array([1.0, math.nan, 1.0, 2.0]), np.array([0, 2, 4]), 0.5)
    assert np.isnan(found).tolist() == [True, True, False, False]
    assert found[2:].tolist() == [2.0, 2.0]


def test_group_advantages() -> None:
    centred, sizes = np.array([-0.5, 0.5]), np.array([2, 2])
    assert advantage.rloo_advantage(centred, sizes).tolist() == [-1.0, 1.0]
    deviation = advantage.group_deviation(np.array([0.5]), np.array([2]), 1)
    assert deviation[0] == pytest.approx(math.sqrt(0.5))
    assert advantage.grpo_advantage(centred, np.repeat(deviation, 2), 0.0)[1] == pytest.approx(0.5 / math.sqrt(0.5))
    assert math.isnan(advantage.group_deviation(np.array([0.0]), np.array([1]), 1)[0])
