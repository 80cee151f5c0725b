"""The passes over tokens against sums that are exact, on any scale of the log-ratio, and over stretches as over copies."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import mpmath
import numpy as np
import pytest

from rl_doctor.analyzer import derive, kernels, stretches
from rl_doctor.analyzer.engine import analyze
from rl_doctor.analyzer.stretches import Stretches
from tests.unit.analyzer.memory import MemoryRun
from tests.unit.analyzer.rows import CONFIG, random_rows

mpmath.mp.dps = 50
SCALES = (1e-12, 1e-8, 1e-6, 1e-4, 1e-3, 3e-3, 0.03, 0.3, 3.0, 30.0)
CLIPPING = kernels.Clipping(0.2, 0.28, 3.0)


def passes() -> list[ModuleType]:
    try:
        from rl_doctor.analyzer import compiled
    except ImportError:
        return [kernels]
    return [kernels, compiled]


def exact(values: np.ndarray, function: Callable[[mpmath.mpf], mpmath.mpf]) -> float:
    return float(mpmath.fsum(function(mpmath.mpf(float(value))) for value in values))


@pytest.mark.parametrize("module", passes(), ids=lambda module: module.__name__.rpartition(".")[2])
def test_sums_per_row_are_exact_to_1e_12_of_their_terms(module: ModuleType) -> None:
    generator = np.random.default_rng(0)
    x = np.concatenate([scale * generator.normal(size=40) for scale in SCALES])
    x[200:203] = 0.0
    tokens = Stretches.whole(np.arange(0, x.size + 1, 40))
    found = module.policy(x, np.zeros_like(x), tokens, CLIPPING, np.zeros(len(SCALES), np.int8), advantage=np.ones_like(x))
    for row, values in enumerate(x.reshape(-1, 40)):
        assert found.sums[0, row] == pytest.approx(exact(values, mpmath.exp), rel=1e-12)
        assert found.sums[1, row] == pytest.approx(math.fsum(values), abs=1e-12 * np.abs(values).sum())
        assert found.sums[2, row] == pytest.approx(math.fsum(values * values), rel=1e-12)
        assert found.sums[3, row] == pytest.approx(exact(values, lambda v: mpmath.expm1(v) - v), rel=1e-12)
        assert found.sums[4, row] == pytest.approx(math.fsum(np.abs(values)), rel=1e-12)
        assert found.sums[5, row] == pytest.approx(math.fsum(-np.minimum(np.exp(values), 1.28)), rel=1e-12)
    assert (found.ends.low, found.ends.high) == pytest.approx((math.exp(x.min()), math.exp(x.max())), rel=1e-12)


@pytest.mark.parametrize("module", passes(), ids=lambda module: module.__name__.rpartition(".")[2])
def test_probabilities_that_vanish_are_summed_to_1e_12(module: ModuleType) -> None:
    x = -np.linspace(20.0, 600.0, 50)
    found = module.pair(np.zeros_like(x), x, Stretches.whole(np.array([0, 50])))
    assert found.sums[1, 0] == pytest.approx(exact(x, mpmath.exp), rel=1e-12)


@pytest.mark.parametrize("ratio", [0.8, 1.28, 3.0])
@pytest.mark.parametrize("module", passes(), ids=lambda module: module.__name__.rpartition(".")[2])
def test_bounds_are_compared_as_ratios(module: ModuleType, ratio: float) -> None:
    x = np.log(ratio) + np.array([-1e-3, -1e-7, 1e-7, 1e-3])
    tokens, gain = Stretches.whole(np.array([0, 4])), np.array([-1.0, -1.0, 1.0, 1.0])
    found = module.policy(x, np.zeros(4), tokens, CLIPPING, np.zeros(1, np.int8), advantage=gain)
    below, above = np.exp(x) < 0.8, np.exp(x) > 1.28
    expected = [below, above, below & (gain < 0), above & (gain > 0), (np.exp(x) > 3.0) & (gain < 0)]
    assert found.counts[1:6, 0].tolist() == [flags.sum() for flags in expected]


def test_stretches_give_what_copies_of_their_tokens_give(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(1)
    new, old, gain = generator.normal(0, 0.1, (3, 3000)).astype(np.float32)
    chosen = np.repeat(generator.random(100) < 0.6, 30)
    bounds = np.flatnonzero(np.diff(np.concatenate([[0], chosen, [0]])))
    edges = np.unique(np.append(generator.integers(1, chosen.sum(), 20), [0, chosen.sum()]))
    apart = Stretches(edges, bounds[::2], bounds[1::2])
    new[~chosen] = np.nan
    classes = (np.arange(len(edges) - 1) % 2).astype(np.int8)
    whole = kernels.policy(
        new[chosen], old[chosen], Stretches.whole(edges), CLIPPING, classes, advantage=gain[chosen], weight=gain[chosen]
    )
    monkeypatch.setattr(stretches, "BLOCK", 500)
    found = kernels.policy(new, old, apart, CLIPPING, classes, advantage=gain, weight=gain)
    for name in ("sums", "counts", "tops"):
        np.testing.assert_array_equal(getattr(found, name), getattr(whole, name))
    assert found.ends == whole.ends
    np.testing.assert_array_equal(apart.ends(old), Stretches.whole(edges).ends(old[chosen]))
    rows = classes == 0
    picked = kernels.column(old, apart.of(rows))
    np.testing.assert_array_equal(picked, kernels.column(old, apart)[rows])
    np.testing.assert_array_equal(old[apart.begins], old[chosen][edges[:-1]])


@pytest.mark.parametrize("seed", range(3))
def test_every_metric_is_the_same_in_place_and_in_copies(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rows, found = random_rows(seed, rollouts=2), []
    for shortest in (1, 1 << 40):
        monkeypatch.setattr(derive, "_SHORT_STRETCH", shortest)
        found.append(analyze(MemoryRun(rows, CONFIG)).series)
    for name, series in found[0].items():
        np.testing.assert_array_equal(series.values, found[1][name].values, err_msg=name)


def test_advantages_that_do_not_vary_within_a_row_take_no_pass() -> None:
    values = np.repeat(np.array([0.5, -0.25, 0.0, np.nan, 2.0], np.float32), 10)
    values[45] = -2.0
    tokens = Stretches.whole(np.arange(0, 51, 10))
    seen: list[int] = []

    def powers(column: np.ndarray, varying: Stretches) -> tuple[np.ndarray, np.ndarray]:
        seen.append(len(varying.edges) - 1)
        return kernels.powers(column, varying)

    found = kernels.advantages(values, tokens, SimpleNamespace(ends=kernels.ends, powers=powers))
    sums, zeros = kernels.powers(values, tokens)
    np.testing.assert_array_equal(found.sums, sums)
    np.testing.assert_array_equal(found.zeros, zeros)
    assert seen == [2]
