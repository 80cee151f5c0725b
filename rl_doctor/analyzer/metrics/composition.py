"""Whether the reward is the sum of its recorded components, by which weights, and whether it stands in the right rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import Floats
from rl_doctor.analyzer.registry import Metric, family, metric, reduction
from rl_doctor.analyzer.states import Sum, Sums, mean
from rl_doctor.schema import REWARD_COMPONENT_PREFIX
from rl_doctor.store.batch import Batch

_SOURCE: Final = "TRL 1.16 and verl 0.9.1: the reward is the weighted sum of its parts"


def _apart(reward: Floats, expected: Floats) -> Sums:
    """|reward - expected| in place and with both sides sorted, and |reward - mean reward|, over the rows that have both."""
    fine = np.isfinite(reward) & np.isfinite(expected)
    mine, theirs = reward[fine], expected[fine]
    centre = np.median(mine) if mine.size else 0.0
    parts = (np.abs(mine - theirs), np.abs(np.sort(mine) - np.sort(theirs)), np.abs(mine - centre))
    return Sums(tuple(Sum.of(part) for part in parts))


@reduction(zero=Sums(), needs=("reward", "score"), level="rollout")
def _score(batch: Batch) -> Sums:
    return _apart(batch.columns["reward"].astype(np.float64), batch.columns["score"].astype(np.float64))


def _declare(name: str, sums: Callable[[Batch], Sums], needs: tuple[str, ...], what: str, letters: str) -> Iterable[Metric]:
    state = reduction(zero=Sums(), needs=needs, level="rollout")(sums)
    yield Metric(
        f"composition.{name}_off", "reward", state, mean, _SOURCE, f"Mean difference of the reward and {what}, row by row.",
        part=0, formula=f"mean_i |R - {letters}|",
    )  # fmt: skip
    yield Metric(
        f"composition.{name}_sorted_off", "reward", state, mean, _SOURCE,
        f"The same with both sides sorted over the generation batch: 0 where the reward is {what}, but of other rows.",
        part=1, formula=f"mean_i |sort(R)_i - sort({letters})_i|",
    )  # fmt: skip


metric(
    "reward.score_off", _score, mean, part=0, unit="reward", source=_SOURCE, formula="mean_i |R - score|",
    doc="Mean difference of reward and score, row by row.",
)  # fmt: skip
metric(
    "reward.score_sorted_off", _score, mean, part=1, unit="reward", source=_SOURCE,
    formula="mean_i |sort(R)_i - sort(score)_i|",
    doc="The same with both sides sorted over the generation batch: 0 where rewards are scores of other rows.",
)  # fmt: skip
metric(
    "reward.abs_deviation", _score, mean, part=2, unit="reward", source=_SOURCE, formula="mean_i |R - median R|",
    doc="Mean distance of the reward from its median, over the sequences that have a score too.",
)  # fmt: skip


@family("composition.", REWARD_COMPONENT_PREFIX)
def _of_components(columns: tuple[str, ...]) -> Iterable[Metric]:
    """The reward against the plain sum of the components, and against the sum by the configured weights."""

    def total(batch: Batch, *, weighted: bool) -> Floats:
        weights = batch.info.config.reward_weights or {}
        found = np.zeros(batch.n_sequences)
        any_known = np.zeros(batch.n_sequences, np.bool_)
        for column in columns:
            values = batch.columns[column].astype(np.float64)
            weight = float(weights.get(column.removeprefix(REWARD_COMPONENT_PREFIX), 1.0)) if weighted else 1.0
            there = ~np.isnan(values)
            found += np.where(there, weight * values, 0.0)
            any_known |= there
        return np.where(any_known, found, np.nan)

    def plain(batch: Batch) -> Sums:
        return _apart(batch.columns["reward"].astype(np.float64), total(batch, weighted=False))

    def by_weight(batch: Batch) -> Sums:
        return _apart(batch.columns["reward"].astype(np.float64), total(batch, weighted=True))

    needs = ("reward", *columns)
    yield from _declare("sum", plain, needs, "the sum of its components", "sum_c R_c")
    weights = (*needs, "config.reward_weights")
    yield from _declare("weighted", by_weight, weights, "the sum of its components by their weights", "sum_c w_c R_c")
    spread = reduction(zero=Sums(), needs=needs, level="rollout")(plain)
    yield Metric(
        "composition.spread", "reward", spread, mean, _SOURCE, "Mean distance of the reward from its median.", part=2,
        formula="mean_i |R - median R|",
    )  # fmt: skip
