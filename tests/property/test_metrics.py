"""The same bits for any cut into batches and any order of the rows of a step."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_doctor.analyzer.engine import analyze
from rl_doctor.analyzer.registry import metrics
from rl_doctor.schema import RunInfo
from tests.property.whole_rows import filled
from tests.unit.analyzer.memory import MemoryRun, Row
from tests.unit.analyzer.rows import CONFIG, random_rows

TOPICS = ("policy.", "ref.", "adv.", "return.", "advantage.")
ONLY_LOGGED = {name for name, known in metrics().items() if name in known.needs}
"""Metrics that no rows give."""
KEYED = {name for name, known in metrics().items() if known.keyed}
"""Metrics that give a series for each name among the items; few rows may have no item with a name."""


class Described(MemoryRun):
    """A run in memory that tells what metrics of masks need: the EOS and padding tokens."""

    def __init__(self, rows: list[Row], cut: int | None) -> None:
        super().__init__(rows, CONFIG, cut)

    @property
    def info(self) -> RunInfo:
        return RunInfo(config=CONFIG, eos_token_ids=(0,), pad_token_id=1)


@settings(max_examples=8, deadline=None)
@given(data=st.integers(0, 2**32), cut=st.integers(0, 2**32), spoiled=st.booleans())
def test_any_cut_and_order_give_the_same_bits(data: int, cut: int, *, spoiled: bool) -> None:
    rows = filled(data, spoiled=spoiled)
    wanted = sorted({name.partition(".")[0] + "." for name in metrics()})
    whole, parts = (analyze(Described(rows, cut=seed), wanted).series for seed in (None, cut))
    assert whole.keys() == parts.keys()
    assert metrics().keys() - whole.keys() <= ONLY_LOGGED | KEYED
    for name, series in whole.items():
        other = parts[name]
        assert series.steps.tolist() == other.steps.tolist(), name
        assert series.counts.tolist() == other.counts.tolist(), name
        np.testing.assert_array_equal(series.values, other.values, err_msg=name, strict=True)
        assert series.values[~np.isnan(series.values)].tobytes() == other.values[~np.isnan(other.values)].tobytes(), name


def test_every_metric_of_names_gives_some() -> None:
    names = [name for seed in range(3) for name in analyze(Described(filled(seed), None), sorted(KEYED)).series]
    assert {known for known in KEYED if any(name.startswith(known) for name in names)} == KEYED


@settings(max_examples=25, deadline=None)
@given(data=st.integers(0, 2**32))
def test_what_stands_at_masked_positions_changes_no_bit(data: int) -> None:
    clean, spoiled = random_rows(data, spoiled=False), random_rows(data, spoiled=False)
    for row in spoiled:
        for name in ("logprob", "old_logprob", "ref_logprob", "advantage", "entropy", "old_value", "is_weight"):
            row[name] = [x if kept else float("nan") for x, kept in zip(row[name], row["response_mask"], strict=True)]
    mine, theirs = (analyze(MemoryRun(rows, CONFIG), TOPICS).series for rows in (clean, spoiled))
    for name, series in mine.items():
        np.testing.assert_array_equal(series.values, theirs[name].values, err_msg=name)
