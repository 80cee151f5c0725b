"""Metrics of stamps, of what a version of lag costs, and of the first ratio, against plain Python."""

from __future__ import annotations

import math
import random

import pytest

from rl_doctor.analyzer.engine import analyze
from rl_doctor.schema import RunConfig
from tests.unit.analyzer.memory import MemoryRun, Row

CONFIG = RunConfig(clip_low=0.2, clip_high=0.2, epochs=2, minibatches=2)


def _rows(seed: int = 0, n: int = 40) -> list[Row]:
    rng = random.Random(seed)
    rows = []
    for index in range(n):
        size = rng.randint(4, 12)
        old = [-rng.expovariate(0.5) - 0.01 for _ in range(size)]
        lag, late = rng.randint(0, 3), index % 4
        moved = [0.0] * size if late == 0 and index % 8 else [rng.gauss(0.0, 0.3) for _ in range(size)]
        rows.append({
            "step": 1, "epoch": late // 2, "minibatch": late % 2, "old_logprob": old,
            "logprob": [a + b for a, b in zip(old, moved, strict=True)],
            "rollout_logprob": [a - abs(rng.gauss(0.0, 0.01 + 0.02 * lag)) for a in old],
            "policy_version": 9, "weight_version": None if index == 7 else 11 if index == 8 else 9 - lag,
            "first_weight_version": 9 - lag - index % 2, "rank": index % 2, "group": f"g{index % 5}",
        })  # fmt: skip
    return rows


def _value(name: str, rows: list[Row]) -> float:
    return float(analyze(MemoryRun(rows, CONFIG), [name]).series[name].values[0])


def _single(value: float) -> float:
    import numpy as np

    return float(np.float32(value))


def _x(row: Row) -> list[float]:
    return [_single(a) - _single(b) for a, b in zip(row["logprob"], row["old_logprob"], strict=True)]


def test_stamps_are_counted() -> None:
    rows = _rows()
    known = [row for row in rows if row["weight_version"] is not None]
    assert _value("version.missing_frac", rows) == 1 / len(rows)
    assert _value("version.ahead_frac", rows) == 1 / len(known)
    assert _value("stale.behind_frac", rows) == sum(row["weight_version"] < 9 for row in known) / len(known)
    assert _value("version.distinct_frac", rows) == len({row["weight_version"] for row in known}) / len(known)
    assert _value("version.weight_max", rows) == 11
    assert _value("version.policy_max", rows) == 9
    mixed = [row["first_weight_version"] < row["weight_version"] for row in known]
    assert _value("stale.mixed_frac", rows) == sum(mixed) / len(mixed)


def test_the_slope_on_the_lag_is_that_of_weighted_least_squares() -> None:
    rows = [row for row in _rows() if row["weight_version"] not in (None, 11)]
    weight = [len(row["old_logprob"]) for row in rows]
    lag = [9 - row["weight_version"] for row in rows]
    size = [
        sum(abs(_single(a) - _single(b)) for a, b in zip(row["old_logprob"], row["rollout_logprob"], strict=True)) / n
        for row, n in zip(rows, weight, strict=True)
    ]
    total = sum(weight)
    centre, level = (sum(w * v for w, v in zip(weight, part, strict=True)) / total for part in (lag, size))
    spread = sum(w * (v - centre) ** 2 for w, v in zip(weight, lag, strict=True))
    slope = sum(w * (v - centre) * (s - level) for w, v, s in zip(weight, lag, size, strict=True)) / spread
    left = sum(w * (s - level - slope * (v - centre)) ** 2 for w, v, s in zip(weight, lag, size, strict=True))
    assert _value("stale.gap_slope", rows) == pytest.approx(slope, rel=1e-9)
    assert _value("stale.gap_slope_error", rows) == pytest.approx(math.sqrt(left / spread / (len(rows) - 2)), rel=1e-9)


def test_the_first_ratio_is_graded_by_bias_spread_and_rows() -> None:
    rows = _rows()
    first = [row for row in rows if row["epoch"] == row["minibatch"] == 0]
    every = [value for row in first for value in _x(row)]
    bias = sum(every) / len(every)
    assert _value("mismatch.first_bias", rows) == pytest.approx(bias, rel=1e-9)
    deviation = math.sqrt(sum(value * value for value in every) / len(every) - bias * bias)
    assert _value("mismatch.first_std", rows) == pytest.approx(deviation, rel=1e-9)
    differ = [sum(map(abs, _x(row))) > 0 for row in first]
    assert 0 < sum(differ) < len(differ)
    assert _value("mismatch.first_rows_frac", rows) == sum(differ) / len(differ)


def test_updates_are_told_apart() -> None:
    rows = _rows()
    found = analyze(MemoryRun(rows, CONFIG), ["policy.outside_by.update."]).series
    assert sorted(found) == [f"policy.outside_by.update.{one}.{other}" for one in (0, 1) for other in (0, 1)]
    for name, series in found.items():
        epoch, minibatch = map(int, name.split(".")[-2:])
        part = [x for row in rows if (row["epoch"], row["minibatch"]) == (epoch, minibatch) for x in _x(row)]
        assert series.values[0] == sum(not 0.8 <= math.exp(x) <= 1.2 for x in part) / len(part)


def test_values_of_half_precision_are_counted() -> None:
    rows = [{"step": 1, "logprob": [-0.5, -1.25, -0.3333333, 0.0], "old_logprob": [-0.1] * 4}]
    assert _value("half.logprob_frac", rows) == pytest.approx(2 / 3)
    assert _value("half.old_logprob_frac", rows) == 0.0


def test_a_group_that_comes_back_is_told_from_a_new_one_however_a_step_is_split() -> None:
    rows = [{**row, "step": step, "group": name} for step, row, name in zip(
        [1, 1, 2, 2, 3], _rows(n=5), ["a", "b", "a", "c", "c"], strict=True
    )]  # fmt: skip
    for row in rows:
        row["epoch"] = row["minibatch"] = 0
    found = analyze(MemoryRun(rows, CONFIG), ["mismatch.abs_by.group_seen."]).series
    assert found["mismatch.abs_by.group_seen.0"].steps.tolist() == [1, 2]
    assert found["mismatch.abs_by.group_seen.1"].steps.tolist() == [2, 3]
    counts = [len(row["old_logprob"]) for row in rows]
    assert found["mismatch.abs_by.group_seen.1"].counts.tolist() == [counts[2], counts[4]]


def test_groups_that_are_new_in_a_step_of_several_generation_batches_are_new_in_any_order() -> None:
    rows = [{**row, "step": step, "rollout_step": rollout, "group": "a"} for step, rollout, row in zip(
        [2, 2, 3], [1, 2, 3], _rows(n=3), strict=True
    )]  # fmt: skip
    for row in rows:
        row["epoch"] = row["minibatch"] = 0
    for order in (rows, [rows[1], rows[0], *rows[2:]]):
        seen = analyze(MemoryRun(order, CONFIG), ["mismatch.abs_by.group_seen."]).series
        assert seen["mismatch.abs_by.group_seen.0"].steps.tolist() == [2]
        assert seen["mismatch.abs_by.group_seen.1"].steps.tolist() == [3]
