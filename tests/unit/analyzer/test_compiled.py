"""The compiled passes give what the others give, and the same bits however rows are cut."""

from __future__ import annotations

import sys
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from rl_doctor.analyzer import kernels
from rl_doctor.analyzer.engine import analyze
from rl_doctor.analyzer.stretches import Stretches
from rl_doctor.store.batch import Batch
from tests.unit.analyzer.memory import MemoryRun
from tests.unit.analyzer.rows import CONFIG, random_rows

pytest.importorskip("numba", reason="the compiled passes need numba: pip install 'rl-doctor[fast]'")

TOPICS = ("policy.", "ref.", "adv.", "return.", "mismatch.", "mask.", "data.", "advantage.")
SPECIAL = [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-30, -800.0, -700.5, 0.25, -0.25, 20.0, -30.0, 90.0]


class LongRun(MemoryRun):
    """The same rows as part of a run that is long enough."""

    def batches(self, columns: Any) -> Any:
        for made in super().batches(columns):
            yield Batch(made.step, made.columns, made.splits, made.info, kernels.WORTH_COMPILING)


def logprobs(seed: int, size: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    values = (-np.exp(generator.normal(-2, 3, size))).astype(np.float32)
    values[generator.integers(0, size, size // 20)] = 0.0
    return values


def tokens_of(size: int) -> Stretches:
    """Rows over columns of that size, of which stretches within and across rows are left out."""
    inner = np.unique(np.random.default_rng(5).integers(1, size - 400, 30))
    edges = np.concatenate([[0, 1], inner[inner > 1], [size - 400]]).astype(np.int64)
    starts = np.array([0, 1100, size // 2 + 200, size - 1000]), np.array([1000, size // 2 + 100, size - 1100, size - 100])
    return Stretches(edges, *starts)


NOTHING = Stretches.whole(np.zeros(1, np.int64))


def assert_close(mine: Any, theirs: Any) -> None:
    if isinstance(theirs, np.ndarray) and theirs.dtype.kind == "f":
        np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-300)
    elif isinstance(theirs, np.ndarray):
        np.testing.assert_array_equal(mine, theirs)
    elif isinstance(theirs, tuple):
        for one, other in zip(mine, theirs, strict=True):
            assert_close(one, other)
    elif hasattr(theirs, "__dataclass_fields__"):
        for field in fields(theirs):
            assert_close(getattr(mine, field.name), getattr(theirs, field.name))
    else:
        assert mine == pytest.approx(theirs, rel=1e-12, nan_ok=True)


def both(name: str, *arguments: Any, **named: Any) -> None:
    from rl_doctor.analyzer import compiled

    with np.errstate(all="ignore"):
        assert_close(getattr(compiled, name)(*arguments, **named), getattr(kernels, name)(*arguments, **named))


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize(
    "clipping",
    [kernels.Clipping(), kernels.Clipping(0.2, 0.28), kernels.Clipping(0.2, 0.2, 3.0, 20.0), kernels.Clipping(0.2, 9.0, 3.0)],
)
def test_policy(clipping: kernels.Clipping, special: bool) -> None:
    new, old, tokens = logprobs(0, 9000), logprobs(1, 9000), tokens_of(9000)
    old[:4000] = new[:4000] + np.random.default_rng(3).normal(0, 0.05, 4000).astype(np.float32)
    gain = np.random.default_rng(2).normal(size=9000).astype(np.float32)
    if special:
        new[10 : 10 + len(SPECIAL)] = SPECIAL
        gain[-3:] = [np.nan, np.inf, 0.0]
    classes = (np.arange(len(tokens.edges) - 1) % 3).astype(np.int8)
    both("policy", new, old, tokens, clipping, classes)
    both("policy", new, old, tokens, clipping, classes, advantage=gain)
    both("policy", new, old, tokens, clipping, classes, advantage=gain, weight=np.abs(gain))


@pytest.mark.parametrize("clamps", [(None, None), (20.0, 10.0)])
def test_divergence(clamps: tuple[float | None, float | None]) -> None:
    new, ref, tokens = logprobs(0, 9000), logprobs(1, 9000), tokens_of(9000)
    ref[10 : 10 + len(SPECIAL)] = SPECIAL
    both("divergence", new, ref, tokens, clamps)


@pytest.mark.parametrize("name", ["pair", "tail", "moments"])
def test_pairs(name: str) -> None:
    x, y, tokens = logprobs(0, 9000), logprobs(1, 9000), tokens_of(9000)
    y[:20] = x[:20]
    both(name, x, y, tokens)
    both(name, x[:0], y[:0], NOTHING)


def test_columns() -> None:
    values, other, tokens = logprobs(0, 9000), logprobs(1, 9000), tokens_of(9000)
    both("column", values, tokens)
    both("powers", values, tokens)
    both("powers", values[:0], NOTHING)
    both("span", values, tokens)
    both("span", np.where(np.arange(values.size) == 500, np.float32(np.nan), values), tokens)
    both("span", values[:0], NOTHING)
    both("distances", ((values, other), (other, values)), tokens)


def test_every_metric_of_a_run() -> None:
    rows = random_rows(3, rollouts=2)
    mine, theirs = (analyze(made, TOPICS).series for made in (LongRun(rows, CONFIG), MemoryRun(rows, CONFIG)))
    assert mine.keys() == theirs.keys()
    for name, series in theirs.items():
        np.testing.assert_array_equal(mine[name].counts, series.counts, err_msg=name)
        np.testing.assert_allclose(mine[name].values, series.values, rtol=1e-12, atol=1e-14, err_msg=name)


@pytest.mark.parametrize("cut", range(4))
def test_any_cut_gives_the_same_bits(cut: int) -> None:
    rows = random_rows(cut, rollouts=2)
    whole, parts = (analyze(LongRun(rows, CONFIG, cut=seed), TOPICS).series for seed in (None, cut))
    for name, series in whole.items():
        np.testing.assert_array_equal(series.values, parts[name].values, err_msg=name)


def test_short_runs_and_runs_without_numba_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels.of(kernels.WORTH_COMPILING - 1) is kernels
    assert kernels.of(kernels.WORTH_COMPILING) is not kernels
    kernels.of.cache_clear()
    monkeypatch.setattr(kernels, "find_spec", lambda _: None)
    assert kernels.of(kernels.WORTH_COMPILING) is kernels
    kernels.of.cache_clear()
    assert "numba" in sys.modules
