"""Rows that no formula gives, divisors, and rows that were compared within other groups, against plain loops."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable

import numpy as np
import pytest

from rl_doctor.analyzer.engine import analyze
from tests.unit.analyzer.memory import MemoryRun, Row

SEEDS = range(4)
Group = list[Row]
Shares = dict[str, tuple[float, int]]
DIVISOR = ["adv.divisor_slope", "adv.divisor_constant", "adv.divisor_residual"]


def std(values: list[float], ddof: int) -> float:
    return (
        math.sqrt(sum((x - statistics.fmean(values)) ** 2 for x in values) / (len(values) - ddof)) if len(values) > ddof else 0.0
    )


def grpo(values: list[float], eps: float = 1e-4) -> list[float]:
    return [(x - statistics.fmean(values)) / (std(values, 1) + eps) for x in values]


def made(seed: int, change: Callable[[random.Random, float, list[float]], float] | None = None, *, size: int = 6) -> list[Row]:
    """Responses of groups of about ``size``, some of one reward; ``change``: own advantage, those of the group -> recorded."""
    rng = random.Random(seed)
    rows: list[Row] = []
    for group in range(8):
        number = size if rng.random() < 0.8 else rng.choice([1, 2, size - 1])
        level = rng.choice([0.0, 0.3, 0.7, 1.0])
        reward = [
            float(np.float32((rng.random() < level) + rng.choice([0.0, 0.25]) * (0.0 < level < 1.0))) for _ in range(number)
        ]
        own = grpo(reward)
        for item, (value, advantage) in enumerate(zip(reward, own, strict=True)):
            told = change(rng, advantage, own) if change else advantage
            length = rng.choice([0, 1, 3])
            rows.append(
                {"step": 0, "uid": f"{group}-{item}", "group": str(group), "reward": value, "is_padding": False,
                 "advantage": [float(np.float32(told))] * length, "response_mask": [rng.random() < 0.9 for _ in range(length)]}
            )  # fmt: skip
    return rows


def recorded(row: Row) -> float:
    return next((a for a, kept in zip(row["advantage"], row["response_mask"], strict=True) if kept), math.nan)


def grouped(rows: list[Row]) -> list[Group]:
    found: dict[str, Group] = {}
    for row in rows:
        if not row["is_padding"]:
            found.setdefault(row["group"], []).append(row)
    return list(found.values())


def formulas(rows: list[Row]) -> list[Callable[[Group], list[float]]]:
    every = [row["reward"] for group in grouped(rows) for row in group]

    def scaled(scope: str, ddof: int, eps: float) -> Callable[[Group], list[float]]:
        def of(group: Group) -> list[float]:
            own = [row["reward"] for row in group]
            return [(x - statistics.fmean(own)) / (std(own if scope == "group" else every, ddof) + eps) for x in own]

        return of

    def plain(group: Group) -> list[float]:
        own = [row["reward"] for row in group]
        return [x - statistics.fmean(own) for x in own]

    every_eps = (1e-4, 1e-6, 1e-8, 1e-9)
    return [
        *(scaled(scope, ddof, eps) for scope in ("group", "batch") for ddof in (0, 1) for eps in every_eps),
        plain,
        lambda group: [x * len(group) / (len(group) - 1) for x in plain(group)],
    ]


def compared(rows: list[Row], formula: Callable[[Group], list[float]]) -> list[list[tuple[float, float]]]:
    """Recorded and expected advantage of the judged rows of each group."""
    return [
        [(recorded(row), a) for row, a in zip(group, formula(group), strict=True) if not math.isnan(recorded(row))]
        for group in grouped(rows)
        if len(group) > 1
    ]


def kinds(rows: list[Row]) -> Shares:
    """Numbers of rows of each kind, by the formula that gives most rows as they stand and sorted within groups."""
    equal = [len({row["reward"] for row in group}) == 1 for group in grouped(rows) if len(group) > 1]
    best: tuple[int, Shares] | None = None
    for formula in formulas(rows):
        groups = compared(rows, formula)
        size = statistics.fmean(abs(a) for group in groups for _, a in group)
        score, off, counts = 0, [], dict.fromkeys(("negated", "zeroed", "of_group", "equal"), 0)
        alive = 0
        for group, one_reward in zip(groups, equal, strict=True):
            within = {a: 0.01 * abs(a) + 1e-3 * size for _, a in group}
            ranked = zip(sorted(told for told, _ in group), sorted(group, key=lambda item: item[1]), strict=True)
            score += sum(abs(x - a) <= within[a] and (abs(own) > within[a] or abs(a) > within[a]) for x, (own, a) in ranked)
            for told, a in group:
                if abs(told) <= within[a] and abs(a) <= within[a]:
                    continue
                alive += 1
                if abs(told - a) <= within[a]:
                    score += 1
                    continue
                off.append(told)
                counts["negated"] += abs(a) > within[a] and abs(told + a) <= within[a]
                counts["zeroed"] += abs(told) <= within[a]
                counts["of_group"] += any(abs(told - other) <= within[other] for _, other in group)
                counts["equal"] += one_reward
        if best is None or score > best[0]:
            best = score, {"off": (len(off), alive), **{name: (n, len(off)) for name, n in counts.items()}}
    assert best is not None
    return best[1]


CHANGES: dict[str, Callable[[random.Random, float, list[float]], float] | None] = {
    "right": None,
    "negated": lambda rng, own, _: -own if rng.random() < 0.3 else own,
    "zeroed": lambda rng, own, _: 0.0 if rng.random() < 0.3 else own,
    "of group": lambda rng, own, every: rng.choice(every) if rng.random() < 0.4 else own,
    "noise": lambda rng, _, __: rng.gauss(0.0, 1.0),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_rows_that_are_off_equal_plain_loops(kind: str) -> None:
    for seed in SEEDS:
        rows = made(seed, CHANGES[kind])
        found = analyze(MemoryRun(rows, cut=seed), ["advantage."]).series
        for name, (number, whole) in kinds(rows).items():
            series = found[f"advantage.rows_{name if name == 'off' else f'off_{name}'}_frac"]
            assert int(series.counts[0]) == whole, (seed, name)
            assert math.isnan(series.values[0]) if whole == 0 else series.values[0] == pytest.approx(number / whole), (seed, name)


def test_rows_with_a_factor() -> None:
    rows = made(1, lambda _, own, __: 0.5 * own if own < 0.0 else own)
    found = analyze(MemoryRun(rows), ["advantage."]).series
    assert found["advantage.rows_off_scaled_frac"].values[0] == 1.0
    assert found["advantage.rows_off_factor"].values[0] == pytest.approx(0.5, rel=1e-6)
    below = sum(recorded(row) < 0.0 for group in grouped(rows) if len(group) > 1 for row in group)
    assert found["advantage.rows_off_scaled_frac"].counts[0] == below


@pytest.mark.parametrize(("slope", "constant"), [(1.0, 0.0), (1.0, 0.3), (0.5, 0.0), (0.0, 2.0), (1.5, 0.2)])
def test_what_advantages_are_divided_by(slope: float, constant: float) -> None:
    for seed in SEEDS:
        rows = made(seed)
        for group in grouped(rows):
            own = [row["reward"] for row in group]
            for row in group:
                by = slope * std(own, 1) + constant
                row["advantage"] = [(row["reward"] - statistics.fmean(own)) / by if by else 0.0] * len(row["advantage"])
        found = analyze(MemoryRun(rows, cut=seed), DIVISOR).series
        assert found["adv.divisor_slope"].values[0] == pytest.approx(slope, abs=1e-5)
        assert found["adv.divisor_constant"].values[0] == pytest.approx(constant, abs=1e-5)
        assert found["adv.divisor_residual"].values[0] < 1e-9


def test_noise_has_no_divisor() -> None:
    found = analyze(MemoryRun(made(0, CHANGES["noise"])), DIVISOR).series
    assert math.isnan(found["adv.divisor_slope"].values[0])
    assert found["adv.divisor_residual"].values[0] > 0.1


def left(rows: list[Row], *, free: bool) -> float:
    """What lines leave over, by least squares of each group."""
    over, whole = 0.0, 0.0
    for group in grouped(rows):
        own = [row["reward"] for row in group]
        judged = [(x - statistics.fmean(own), recorded(row)) for x, row in zip(own, group, strict=True)]
        judged = [(x, a) for x, a in judged if not math.isnan(a)]
        if len(judged) < 3 or len({x for x, _ in judged}) == 1:
            continue
        x, a = (np.array(part) for part in zip(*judged, strict=True))
        table = np.stack([x, np.ones(len(x))] if free else [x], axis=1)
        over += float(np.sum((a - table @ np.linalg.lstsq(table, a, rcond=None)[0]) ** 2))
        whole += float(np.sum(a * a))
    return over / whole


@pytest.mark.parametrize("kind", CHANGES)
def test_what_lines_leave_over_equals_plain_loops(kind: str) -> None:
    for seed in SEEDS:
        rows = made(seed, CHANGES[kind])
        found = analyze(MemoryRun(rows, cut=seed), ["adv.mean_line_left", "adv.line_left"]).series
        assert found["adv.line_left"].values[0] == pytest.approx(left(rows, free=True), abs=1e-9)
        assert found["adv.mean_line_left"].values[0] == pytest.approx(left(rows, free=False), abs=1e-9)


def equal_rows(advantages: list[list[float]]) -> list[Row]:
    return [
        {"step": 0, "uid": f"{group}-{item}", "group": str(group), "reward": 0.5, "advantage": [value]}
        for group, values in enumerate(advantages)
        for item, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("advantages", "share", "count"),
    [
        ([[1.0, -1.0, 1.0, -1.0], [0.0] * 4], 1.0, 1),
        ([[math.sqrt(0.75)] * 4, [0.3] * 4], 0.5, 2),
        ([[0.0] * 4], math.nan, 0),
        ([[2.0]], math.nan, 0),
    ],
)
def test_groups_of_one_reward_that_were_divided_by_what_rounding_leaves(
    advantages: list[list[float]], share: float, count: int
) -> None:
    name = "adv.equal_groups_unit_frac"
    series = analyze(MemoryRun(equal_rows(advantages)), [name]).series[name]
    assert int(series.counts[0]) == count
    np.testing.assert_array_equal(series.values, [share])


REWARDS: dict[str, Callable[[random.Random], float]] = {
    "binary": lambda rng: float(rng.random() < 0.4),
    "of three parts": lambda rng: float(np.float32(float(rng.random() < 0.5) + 0.2 * (rng.random() < 0.7))),
    "continuous": lambda rng: float(np.float32(rng.gauss(0.0, 1.0))),
}
ESTIMATORS: dict[str, Callable[[list[float], list[float]], list[float]]] = {
    "grpo": lambda own, _: grpo(own),
    "dr_grpo": lambda own, _: [x - statistics.fmean(own) for x in own],
    "rloo": lambda own, _: [(x - statistics.fmean(own)) * len(own) / (len(own) - 1) for x in own],
    "batch": lambda own, every: [(x - statistics.fmean(own)) / std(every, 0) for x in own],
}


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("kind", REWARDS)
def test_rows_that_were_compared_within_other_groups(kind: str, estimator: str) -> None:
    """By the rows themselves: those whose values came from a group of others, against those that were moved among rows."""
    name = "adv.compared_frac"
    for seed in SEEDS:
        rng = random.Random(f"{seed}-{kind}")
        reward = [REWARDS[kind](rng) for _ in range(96)]
        moved = [*range(3, 96), *range(3)]
        advantage = [0.0] * 96
        for start in range(0, 96, 8):
            block = moved[start : start + 8]
            for row, value in zip(block, ESTIMATORS[estimator]([reward[row] for row in block], reward), strict=True):
                advantage[row] = float(np.float32(value))
        shuffled = rng.sample(advantage, 96)

        def share(values: list[float], reward: list[float] = reward) -> float:
            rows = [
                {"step": 0, "uid": str(row), "group": f"{row // 8:02}", "reward": reward[row], "advantage": [values[row]]}
                for row in range(96)
            ]
            whole, parts = (analyze(MemoryRun(rows, cut=cut), [name]).series[name] for cut in (None, 3))
            assert whole.values.tobytes() == parts.values.tobytes()
            return float(whole.values[0])

        assert share(advantage) > 0.75
        assert share(shuffled) < 0.4


def _equal(group: int, advantage: float) -> list[Row]:
    return [
        {"step": 0, "uid": f"{group}-{item}", "group": str(group), "reward": 0.1, "is_padding": False,
         "advantage": [advantage], "response_mask": [True]}
        for item in range(8)
    ]  # fmt: skip


def _off(rows: list[Row]) -> list[float]:
    name = "advantage.rows_off_frac"
    found = analyze(MemoryRun(rows), [name]).series.get(name)
    return [] if found is None else found.values.tolist()


def test_what_float32_leaves_of_a_group_with_one_reward_is_none_of_its_rows() -> None:
    noise = 7.45e-9 / (7.45e-9 + 1e-6)  # one unit in the last place of .1, over its own deviation and epsilon
    differ = [row | {"advantage": [value], "response_mask": [True]}
              for row, value in zip(_equal(9, 0.0), grpo([0.0, 1.0] * 4), strict=True)]  # fmt: skip
    for place, row in enumerate(differ):
        row["reward"] = float(place % 2)
    assert _off([*differ, *_equal(1, noise)]) == [0.0]
    assert _off([*differ, *_equal(1, 0.5)]) == [0.5]
    assert all(map(math.isnan, _off(_equal(1, noise)))), "where no rewards differ nothing can be compared"
