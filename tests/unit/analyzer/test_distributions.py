"""Histograms of values of tokens against counting in plain Python, by the bits of each value."""

from __future__ import annotations

import math
import struct
from collections import Counter

import numpy as np
import pytest

from rl_doctor.analyzer.engine import analyze
from rl_doctor.analyzer.histogram import Histogram
from rl_doctor.analyzer.registry import metrics
from rl_doctor.rules.registry import rules
from tests.unit.analyzer.memory import MemoryRun, Row
from tests.unit.analyzer.reference import tokens
from tests.unit.analyzer.rows import by_step, random_rows, single

NAMES = tuple(name for name in metrics() if name.startswith("distribution."))


def top(value: float) -> int:
    """The upper half of the bits of a float32."""
    return struct.unpack("<I", struct.pack("<f", single(value)))[0] >> 16


def possible(value: float) -> bool:
    return math.isfinite(value) and value < 1e-3


def values(name: str, rows: list[Row]) -> list[float]:
    """What the metric is about, of the tokens of one step."""
    if name == "distribution.ref_log_ratio":
        return [ref - new for ref, new in tokens(rows, "ref_logprob", "logprob")]
    if name == "distribution.rollout_log_ratio":
        return [old - rollout for old, rollout in tokens(rows, "old_logprob", "rollout_logprob") if possible(old)]
    return tokens(rows, name.partition(".")[2])


def sampled(seed: int) -> list[Row]:
    """Rows whose engine gives every token a logprob, and no length cuts the responses."""
    rows = [{**row, "response_length": None} for row in random_rows(seed)]
    for row in rows:
        row["rollout_logprob"] = [min(x, -0.1) if math.isfinite(x) else -0.5 for x in row["rollout_logprob"]]
    return rows


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(3))
def test_counts_are_those_of_plain_python(name: str, seed: int) -> None:
    rows = sampled(seed)
    found = analyze(MemoryRun(rows, cut=seed), [name]).histograms[name]
    expected = by_step(rows)
    assert list(found) == list(expected)
    for step, histogram in found.items():
        wanted = values(name, expected[step])
        numbers = [value for value in wanted if not math.isnan(value)]
        assert histogram.nan == len(wanted) - len(numbers)
        assert dict(
            zip([top(centre) for centre in histogram.centres.tolist()], histogram.counts.tolist(), strict=True)
        ) == Counter(map(top, numbers))


@pytest.mark.parametrize("name", NAMES)
def test_the_value_is_the_median(name: str) -> None:
    rows = sampled(1)
    series = analyze(MemoryRun(rows), [name]).series[name]
    for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True):
        wanted = sorted(values(name, by_step(rows)[step]))
        if wanted and not any(map(math.isnan, wanted)):
            assert value == pytest.approx(wanted[len(wanted) // 2], rel=0.004)


def test_old_entropy_serves_where_entropy_is_not_recorded() -> None:
    rows = [{name: value for name, value in row.items() if name != "entropy"} for row in random_rows(0)]
    found = analyze(MemoryRun(rows), ["distribution.entropy"]).histograms["distribution.entropy"]
    assert {step: one.count for step, one in found.items()} == {
        step: len(tokens(own, "old_entropy")) for step, own in by_step(rows).items()
    }


def test_no_rule_asks_for_them() -> None:
    asked = {name for rule in rules().values() for name in (*rule.needs, *rule.optional)}
    assert not asked & {*NAMES, "distribution."}


def test_centres_lie_in_their_bins() -> None:
    made = np.array([-np.inf, -3.3, -1e-20, -0.0, 0.0, 1e-30, 0.7, 0.7001, 5e8, np.inf, np.nan])
    histogram = Histogram.of(made)
    again = Histogram.of(histogram.centres)
    assert again.keys.tolist() == histogram.keys.tolist()
    assert histogram.centres.tolist() == sorted(histogram.centres.tolist())
    assert Histogram.zero().centres.size == 0
    assert [histogram.centres[0], histogram.centres[-1]] == [-np.inf, np.inf]
