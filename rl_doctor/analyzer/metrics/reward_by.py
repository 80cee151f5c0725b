"""Where the reward comes from: its level by source, ending, rank and place, and how much of it differs within groups."""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer import slices
from rl_doctor.analyzer.derive import Bools, Floats, known
from rl_doctor.analyzer.exact import exact_quotient
from rl_doctor.analyzer.grouping import aborted, groups
from rl_doctor.analyzer.moments import moments, std
from rl_doctor.analyzer.registry import Reduction, metric, reduction
from rl_doctor.analyzer.states import Named, Sum, Sums, mean
from rl_doctor.store.batch import Batch
from rl_doctor.store.codes import codes

_SLICES: Final = ("source", "finish", "rank")
_PLACES: Final = 8
"""Groups of a rank that are told apart by their place in it."""
_APART: Final = 0.25
"""Share of the variance of prompt lengths within groups, from which on they are those of several prompts."""
_HASH: Final = "per_sequence.response_hash"
_SOURCE: Final = "arithmetic over the sequences of the generation batch"


def _sliced(by: str, batch: Batch) -> Named:
    reward = batch.columns["reward"].astype(np.float64)
    fine = np.isfinite(reward)
    values = np.where(fine, reward, 0.0)
    return slices.of_sequences(batch, by, np.stack([values, values * values]), fine.astype(np.int64))


for _by in _SLICES:
    _columns = slices.SEQUENCE_SLICES[_by][0]
    _reduction = Reduction(partial(_sliced, _by), Named({}), ("reward", *_columns), ("is_padding",), "rollout")
    metric(
        f"reward.mean_by.{_by}.", _reduction, mean, part=0, unit="reward", source=_SOURCE, formula="mean_i R of each part",
        doc=f"Mean reward by {_by}.",
    )  # fmt: skip
    metric(
        f"reward.std_by.{_by}.", _reduction, lambda sums: std(sums, 0), unit="reward", source=_SOURCE,
        formula="std_i R of each part, ddof 0",
        doc=f"Standard deviation of the reward by {_by}, ddof 0; 0, up to rounding, where all rewards of a part are equal.",
    )  # fmt: skip


def _places(batch: Batch, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of each row's group among the groups of its rank, in the order in which the rank has them, from 0."""
    rank, group = codes(batch.columns["rank"][rows]), codes(batch.columns["group"][rows])
    order = np.argsort(batch.columns["sequence"][rows], kind="stable")
    both = rank[order] * (int(group.max(initial=0)) + 1) + group[order]
    found, first, inverse = np.unique(both, return_index=True, return_inverse=True)
    of_rank = found // (int(group.max(initial=0)) + 1)
    ordered = np.lexsort((first, of_rank))
    starts = np.searchsorted(of_rank[ordered], of_rank[ordered])
    place_of = np.empty(len(found), np.int64)
    place_of[ordered] = np.arange(len(found)) - starts
    places = np.empty(len(rows), np.int64)
    places[order] = place_of[inverse.reshape(-1)]
    return places


@reduction(zero=Named({}), needs=("reward", "group", "rank", "sequence"), level="rollout")
def _by_place(batch: Batch) -> Named:
    reward = batch.columns["reward"].astype(np.float64)
    rows = np.flatnonzero(np.isfinite(reward) & known(batch.columns["group"]) & known(batch.columns["rank"]))
    place = _places(batch, rows)
    member = np.where(place < _PLACES, place, -1)
    return Named.of([str(index) for index in range(_PLACES)], member, reward[rows][None], np.ones(len(rows), np.int64))


metric(
    "reward.mean_by.place.", _by_place, mean, part=0, unit="reward", source=_SOURCE,
    formula="mean_i R of the k-th group of every rank",
    doc="Mean reward by the place of the group among those of its rank, from 0, in the order of rows; the first 8 places.",
)  # fmt: skip


@reduction(zero=Sums(), needs=("reward", "group"), level="rollout")
def _decomposed(batch: Batch) -> Sums:
    """Sums of squares within groups and around the mean of the batch, groups of one left out."""
    found = groups(batch, "reward")
    several = found.sizes > 1
    rows = found.spread(several.astype(np.float64)) > 0
    values = found.values[rows]
    if not values.size:
        return Sums((Sum(), Sum()))
    whole = values - moments(values)[0].mean
    return Sums((Sum.of(found.squares[several], len(values)), Sum.of(whole * whole)))


def _between(sums: Sums) -> float:
    within, whole = sums[0], sums[1]
    return 1.0 - exact_quotient(within.total, whole.total) if whole.finite and within.finite and whole.total > 0 else np.nan


metric(
    "reward.between_frac", _decomposed, _between, unit="1", source="decomposition of the sum of squares",
    formula="1 - sum_g sum_i (R - mean_g R)^2 / sum_i (R - mean R)^2, n_g > 1",
    doc="Share of the reward's variance that lies between groups: 1 where all responses to one prompt earn the same.",
)  # fmt: skip


def _of(batch: Batch, rows: Bools) -> Sum:
    reward = batch.columns["reward"].astype(np.float64)
    return Sum.of(reward[rows & np.isfinite(reward)])


@reduction(zero=Sums(), needs=("reward", "response_length"), optional=("finish_reason",), level="rollout")
def _empty(batch: Batch) -> Sums:
    length, cut = batch.columns["response_length"], aborted(batch) & (batch.columns["response_length"] > 0)
    told = known(length) & ~cut
    empty = told & (length <= 1)
    return Sums((_of(batch, empty), Sum.counted(int(np.count_nonzero(empty)), int(np.count_nonzero(told)))))


metric(
    "reward.empty_mean", _empty, mean, part=0, unit="reward", source=_SOURCE, formula="mean_i R, L <= 1",
    doc="Mean reward of the responses of one token or none.",
)  # fmt: skip
metric(
    "reward.empty_frac", _empty, mean, part=1, unit="1", source=_SOURCE, formula="share_i[L <= 1]",
    doc="Share of responses of one token or none.",
)  # fmt: skip


@reduction(zero=Sums(), needs=("reward", "group", _HASH), level="rollout")
def _copied(batch: Batch) -> Sums:
    """Rewards of responses that also answer another prompt, and of those that do not; pairs of twins in a group that differ."""
    reward = batch.columns["reward"].astype(np.float64)
    rows = np.flatnonzero(known(batch.columns["group"]) & (batch.columns[_HASH] >= 0) & np.isfinite(reward))
    group, text, earned = codes(batch.columns["group"][rows]), codes(batch.columns[_HASH][rows]), reward[rows]
    kept = np.unique(np.stack([text, group]), axis=1)
    shared = (np.bincount(kept[0], minlength=1) > 1)[text] if len(rows) else np.zeros(0, np.bool_)
    differing, twins = _twins(group, text, earned)
    return Sums((Sum.of(earned[shared]), Sum.of(earned[~shared]), Sum.counted(differing, twins)))


def _twins(group: NDArray[np.int64], text: NDArray[np.int64], earned: Floats) -> tuple[int, int]:
    """Sets of identical responses to one prompt whose rewards differ, and how many sets there are."""
    if not len(earned):
        return 0, 0
    key = group * (int(text.max()) + 1) + text
    order = np.lexsort((earned, key))
    starts = np.flatnonzero(np.r_[True, np.diff(key[order]) != 0])
    stops = np.append(starts[1:], len(order)) - 1
    several = stops > starts
    spread = earned[order][stops] - earned[order][starts]
    return int(np.count_nonzero(several & (spread > 0))), int(np.count_nonzero(several))


metric(
    "reward.copied_mean", _copied, mean, part=0, unit="reward", source=_SOURCE,
    formula="mean_i R, another group has a j with tokens_j = tokens_i",
    doc="Mean reward of the responses that were given, token by token, to another prompt too.",
)  # fmt: skip
metric(
    "reward.uncopied_mean", _copied, mean, part=1, unit="reward", source=_SOURCE,
    formula="mean_i R, no other group has a j with tokens_j = tokens_i",
    doc="Mean reward of the responses that were given to one prompt only.",
)  # fmt: skip
metric(
    "reward.twins_differ_frac", _copied, mean, part=2, unit="1", source=_SOURCE,
    formula="share of sets of identical responses to one prompt[max R > min R]",
    doc="Share of sets of identical responses to one prompt whose rewards are not all equal.",
)  # fmt: skip


@reduction(zero=Sums(), needs=("group", "prompt_length"), optional=("prompt", "data_source"), level="rollout")
def _mixed(batch: Batch) -> Sums:
    """Groups of two or more whose prompts differ in text or source, or in length as prompts of other groups do."""
    rows = np.flatnonzero(known(batch.columns["group"]) & known(batch.columns["prompt_length"]))
    group = codes(batch.columns["group"][rows])
    sizes = np.bincount(group, minlength=1)
    mixed = np.zeros(len(sizes), np.bool_)
    for name in ("prompt_length", "prompt", "data_source"):
        column = batch.get(name)
        if column is None or not len(rows):
            continue
        label = codes(column[rows])
        pairs = np.unique(np.stack([group, label]), axis=1)[0]
        differing = np.bincount(pairs, minlength=len(sizes)) > 1
        if name != "prompt_length" or _of_prompts(column[rows].astype(np.float64), group, differing):
            mixed |= differing
    several = sizes > 1
    return Sums((Sum.counted(int(np.count_nonzero(mixed & several)), int(np.count_nonzero(several))),))


def _of_prompts(length: Floats, group: NDArray[np.int64], differing: NDArray[np.bool_]) -> bool:
    """Whether lengths that differ within groups are those of several prompts, and not of one that is put together anew.

    Those of prompts recur, since each is sampled several times, and they are as far apart within groups as between them.
    """
    inside = differing[group]
    if 2 * len(np.unique(length)) > len(length) or not inside.any():
        return False
    sizes = np.maximum(np.bincount(group), 1)
    within = (length - (np.bincount(group, length) / sizes)[group])[inside]
    return bool(np.mean(within**2) >= _APART * np.var(length))


metric(
    "group.mixed_frac", _mixed, mean, part=0, unit="1", source="counting over groups",
    formula="share_g[prompt_length, prompt or data_source differs within g], n_g > 1",
    doc="Share of groups of two or more whose rows differ in prompt length (or in prompt text or data source, where those were "
    "recorded). Lengths count where they are those of several prompts: there are at most half as many lengths as rows, and those "
    "within groups vary by a quarter or more of the variance of all.",
)  # fmt: skip
