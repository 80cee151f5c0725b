"""Reward, score and reward components over the sequences of a generation batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final

import numpy as np

from rl_doctor.analyzer.exact import exact_quotient
from rl_doctor.analyzer.grouping import groups
from rl_doctor.analyzer.moments import moments, std
from rl_doctor.analyzer.registry import Metric, Reduction, family, metric, reduction
from rl_doctor.analyzer.states import Extremes, Sum, Sums, mean
from rl_doctor.schema import REWARD_COMPONENT_PREFIX
from rl_doctor.store.batch import Batch

_SOURCE: Final = "arithmetic over the sequences that the advantage was computed from"


def _sample_std(state: Sums) -> float:
    return std(state, 1)


def _moments(column: str) -> Reduction:
    @reduction(zero=Sums(), needs=(column,), level="rollout")
    def sums(batch: Batch) -> Sums:
        values = batch.columns[column]
        return moments(values[~np.isnan(values)])

    return sums


def _extremes(column: str) -> Reduction:
    @reduction(zero=Extremes(), needs=(column,), level="rollout")
    def extremes(batch: Batch) -> Extremes:
        values = batch.columns[column]
        return Extremes.of(values[~np.isnan(values)])

    return extremes


@reduction(zero=Sums(), needs=("reward",), level="rollout")
def _at_bounds(batch: Batch) -> Sums:
    reward = batch.columns["reward"]
    kept = reward[~np.isnan(reward)]
    if kept.size == 0:
        return Sums()
    _, times = np.unique(kept, return_counts=True)
    single = np.count_nonzero(times[1:-1] == 1)
    return Sums(tuple(Sum.counted(int(number), kept.size) for number in (times[-1], times[0], single)))


@reduction(zero=Sum(), needs=("reward", "response_length", "config.max_response_length"), level="rollout")
def _at_limit(batch: Batch) -> Sum:
    reward, length = batch.columns["reward"], batch.columns["response_length"]
    return Sum.of(reward[(length >= (batch.info.config.max_response_length or 0)) & ~np.isnan(reward)])


@reduction(zero=Sum(), needs=("reward", "finish_reason"), level="rollout")
def _of_truncated(batch: Batch) -> Sum:
    reward = batch.columns["reward"]
    return Sum.of(reward[np.equal(batch.columns["finish_reason"], "length").astype(np.bool_) & ~np.isnan(reward)])


for _prefix, _column, _letter, _what in (
    ("reward.", "reward", "R", "reward"),
    ("reward.score_", "score", "score", "score before shaping"),
):
    _sums, _ends = _moments(_column), _extremes(_column)
    metric(
        f"{_prefix}mean",
        _sums,
        mean,
        part=0,
        unit="reward",
        source=_SOURCE,
        formula=f"mean_i {_letter}",
        doc=f"Mean {_what} per sequence.",
    )
    metric(
        f"{_prefix}std", _sums, _sample_std, unit="reward", source=_SOURCE,
        formula=f"std_i {_letter}, ddof 1",
        doc=f"Standard deviation of the {_what} over the whole generation batch, ddof 1.",
    )  # fmt: skip
    metric(
        f"{_prefix}min",
        _ends,
        lambda s: s.min,
        unit="reward",
        source=_SOURCE,
        formula=f"min_i {_letter}",
        doc=f"Smallest {_what}.",
    )
    metric(
        f"{_prefix}max",
        _ends,
        lambda s: s.max,
        unit="reward",
        source=_SOURCE,
        formula=f"max_i {_letter}",
        doc=f"Largest {_what}.",
    )
metric(
    "reward.at_max_frac", _at_bounds, mean, part=0, unit="1", source=_SOURCE,
    formula="share_i[R = max R]",
    doc="Share of sequences whose reward equals the largest of the generation batch.",
)  # fmt: skip
metric(
    "reward.at_min_frac", _at_bounds, mean, part=1, unit="1", source=_SOURCE,
    formula="share_i[R = min R]",
    doc="Share of sequences whose reward equals the smallest of the generation batch.",
)  # fmt: skip


metric(
    "reward.distinct_frac", _at_bounds, mean, part=2, unit="1", source=_SOURCE,
    formula="share_i[no other j has R_j = R_i, min R < R_i < max R]",
    doc="Share of sequences whose reward no other sequence of the generation batch has and that is neither its largest nor its "
    "smallest: near 0 for a reward with few values, near 1 for a continuous one.",
)  # fmt: skip
metric(
    "reward.truncated_mean", _of_truncated, mean, unit="reward", source=_SOURCE,
    formula="mean_i R, finish_reason = length",
    doc="Mean reward of the sequences that were cut off for their length by finish_reason.",
)  # fmt: skip
metric(
    "length.limit_reward_mean", _at_limit, mean, unit="reward", source=_SOURCE,
    formula="mean_i R, L >= max_response_length",
    doc="Mean reward of the responses at least as long as the configured maximum.",
)  # fmt: skip


def _share_of(index: int) -> Callable[[Sums], float]:
    return lambda state: exact_quotient(state[index].total, sum(part.total for part in state.parts))


def _with_reward(column: str) -> Reduction:
    """Sums over sequences of reward squared, component squared and their product, each less the mean of its group."""

    @reduction(zero=Sums(), needs=(column, "reward", "group"), level="rollout")
    def products(batch: Batch) -> Sums:
        sides = []
        for name in ("reward", column):
            found = groups(batch, name)
            side = np.full(batch.n_sequences, np.nan)
            side[found.rows] = found.centred
            sides.append(side)
        fine = ~np.isnan(sides[0] + sides[1])
        whole, part = sides[0][fine], sides[1][fine]
        return Sums(tuple(Sum.of(product) for product in (whole * whole, part * part, whole * part)))

    return products


def _explained(state: Sums) -> float:
    whole, part, both = (item.value for item in state.parts) if state.parts else (0.0, 0.0, 0.0)
    return both * both / (whole * part) if whole * part > 0.0 else math.nan


@family("reward.component.", REWARD_COMPONENT_PREFIX)
def _components(columns: tuple[str, ...]) -> Iterable[Metric]:
    """Mean, standard deviation and share of the within-group variance of each reward component."""

    @reduction(zero=Sums(), needs=(*columns, "group"), level="rollout")
    def squares(batch: Batch) -> Sums:
        weights = batch.info.config.reward_weights or {}
        parts = []
        for column in columns:
            grouped = groups(batch, column)
            weight = weights.get(column.removeprefix(REWARD_COMPONENT_PREFIX), 1.0)
            parts.append(Sum.of(weight * weight * grouped.squares, len(grouped.values)))
        return Sums(tuple(parts))

    for index, column in enumerate(columns):
        component = column.removeprefix(REWARD_COMPONENT_PREFIX)
        name, sums = f"reward.component.{component}", _moments(column)
        ends = _extremes(column)
        of = f"of the reward component {component}"
        yield Metric(f"{name}.mean", "reward", sums, mean, _SOURCE, f"Mean {of}.", part=0, formula="mean_i R_c")
        yield Metric(
            f"{name}.std", "reward", sums, _sample_std, _SOURCE, f"Standard deviation {of}, ddof 1.", formula="std_i R_c, ddof 1"
        )
        yield Metric(f"{name}.min", "reward", ends, lambda s: s.min, _SOURCE, f"Smallest value {of}.", formula="min_i R_c")
        yield Metric(f"{name}.max", "reward", ends, lambda s: s.max, _SOURCE, f"Largest value {of}.", formula="max_i R_c")
        yield Metric(
            f"{name}.variance_share", "1", squares, _share_of(index), _SOURCE,
            f"Share {of} in the within-group variance of all components, each times its configured weight squared (default 1).",
            formula="w_c^2 sum_g var_g R_c / sum_k w_k^2 sum_g var_g R_k",
        )  # fmt: skip
        yield Metric(
            f"{name}.explained", "1", _with_reward(column), _explained, _SOURCE,
            f"Share of the within-group variance of the reward that a multiple {of} explains, whatever its weight.",
            formula="(sum_i dR dR_c)^2 / (sum_i dR^2 sum_i dR_c^2), d: less the mean of the group",
        )  # fmt: skip
