"""Responses worth looking at: the samples of a finding, the worst and the median one of a step, and a control."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import real_rows
from rl_doctor.report.model import Finding
from rl_doctor.store.lookup import rows_of_step, sequence_of
from rl_doctor.store.rows import Rows
from rl_doctor.store.run import Run
from rl_doctor.views.quantities import QUANTITIES, Quantity, quantity_of, row_means
from rl_doctor.views.rows import batch_of, count, number, numbers, word

Floats = NDArray[np.float64]
Kind = Literal["sample", "worst", "largest", "median", "control"]

MOST_SAMPLES: Final = 6
REWARD: Final = "reward"
LENGTH: Final = "length"


@dataclass(frozen=True, slots=True)
class Pick:
    """A response worth looking at.

    Attributes:
        kind: why: a sample of the finding; the worst one of the step (the largest, where no finding says what is bad) or the
            median one; or a control from before the onset.
        by: what it was picked by: ``reward``, ``length`` or the name of a quantity; for a sample the finding's metric.
        step: its step.
        sequence: its number in the run.
        value: of ``by``; None where unknown.
        reward: its reward, or None.
        length: its number of response tokens, or None.
        group: its group, or None.
        uid: its identity, or None.
    """

    kind: Kind
    by: str
    step: int
    sequence: int
    value: float | None
    reward: float | None = None
    length: int | None = None
    group: str | None = None
    uid: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Ranked:
    """The rows of a step that are no padding, with what they are ranked by."""

    rows: Rows
    values: Floats | None


def worst(run: Run, step: int, finding: Finding | None, metric: str | None) -> int | None:
    """Number of the response of a step that shows a finding most, else of the one with the lowest reward; None without either."""
    by, high = ranking(run, finding, metric)
    here = ranked(run, step, by)
    picks = [] if here is None else list(picked(here, step, by, high=high))
    return picks[0].sequence if picks else None


def offered_of(run: Run) -> dict[str, str]:
    """What responses can be ranked by, with the metric that stands for it in links."""
    found = {name: f"{name}.mean" for name, column in ((REWARD, "reward"), (LENGTH, "response_length")) if column in run.columns}
    return found | {one.name: one.metric for one in QUANTITIES.values() if not one.lacks(run.columns, run.info.config)}


def ranking(run: Run, finding: Finding | None, metric: str | None) -> tuple[str | None, bool]:
    """What to rank by beside the reward, and whether its large values are the bad ones."""
    evidence = [] if finding is None else [one for one in finding.evidence if metric in (None, one.metric)]
    names = [metric] if metric is not None else [one.metric for one in evidence]
    for name in names:
        if name.startswith("length.") and "response_length" in run.columns:
            by: str | None = LENGTH
        else:
            quantity = quantity_of(name)
            by = None if quantity is None or quantity.lacks(run.columns, run.info.config) else quantity.name
        if by is not None:
            told = next((one for one in evidence if one.metric == name), None)
            bar = None if told is None else told.limit if told.baseline is None else told.baseline
            return by, told is None or bar is None or told.value >= bar
    return None, True


def _quantity(by: str | None) -> Quantity | None:
    return None if by is None else QUANTITIES.get(by)


@lru_cache(maxsize=8)
def ranked(run: Run, step: int, by: str | None) -> Ranked | None:
    """The rows of a step; kept, since each click on the page asks for them again."""
    rows = rows_of_step(run, step, ("reward", "response_length", "is_padding"))
    if rows is None:
        return None
    real = real_rows(batch_of(run, rows))
    quantity = _quantity(by)
    values: Floats | None = None
    if by == LENGTH:
        values = numbers(rows, "response_length")
    elif quantity is not None:
        values = np.concatenate([row_means(quantity, batch) for batch in run.only([step]).batches(quantity.columns())])
        values = values if len(values) == rows.n_sequences else None
    kept = rows if real.all() else rows.take(np.flatnonzero(real))
    return Ranked(kept, values if values is None or real.all() else values[real])


def _pick(here: Ranked, index: int, kind: Kind, by: str, step: int) -> Pick:
    rows = here.rows
    reward = number(rows, "reward", index)
    value = reward if by == REWARD or here.values is None else float(here.values[index])
    return Pick(
        kind, by, step, int(rows.columns["sequence"][index]), value, reward, count(rows, "response_length", index),
        word(rows, "group", index), word(rows, "uid", index),
    )  # fmt: skip


def picked(here: Ranked, step: int, by: str | None, *, high: bool, judged: bool = True) -> Iterator[Pick]:
    """The worst and the median response by what was ranked by, and by the reward.

    Args:
        here: the rows of the step.
        step: the step.
        by: what they are ranked by beside the reward.
        high: whether large values of it are the bad ones.
        judged: whether a finding says so; else the end of the order is called the largest one.
    """
    orders: list[tuple[str, Floats, bool, Kind]] = []
    if by is not None and here.values is not None:
        orders.append((by, here.values, high, "worst" if judged else "largest"))
    if "reward" in here.rows.columns:
        orders.append((REWARD, numbers(here.rows, "reward"), False, "worst"))
    for name, values, large, end in orders:
        known = np.flatnonzero(~np.isnan(values))
        if known.size:
            order = known[np.argsort(values[known], kind="stable")]
            yield _pick(here, int(order[-1 if large else 0]), end, name, step)
            yield _pick(here, int(order[(len(order) - 1) // 2]), "median", name, step)


def samples_of(run: Run, finding: Finding | None) -> Iterator[Pick]:
    """The samples that the finding itself names; those that are not in the run are left out."""
    for sample in () if finding is None else finding.samples[:MOST_SAMPLES]:
        row = sequence_of(run, sample.sequence, ("reward", "response_length"), sample.step)
        if row is not None:
            yield Pick(
                "sample", sample.metric, sample.step, sample.sequence, sample.value, number(row, "reward", 0),
                count(row, "response_length", 0), word(row, "group", 0), word(row, "uid", 0),
            )  # fmt: skip


def control_of(run: Run, finding: Finding | None, by: str | None) -> Pick | None:
    """The median response of the last step before the onset, by the finding's metric, else by the reward."""
    onset = None if finding is None else finding.first_step
    before = [step for step in run.steps if onset is not None and step < onset]
    here = ranked(run, before[-1], by) if before else None
    if here is None:
        return None
    found = [one for one in picked(here, before[-1], by, high=True) if one.kind == "median"]
    return replace(found[0], kind="control") if found else None
