"""Two mistakes at once, the explanation that comes closest, and ratios of what does not follow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rl_doctor.analyzer.closest import closest, constant, constant_ratio, pairs
from rl_doctor.analyzer.comparison import Comparison, Explanation
from rl_doctor.analyzer.factors import Multiplier

STEPS = np.arange(1, 7)
TRUE = np.array([1.0, 1.3, 0.8, 1.9, 1.1, 1.6])
OTHER = TRUE * np.array([1.1, 0.9, 1.3, 0.8, 1.2, 1.0])
SLACK = np.full(6, 1e-9)
EVERY = np.ones(6, bool)
FACTORS = (
    Multiplier("opposite sign", "has the opposite sign", np.full(6, -1.0)),
    Multiplier("times ranks", "is multiplied by the number of ranks, 2", np.full(6, 2.0)),
    Multiplier("divided by ranks", "is divided by the number of ranks, 2", np.full(6, 0.5)),
)


def item(logged: np.ndarray, *explanations: Explanation) -> Comparison:
    return Comparison("kl", None, "nat", STEPS, logged, TRUE, SLACK, explanations)


def one(values: np.ndarray) -> Explanation:
    return Explanation("k2", "is k2", values, SLACK)


def test_a_mistake_and_a_factor_are_found_together() -> None:
    found = list(pairs(item(-OTHER), EVERY, [one(OTHER)], FACTORS, 0.95))
    assert [(made.name, made.sentence) for made in found] == [("k2, opposite sign", "is k2, and has the opposite sign")]
    np.testing.assert_array_equal(found[0].values, -OTHER)
    two = list(pairs(item(-2 * TRUE), EVERY, [], FACTORS, 0.95))
    assert [made.name for made in two] == ["opposite sign, times ranks"]


def test_few_numbers_are_not_explained_by_two_mistakes() -> None:
    few = EVERY & (STEPS < 3)
    assert list(pairs(item(-OTHER), few, [one(OTHER)], FACTORS, 0.95)) == []
    same = np.full(6, -2.0)
    assert list(pairs(item(same), EVERY, [one(-same)], FACTORS, 0.95)) == []


def test_what_was_looked_at_too_rarely_is_no_pair() -> None:
    seldom = np.where(STEPS < 4, OTHER, np.nan)
    assert list(pairs(item(-OTHER), EVERY, [one(seldom)], FACTORS, 0.95)) == []


def test_the_closest_is_named_only_if_it_is_much_closer() -> None:
    near = closest(item(1.003 * OTHER, one(OTHER), replace(one(1.2 * OTHER), name="far")), EVERY)
    assert near is not None
    assert near[0].name == "k2"
    np.testing.assert_allclose(near[1], 0.003 / 1.003)
    assert closest(item(1.1 * OTHER, one(OTHER)), EVERY) is None
    assert closest(item(1.003 * OTHER, replace(one(OTHER), approximate=True)), EVERY) is None
    assert closest(item(np.full(6, 1.0), one(np.full(6, 1.001))), EVERY) is None


def test_a_number_that_stays_the_same_is_no_multiple_of_one_that_varies() -> None:
    wobble = 1.0 + np.array([0.004, -0.003, 0.006, -0.005, 0.002, -0.004])
    assert constant_ratio(np.ones(6), wobble, 0.01) is None
    assert constant(np.ones(6)) == 1.0
    assert constant(wobble) is None
    assert constant(np.ones(2)) is None
    assert constant_ratio(2 * wobble, wobble, 0.01) == 2.0
    assert constant_ratio(0.989 * TRUE * wobble, TRUE, 0.01) is None, "no closer than the series itself"
    assert constant_ratio(np.full(6, 3.0), np.ones(6), 0.01) == 3.0
    assert constant_ratio(wobble[::-1], wobble, 0.01) is None
    assert constant_ratio(OTHER, TRUE, 0.01) is None
    assert constant_ratio(np.array([2.0, 4.0]), np.array([1.0, 2.0]), 0.01) == 2.0
