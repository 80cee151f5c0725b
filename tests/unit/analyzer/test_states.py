"""Aggregates: exact, associative, commutative to the bit, and stored without loss."""

from __future__ import annotations

import json
import math
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_doctor.analyzer import states
from rl_doctor.analyzer.histogram import Histogram
from rl_doctor.analyzer.recompute.extremes import Range
from rl_doctor.analyzer.states import Counts, Extremes, Keyed, Sum, Sums

finite = st.floats(allow_nan=False, allow_infinity=False)
moderate = st.floats(min_value=-1e100, max_value=1e100)
anything = st.floats()
lists = st.lists(anything, max_size=20)


def array(values: list[float]) -> np.ndarray:
    return np.array(values, np.float64)


def make(kind: str, values: list[float]) -> Any:
    if kind == "Sum":
        return Sum.of(array(values))
    if kind == "Sums":
        return Sums((Sum.of(array(values)), Sum.of(array(values), 3)))
    if kind == "Extremes":
        return Extremes.of(array(values))
    if kind == "Histogram":
        return Histogram.of(array(values))
    if kind == "Counts":
        return Counts(dict(Counter(str(value) for value in values)))
    return Keyed({(int(abs(value)) % 3 if math.isfinite(value) else 9,): Sums((Sum.of(array([value])),)) for value in values})


KINDS = ["Sum", "Sums", "Extremes", "Histogram", "Keyed", "Counts"]
ZEROS = {
    "Sum": Sum(),
    "Sums": Sums(),
    "Extremes": Extremes(),
    "Histogram": Histogram.zero(),
    "Keyed": Keyed({}),
    "Counts": Counts({}),
}


@pytest.mark.parametrize("kind", KINDS)
@given(a=lists, b=lists, c=lists)
def test_adding_is_associative_and_commutative_with_a_zero(kind: str, a: list[float], b: list[float], c: list[float]) -> None:
    x, y, z = (make(kind, values) for values in (a, b, c))
    rows = [((x + y) + z).to_row(), (x + (y + z)).to_row(), ((z + x) + y).to_row()]
    assert rows[0] == rows[1] == rows[2]
    assert (x + ZEROS[kind]).to_row() == x.to_row() == (ZEROS[kind] + x).to_row()


@pytest.mark.parametrize("kind", KINDS)
@given(values=lists)
def test_a_row_loses_nothing(kind: str, values: list[float]) -> None:
    state = make(kind, values)
    row = json.loads(json.dumps(state.to_row()))
    read = type(state).from_row(row)
    assert read.to_row() == state.to_row()
    assert read.count == state.count


@given(st.lists(finite, max_size=30))
def test_a_sum_is_exact(values: list[float]) -> None:
    total = sum(map(Fraction, values), Fraction())
    found = Sum.of(array(values))
    assert Fraction(found.total, 2**1126) == total
    try:
        expected = float(total)
    except OverflowError:
        expected = math.inf if total > 0 else -math.inf
    assert found.value == expected
    if values and math.isfinite(expected):
        assert found.mean == float(total / len(values))


@given(st.lists(finite, min_size=1, max_size=20), st.integers(0, 2**32))
def test_a_sum_does_not_depend_on_how_it_was_cut(values: list[float], seed: int) -> None:
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(array(values))
    cuts = np.sort(rng.integers(0, len(values) + 1, 3))
    parts = [Sum.of(part) for part in np.split(shuffled, cuts)]
    assert sum(parts[1:], parts[0]) == Sum.of(array(values))


def test_many_values_of_one_magnitude_are_exact() -> None:
    values = np.random.default_rng(0).normal(size=200_000)
    assert Fraction(Sum.of(values).total, 2**1126) == sum(map(Fraction, values.tolist()))


def test_the_smallest_and_the_largest_numbers_add_exactly() -> None:
    values = [5e-324, 1.7976931348623157e308, -1.7976931348623157e308]
    assert Sum.of(array(values)).value == 5e-324


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], math.nan),
        ([math.nan, 1.0], math.nan),
        ([math.inf, 1.0], math.inf),
        ([-math.inf], -math.inf),
        ([math.inf, -math.inf], math.nan),
    ],
)
def test_non_finite_sums(values: list[float], expected: float) -> None:
    found = Sum.of(array(values))
    assert str(found.mean) == str(expected)
    assert found.count == len(values)


def test_counted_says_nan_where_an_item_cannot_be_told() -> None:
    assert Sum.counted(2, 8).mean == 0.25
    assert math.isnan(Sum.counted(2, 8, nan=1).mean)
    assert states.mean(Sum.counted(1, 2)) == 0.5
    assert states.total(Sum.counted(3, 7)) == 3.0


def test_sums_without_parts_read_as_nothing() -> None:
    assert Sums()[3] == Sum()
    assert Sums().count == 0


@given(st.lists(anything, max_size=20))
def test_extremes(values: list[float]) -> None:
    found = Extremes.of(array(values))
    assert found.count == len(values)
    if not values or any(map(math.isnan, values)):
        assert math.isnan(found.min)
        assert math.isnan(found.max)
    else:
        assert (found.min, found.max) == (min(values), max(values))


normal32 = st.one_of(
    st.floats(min_value=1.2e-38, max_value=3e38),
    st.floats(min_value=-3e38, max_value=-1.2e-38),
    st.sampled_from([0.0, math.inf, -math.inf]),
)


@given(st.lists(normal32, min_size=1, max_size=50), st.floats(0.0, 1.0))
def test_a_quantile_is_within_four_tenths_of_a_percent(values: list[float], q: float) -> None:
    ordered = sorted(values)
    expected = ordered[min(int(q * len(values)), len(values) - 1)]
    assert Histogram.of(array(values)).quantile(q) == pytest.approx(expected, rel=0.004, abs=0.0)


def test_a_histogram_with_nothing_or_with_nan_has_no_quantile() -> None:
    assert math.isnan(Histogram.zero().quantile(0.5))
    found = Histogram.of(array([1.0, math.nan]))
    assert math.isnan(found.quantile(0.5))
    assert found.count == 2


def test_values_beyond_float32_are_infinite_in_a_histogram() -> None:
    assert Histogram.of(array([1e300, -1e300])).quantile(0.0) == -math.inf


@pytest.mark.parametrize("parts", [([-0.0], [0.0]), ([0.0], [-0.0]), ([-0.0, 0.0], []), ([math.nan, -0.0], [0.0])])
def test_extremes_have_no_sign_of_zero_whichever_came_first(parts: tuple[list[float], list[float]]) -> None:
    found = Extremes.of(np.array(parts[0])) + Extremes.of(np.array(parts[1]))
    ranged = Range.of(np.array(parts[0]), np.zeros(len(parts[0]))) + Range.of(np.array(parts[1]), np.zeros(len(parts[1])))
    assert [math.copysign(1.0, end) for end in (found.low, found.high, ranged.low, ranged.high)] == [1.0] * 4
