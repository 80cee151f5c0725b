"""Recorded advantages by rank and by place in the response, in groups of equal rewards, and against the reward itself."""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np

from rl_doctor.analyzer import slices
from rl_doctor.analyzer.derive import per_sequence_counts, selected, selected_positions
from rl_doctor.analyzer.exact import exact_quotient
from rl_doctor.analyzer.grouping import groups
from rl_doctor.analyzer.metrics.advantage import PER_SEQUENCE, token_sums
from rl_doctor.analyzer.moments import correlation, moments, std
from rl_doctor.analyzer.registry import Reduction, metric, reduction
from rl_doctor.analyzer.states import Keyed, Named, Sum, Sums, mean
from rl_doctor.store.batch import Batch

_COUNT: Final = "arithmetic over the tokens trained on"
_PLACES: Final = 32
"""Positions of the response that are told apart."""


def _by_rank(batch: Batch) -> Named:
    return slices.of_sequences(batch, "rank", token_sums(batch)[:2], per_sequence_counts(batch))


_RANKS: Final = Reduction(partial(_by_rank), Named({}), ("advantage", "rank"), ("is_padding",), "token")
metric(
    "adv.mean_by.rank.", _RANKS, mean, part=0, unit="1", source=_COUNT, formula="mean_T A of each rank",
    doc="Mean advantage over the tokens that a rank trains on.",
)  # fmt: skip
metric(
    "adv.std_by.rank.", _RANKS, lambda sums: std(sums, 0), unit="1", source=_COUNT, formula="std_T A of each rank, ddof 0",
    doc="Standard deviation of the advantage over the tokens that a rank trains on, ddof 0.",
)  # fmt: skip


@reduction(zero=Sums(), needs=("reward", "group", PER_SEQUENCE), level="rollout")
def _against_reward(batch: Batch) -> Sums:
    """Products of reward and advantage, both less the mean of their group; and |advantage| where a group's rewards are equal."""
    found = groups(batch, "reward")
    advantage = batch.columns[PER_SEQUENCE][found.rows].astype(np.float64)
    several = found.spread(found.sizes.astype(np.float64)) > 1
    fine = several & np.isfinite(advantage)
    equal = found.spread((found.low == found.high).astype(np.float64)) > 0
    x, y = found.centred[fine & ~equal], advantage[fine & ~equal]
    products = (x, y, x * x, y * y, x * y)
    return Sums((*(Sum.of(part) for part in products), Sum.of(np.abs(advantage[fine & equal]))))


@reduction(zero=Sums(), needs=("reward", PER_SEQUENCE), level="rollout")
def _against_whole(batch: Batch) -> Sums:
    reward, advantage = batch.columns["reward"].astype(np.float64), batch.columns[PER_SEQUENCE].astype(np.float64)
    fine = np.isfinite(reward) & np.isfinite(advantage)
    x, y = reward[fine], advantage[fine]
    return Sums(tuple(Sum.of(part) for part in (x, y, x * x, y * y, x * y)))


metric(
    "advantage.reward_corr", _against_reward, correlation, unit="1", source="an advantage rises with the own reward",
    formula="corr_i(R - mean_g R, A), rewards of g differ",
    doc="Correlation of the advantage with the reward less the mean of its group, over groups whose rewards differ.",
)  # fmt: skip
metric(
    "advantage.batch_corr", _against_whole, correlation, unit="1", source="a line in the reward knows no group",
    formula="corr_i(R, A)",
    doc="Correlation of the advantage with the reward over the generation batch: 1 where it follows from the reward alone.",
)  # fmt: skip
metric(
    "advantage.equal_groups_abs_mean", _against_reward, mean, part=5, unit="1", source="GRPO, arXiv:2402.03300, section 4.1.2",
    formula="mean_i |A|, rewards of g all equal",
    doc="Mean absolute advantage of the responses of groups whose rewards are all equal: 0 for any that compares within groups.",
)  # fmt: skip


@reduction(zero=Keyed({}), needs=("advantage",))
def _by_place(batch: Batch) -> Keyed:
    near = np.flatnonzero(selected_positions(batch) < _PLACES)
    place, values = selected_positions(batch)[near], selected(batch, "advantage")[near]
    fine = np.isfinite(values)
    return Keyed({(int(key),): moments(values[fine & (place == key)]) for key in np.unique(place[fine])})


def _explained(state: Keyed) -> float:
    """The variance between places over the whole variance, as exact sums give it."""
    sums = list(state.groups.values())
    if not sums or not all(part.finite for item in sums for part in item.parts):
        return np.nan
    whole = sum(sums, Sums())
    n, first, second = whole[0].count, whole[0].value, whole[1].value
    total = second - first * first / n
    between = sum(item[0].value ** 2 / item[0].count for item in sums) - first * first / n
    return between / total if total > 0 else np.nan


metric(
    "adv.place_frac", _by_place, _explained, unit="1", source="decomposition of the sum of squares",
    formula="var of mean_T[position] A / var_T A, positions 0 to 31",
    doc="Share of the variance of the advantage that lies between positions of the response: 1 where every response has the same "
    "advantage at the same position.",
)  # fmt: skip


def _second(sums: Sums) -> float:
    """The share that single advantages of a response differ by: their variance within responses over the whole."""
    within, whole = sums[0], sums[1]
    return exact_quotient(within.total, whole.total) if within.finite and whole.finite and whole.total > 0 else np.nan


@reduction(zero=Sums(), needs=("advantage",))
def _inside(batch: Batch) -> Sums:
    first, square, _ = token_sums(batch)
    counts = per_sequence_counts(batch)
    several = counts > 1
    within = square[several] - first[several] ** 2 / counts[several]
    count = int(counts[several].sum())
    return Sums((Sum.of(np.maximum(within, 0.0), count), Sum.of(square[several], count)))


metric(
    "adv.inside_frac", _inside, _second, unit="1", source="decomposition of the sum of squares",
    formula="sum_i sum_Ti (A - mean_Ti A)^2 / sum_T A^2",
    doc="Share of the square of the advantage that differs within responses: 0 where each response has one advantage.",
)  # fmt: skip
