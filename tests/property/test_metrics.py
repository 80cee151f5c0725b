"""The same bits for any cut into batches and any order of the rows of a step."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_doctor.analyzer.engine import analyze
from tests.unit.analyzer.memory import MemoryRun
from tests.unit.analyzer.rows import CONFIG, random_rows

TOPICS = (
    "policy.", "ref.", "adv.", "return.", "advantage.", "reward.", "group.", "length.", "turns.", "stale.", "optim.", "update.",
    "numerics.",
)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(data=st.integers(0, 2**32), cut=st.integers(0, 2**32), spoiled=st.booleans())
def test_any_cut_and_order_give_the_same_bits(data: int, cut: int, *, spoiled: bool) -> None:
    rows = random_rows(data, rollouts=2, spoiled=spoiled)
    whole, parts = (analyze(MemoryRun(rows, CONFIG, cut=seed), TOPICS).series for seed in (None, cut))
    assert whole.keys() == parts.keys()
    assert len(whole) > 150
    for name, series in whole.items():
        other = parts[name]
        assert series.steps.tolist() == other.steps.tolist(), name
        assert series.counts.tolist() == other.counts.tolist(), name
        np.testing.assert_array_equal(series.values, other.values, err_msg=name, strict=True)
        assert series.values[~np.isnan(series.values)].tobytes() == other.values[~np.isnan(other.values)].tobytes(), name


@settings(max_examples=25, deadline=None)
@given(data=st.integers(0, 2**32))
def test_what_stands_at_masked_positions_changes_no_bit(data: int) -> None:
    clean, spoiled = random_rows(data, spoiled=False), random_rows(data, spoiled=False)
    for row in spoiled:
        for name in ("logprob", "old_logprob", "ref_logprob", "advantage", "entropy", "old_value", "is_weight"):
            row[name] = [x if kept else float("nan") for x, kept in zip(row[name], row["response_mask"], strict=True)]
    mine, theirs = (analyze(MemoryRun(rows, CONFIG), TOPICS[:5]).series for rows in (clean, spoiled))
    for name, series in mine.items():
        np.testing.assert_array_equal(series.values, theirs[name].values, err_msg=name)
