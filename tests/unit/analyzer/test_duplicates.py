"""Identical responses to different prompts."""

from __future__ import annotations

import math
from itertools import combinations

import pytest

from rl_doctor.analyzer.engine import analyze
from tests.unit.analyzer.memory import MemoryRun, Row
from tests.unit.analyzer.rows import by_rollout, random_rows

NAME = "data.duplicate_between_frac"


def plain(rows: list[Row]) -> float:
    told = [row for row in rows if row["group"] is not None and row["token_id"]]
    pairs = [(a["token_id"] == b["token_id"]) for a, b in combinations(told, 2) if a["group"] != b["group"]]
    return sum(pairs) / len(pairs) if pairs else math.nan


@pytest.mark.parametrize("seed", range(6))
def test_equals_counting_pairs(seed: int) -> None:
    rows = [row | {"token_id": [token % 2 for token in row["token_id"]]} for row in random_rows(seed)]
    series = analyze(MemoryRun(rows, cut=seed), [NAME]).series[NAME]
    expected = by_rollout(rows)
    assert series.values.tolist() == pytest.approx([plain(expected[step]) for step in series.steps.tolist()], nan_ok=True)


def test_duplicates_within_a_group_do_not_count() -> None:
    rows = [{"step": 0, "uid": str(i), "group": "ab"[i // 2], "token_id": [7, i // 2]} for i in range(4)]
    series = analyze(MemoryRun(rows), [NAME]).series[NAME]
    assert (series.values[0], series.counts[0]) == (0.0, 4)
