"""Change points: where a series breaks, which of two broke first, and what the last few points tell."""

from __future__ import annotations

import numpy as np
import pytest

from rl_doctor.analyzer.series import Series
from rl_doctor.rules import breaks
from rl_doctor.rules.trend import Floats


def _noise(random: np.random.Generator, n: int, rho: float = 0.0) -> Floats:
    values = random.standard_normal(n + 50)
    for index in range(1, n + 50):
        values[index] += rho * values[index - 1]
    return np.asarray(values[50:] * np.sqrt(1.0 - rho * rho))


def _series(name: str, values: Floats) -> Series:
    return Series(name, "1", np.arange(len(values)), values, np.ones(len(values), np.int64))


@pytest.mark.parametrize("n", [60, 100, 400])
@pytest.mark.parametrize("ramp", [1, 6])
def test_a_break_is_found_where_it_begins(n: int, ramp: int) -> None:
    random = np.random.default_rng(n)
    missed = 0
    for _ in range(20):
        at = n // 2
        values = 0.1 * _noise(random, n)
        values[at:] += np.minimum((np.arange(n - at) + 1.0) / ramp, 1.0) * 2.0
        found = breaks.first_break(values, 6.0)
        if found is None:
            missed += 1
            continue
        assert found.rising
        assert abs(found.index - at) <= 3
        assert found.size == pytest.approx(2.0, abs=0.4)
    assert missed <= 1


@pytest.mark.parametrize("n", [24, 40, 100, 400])
def test_noise_has_no_break(n: int) -> None:
    random = np.random.default_rng(n)
    assert sum(breaks.first_break(0.2 * _noise(random, n), 6.0, np.log(1.5)) is not None for _ in range(200)) <= 2


def test_a_line_has_no_break() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        assert breaks.first_break(0.05 * np.arange(100.0) + 0.2 * _noise(random, 100), 6.0) is None


def test_what_explodes_and_then_stands_broke_where_it_left_its_level() -> None:
    values = 0.05 * _noise(np.random.default_rng(2), 90)
    values[40:60] += np.arange(1.0, 21.0) * 0.2
    values[60:] += 4.0
    found = breaks.first_break(values, 6.0)
    assert found is not None
    assert 37 <= found.index <= 44


def test_the_order_of_events() -> None:
    random = np.random.default_rng(3)
    early, late = np.exp(0.1 * _noise(random, 80)), np.exp(0.1 * _noise(random, 80))
    early[30:] *= 4.0
    late[50:] *= 4.0
    flat = np.exp(0.1 * _noise(random, 80))
    found = breaks.events([_series("late", late), _series("flat", flat), _series("early", early)], 0, 79)
    assert [event.series.metric for event in found] == ["early", "late"]
    assert found[0].leads(found[1])
    assert not found[1].leads(found[0])
    assert abs(found[0].step - 30) <= 2
    assert "steps earlier" in found[0].words(found[1])


@pytest.mark.parametrize("n", [20, 60, 400])
def test_a_fresh_level_is_found_from_four_points_on(n: int) -> None:
    random = np.random.default_rng(n)
    for after in (4, 5, 10, 30):
        values = 0.1 * _noise(random, n + after)
        values[n:] -= 2.0
        found = breaks.fresh(values, 1.0)
        assert found is not None
        assert found.index == n
        assert found.size == pytest.approx(-2.0, abs=0.3)


@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_noise_and_ramps_are_not_fresh(rho: float) -> None:
    random = np.random.default_rng(5)
    for n in (16, 24, 100, 400):
        assert not any(breaks.fresh(0.2 * _noise(random, n, rho), 0.7) for _ in range(100))
        assert breaks.fresh(np.linspace(0.0, 5.0, n) + 0.05 * _noise(random, n), 0.7) is None


def test_a_spike_is_not_fresh() -> None:
    values = 0.1 * _noise(np.random.default_rng(6), 60)
    values[50:53] += 5.0
    assert breaks.fresh(values, 1.0) is None
