"""What the advantages and penalties of a critic's run are held against, from plain loops over its tokens."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable

import numpy as np
import pytest

from rl_doctor.analyzer.engine import analyze
from rl_doctor.analyzer.registry import metrics
from rl_doctor.schema import RunConfig
from tests.unit.analyzer.memory import MemoryRun, Row
from tests.unit.analyzer.rows import single

GAMMA, LAM = 0.97, 0.9
SEEDS = range(4)
Triples = list[tuple[Row, int, int]]
CONSTANTS = {f"{what}.gae_{name}" for what in ("advantage", "return") for name in ("gamma", "lam", "scale")} & metrics().keys()
CORRELATIONS = {
    "advantage.return_corr": (0, 0, 0), "advantage.return_next_corr": (0, 1, 0), "advantage.return_previous_corr": (1, 0, 1),
    "advantage.late_corr": (1, 0, 0), "advantage.early_corr": (0, 1, 1),
}  # fmt: skip
"""Which token of a pair of neighbours the advantage, the return and the old value are taken from."""


def trained(row: Row) -> list[int]:
    return [] if row["is_padding"] else [place for place, kept in enumerate(row["response_mask"]) if kept]


def _generalised(row: Row) -> tuple[list[float], list[float]]:
    """GAE and returns by the backward recursion over the trained tokens, NaN elsewhere."""
    size = len(row["old_value"])
    advantage, returns = [math.nan] * size, [math.nan] * size
    ahead = value = 0.0
    for place in reversed([place for place, kept in enumerate(row["response_mask"]) if kept]):
        delta = row["token_reward"][place] + GAMMA * value - row["old_value"][place]
        ahead = delta + GAMMA * LAM * ahead
        value = row["old_value"][place]
        advantage[place], returns[place] = ahead, ahead + value
    return advantage, returns


def critic_rows(seed: int, *, kind: str = "right", steps: int = 2, responses: int = 24) -> list[Row]:
    """Ragged responses of several turns; some empty, some without a trained token, some that only fill the batch."""
    rng = random.Random(f"{seed}-{kind}")
    rows: list[Row] = []
    for step in range(steps):
        for item in range(responses):
            size = rng.choice([0, 1, 2, 7, 12, 15])
            turns = [rng.random() < 0.8] * size if rng.random() < 0.2 else [rng.random() < 0.75 for _ in range(size)]
            old = [-rng.expovariate(1.0) for _ in range(size)]
            reference = [single(x + rng.gauss(0.0, 0.3)) for x in old]
            reward = [single(-0.05 * (x - y) * kept) for x, y, kept in zip(old, reference, turns, strict=True)]
            places = [place for place, kept in enumerate(turns) if kept]
            if places:
                reward[places[-1]] = single(reward[places[-1]] + rng.choice([0.0, 1.0]))
            score = single(rng.gauss(0.0, 1.0))
            row: Row = {
                "step": step, "uid": f"{step}-{item}", "is_padding": rng.random() < 0.1, "response_mask": turns,
                "old_value": [single(rng.gauss(0.3, 0.4)) for _ in range(size)], "token_reward": reward,
                "old_logprob": [single(x) for x in old], "ref_logprob": reference, "score": score,
                "reward": single(score - 0.02 * sum(x - y for x, y in zip(old, reference, strict=True)) + rng.gauss(0.0, 0.01)),
            }  # fmt: skip
            advantage, returns = _generalised(row)
            if kind == "unrelated":
                advantage, returns = ([rng.gauss(0.0, 1.0) for _ in range(size)] for _ in range(2))
            row["advantage"] = [single(0.2 + 1.7 * x) for x in advantage]
            row["return"] = [single(x) for x in returns]
            rows.append(row)
    return rows


def _neighbours(rows: list[Row]) -> Triples:
    return [
        (row, place, after)
        for row in rows
        for place, after in zip(trained(row)[:-1], trained(row)[1:], strict=True)
        if all(math.isfinite(row[name][at]) for name in ("advantage", "return") for at in (place, after))
    ]


def _of_advantages(rows: list[Row]) -> tuple[np.ndarray, np.ndarray, float]:
    pairs = _neighbours(rows)
    x = [
        [1.0, row["advantage"][after], row["old_value"][after], row["token_reward"][place] - row["old_value"][place]]
        for row, place, after in pairs
    ]
    y = np.array([row["advantage"][place] for row, place, _ in pairs])
    return np.array(x), y, float(np.sqrt(np.sum((y - y.mean()) ** 2)))


def _of_returns(rows: list[Row]) -> tuple[np.ndarray, np.ndarray, float]:
    pairs = _neighbours(rows)
    x = [[row["return"][after] - row["old_value"][after], row["old_value"][after]] for row, _, after in pairs]
    y = np.array([row["return"][place] - row["token_reward"][place] for row, place, _ in pairs])
    size = math.sqrt(sum((row["return"][place] - row["old_value"][place]) ** 2 for row, place, _ in pairs))
    return np.array(x), y, size


def _fitted(name: str, rows: list[Row]) -> float:
    """A constant of the recursion, or what it leaves over, by a solver of least squares over a table of tokens."""
    of_advantage = name.startswith("advantage")
    x, y, size = _of_advantages(rows) if of_advantage else _of_returns(rows)
    found = np.linalg.lstsq(x, y, rcond=None)[0]
    left = float(np.sqrt(np.sum((y - x @ found) ** 2))) / size
    both, value, scale = found[1:] if of_advantage else (*found, 1.0)
    told = {"gamma": value / scale, "lam": both / (value / scale), "scale": scale, "residual": left}
    return float(told[name.rpartition("_")[2]]) if left <= 0.01 or name.endswith("residual") else math.nan


def _correlated(name: str, rows: list[Row]) -> float:
    pairs = (
        [(row, place, place) for row in rows for place in trained(row)] if name == "advantage.return_corr" else _neighbours(rows)
    )
    own, of_return, of_value = CORRELATIONS[name]
    x = [row["advantage"][places[own]] for row, *places in pairs]
    y = [row["return"][places[of_return]] - row["old_value"][places[of_value]] for row, *places in pairs]
    return statistics.correlation(x, y)


def _first(name: str, rows: list[Row]) -> float:
    pairs = [(row, places[0]) for row in rows if (places := trained(row))]
    x = [row["advantage"][place] for row, place in pairs]
    y = [row["return"][place] - row["old_value"][place] for row, place in pairs]
    return statistics.correlation(sorted(x), sorted(y)) if "sorted" in name else statistics.correlation(x, y)


FORMS: dict[str, Callable[[float], float]] = {
    "k1": lambda x: x, "k2": lambda x: 0.5 * x * x, "k3": lambda x: math.expm1(-x) + x, "abs": abs,
}  # fmt: skip


def _penalty(name: str, rows: list[Row]) -> float:
    """The multiple of an estimator in the rewards of trained tokens but the last of each response."""
    _, what, form = name.replace("penalty.", "penalty_").split("_")
    pairs = [
        (row["token_reward"][place], FORMS[form](row["old_logprob"][place] - row["ref_logprob"][place]))
        for row in rows
        for place in trained(row)[:-1]
    ]
    product, square = sum(r * f for r, f in pairs), sum(f * f for _, f in pairs)
    share = product**2 / (sum(r * r for r, _ in pairs) * square)
    return float(share if what == "explained" else -product / square)


def _penalty_of_response(name: str, rows: list[Row]) -> float:
    form, what = name.removeprefix("penalty.response_").split("_")
    pairs = [
        (
            sum(FORMS[form](row["old_logprob"][place] - row["ref_logprob"][place]) for place in trained(row)),
            row["reward"] - row["score"],
        )
        for row in rows
        if not row["is_padding"] and row["reward"] != row["score"]
    ]
    x, y = (list(part) for part in zip(*pairs, strict=True))
    return -statistics.correlation(x, y) if what == "corr" else -statistics.linear_regression(x, y).slope


REFERENCES: dict[str, Callable[[str, list[Row]], float]] = {
    **dict.fromkeys(sorted(CONSTANTS | {"advantage.gae_residual", "return.gae_residual"}), _fitted),
    **dict.fromkeys(CORRELATIONS, _correlated),
    **dict.fromkeys(("advantage.first_corr", "advantage.first_sorted_corr"), _first),
    **{f"penalty.{what}_{form}": _penalty for what in ("explained", "coef") for form in FORMS},
    **{f"penalty.response_{form}_{what}": _penalty_of_response for what in ("corr", "coef") for form in ("k1", "k3")},
}


@pytest.mark.parametrize("kind", ["right", "unrelated"])
@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_equals_plain_loops(name: str, kind: str) -> None:
    checked = 0
    for seed in SEEDS:
        rows = critic_rows(seed, kind=kind)
        series = analyze(MemoryRun(rows, RunConfig(gamma=GAMMA, lam=LAM), cut=seed), [name]).series[name]
        for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True):
            wanted = REFERENCES[name](name, [row for row in rows if row["step"] == step])
            if math.isnan(value) and math.isnan(wanted):
                continue
            close = 1e-6 if name.endswith("residual") else 1e-9  # a residual of float32's rounding is a difference of sums
            assert math.isclose(value, wanted, rel_tol=close, abs_tol=close), (seed, step, value, wanted)
            checked += 1
    assert checked or (kind == "unrelated" and name in CONSTANTS)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_constants_come_back(seed: int) -> None:
    rows = critic_rows(seed, steps=1)
    found = analyze(MemoryRun(rows), sorted(CONSTANTS)).series
    told = {name: float(series.values[0]) for name, series in found.items()}
    assert told["advantage.gae_scale"] == pytest.approx(1.7, abs=1e-4)
    for what in ("advantage", "return"):
        assert told[f"{what}.gae_gamma"] == pytest.approx(GAMMA, abs=1e-4)
        assert told[f"{what}.gae_lam"] == pytest.approx(LAM, abs=1e-4)


@pytest.mark.parametrize("cut", range(4))
@pytest.mark.parametrize("kind", ["right", "unrelated"])
def test_any_cut_and_order_of_a_critics_rows_give_the_same_bits(kind: str, cut: int) -> None:
    rows = critic_rows(7, kind=kind)
    whole, parts = (analyze(MemoryRun(rows, cut=seed), sorted(REFERENCES)).series for seed in (None, cut))
    assert whole.keys() == parts.keys() == REFERENCES.keys()
    for name, series in whole.items():
        assert series.values.tobytes() == parts[name].values.tobytes(), name
        assert series.counts.tolist() == parts[name].counts.tolist(), name


def test_rows_without_trained_tokens_tell_nothing() -> None:
    rows = [row | {"response_mask": [False] * len(row["response_mask"])} for row in critic_rows(0, steps=1)]
    for name, series in analyze(MemoryRun(rows), sorted(REFERENCES)).series.items():
        if not name.startswith("penalty.response"):
            assert np.isnan(series.values).all(), name
