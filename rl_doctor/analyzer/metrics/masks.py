"""What the response mask covers, against lengths, token ids, roles, rollout logprobs and advantages."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import (
    FIRST_STEP,
    Bools,
    Floats,
    derived,
    finite,
    flags_in,
    known,
    per_sequence_counts,
    positions,
    real_rows,
    restricted,
    selection,
    spread,
)
from rl_doctor.analyzer.formulas.segments import segment_extremes, segment_sums
from rl_doctor.analyzer.metrics.mismatch import CERTAIN, PAIR_OPTIONAL, PLACEHOLDER_BELOW, trainer_side
from rl_doctor.analyzer.registry import Reduction, metric, reduction
from rl_doctor.analyzer.states import Sum, Sums, mean
from rl_doctor.schema import ROLES
from rl_doctor.store.batch import Batch

_ASSISTANT: Final = ROLES.index("assistant")
_SOURCE: Final = "the loss covers what the policy sampled, and nothing else"
_RUN: Final = 3
"""Shorter runs of tokens without a logprob are single gaps, not an observation."""


def _tally(flags: Bools, of: Bools) -> Sum:
    """Tokens with ``flags`` among the tokens ``of``, both ``[n_tokens]``."""
    return Sum.counted(int(np.count_nonzero(flags & of)), int(np.count_nonzero(of)))


def _any_row(batch: Batch, flags: Bools) -> Bools:
    return segment_sums(flags, batch.splits) > 0


@reduction(zero=Sums(), needs=("response_mask", "response_length"))
def _beyond(batch: Batch) -> Sums:
    length, counts = batch.columns["response_length"], per_sequence_counts(batch)
    rows = real_rows(batch) & known(length) & (length >= 0) & (counts > 0)
    stored = batch.lengths
    longer = rows & (length < stored)
    past = np.zeros(batch.n_sequences, np.int64)
    if longer.any():
        beyond = spread(batch, longer) & (positions(batch) >= spread(batch, length))
        past = segment_sums(selection(batch) & beyond, batch.splits).astype(np.int64)
    inside = counts - past
    agrees = inside + (stored - np.minimum(stored, np.maximum(length, 0))) - past
    count = int(rows.sum())
    return Sums(
        (
            Sum.counted(int(past[rows].sum()), int(counts[rows].sum())),
            Sum.counted(int(np.count_nonzero(past[rows])), count),
            Sum.counted(int(agrees[rows].sum()), int(stored[rows].sum())),
        )
    )


@reduction(zero=Sums(), needs=("response_mask", "token_id"), optional=("response_length",))
def _trailing_pad(batch: Batch) -> Sums:
    pad, ends = batch.info.pad_token_id, batch.info.eos_token_ids
    if pad is None:
        return Sums()
    token, trained = batch.columns["token_id"], selection(batch)
    rows = real_rows(batch) & (per_sequence_counts(batch) > 0)
    if not (token == pad).any():
        return Sums((Sum(count=int(np.count_nonzero(trained))), Sum(count=int(rows.sum()))))
    last = closing(batch, token == pad)
    # A policy may sample the padding token; trainers that know the lengths end the response there, once.
    allowed = 1 if not ends or pad in ends or batch.get("response_length") is not None else 0
    extra = trained & (positions(batch) > spread(batch, last) + allowed)
    return Sums((_tally(extra, trained), Sum.counted(int(_any_row(batch, extra).sum()), int(rows.sum()))))


def closing(batch: Batch, filler: Bools) -> NDArray[np.int64]:
    """Position in its row of the last token that is no ``filler`` ``[n_tokens]``, int64 ``[n_sequences]``; -1 for none."""
    at, stops = np.flatnonzero(filler), batch.splits[1:]
    if not at.size:
        return np.asarray(batch.lengths - 1)
    stretch = at - np.arange(at.size)  # the same for fillers that follow each other
    before = np.searchsorted(at, stops)
    nearest = np.maximum(before - 1, 0)
    closing = (before > 0) & (at[nearest] == stops - 1)
    run = np.where(closing, before - np.searchsorted(stretch, stretch[nearest]), 0)
    return np.asarray(np.maximum(stops - 1 - run - batch.splits[:-1], -1))


def _declare(name: str, of: Reduction, index: int, doc: str, *, formula: str, unit: str = "1") -> None:
    metric(f"mask.{name}", of, mean, part=index, unit=unit, source=_SOURCE, formula=formula, doc=doc)


_declare(
    "beyond_length_frac", _beyond, 0, formula="share_T[t >= response_length]",
    doc="Share of trained tokens at or beyond response_length.",
)  # fmt: skip
_declare(
    "beyond_length_row_frac", _beyond, 1, formula="share_i[any t in Ti: t >= response_length]",
    doc="Share of rows that train a token at or beyond response_length.",
)  # fmt: skip
_declare(
    "length_agreement", _beyond, 2, formula="share over stored t[m = [t < response_length]]",
    doc="Share of stored tokens that are trained exactly if they lie before response_length, in rows that train anything.",
)  # fmt: skip
_declare(
    "trailing_pad_frac",
    _trailing_pad,
    0,
    "Share of trained tokens that are padding after the last other token; one is allowed where it may have been sampled: where "
    "padding is the EOS token, or the lengths are known.",
    formula="share_T[t after the last token that is no padding]",
)
_declare(
    "trailing_pad_row_frac", _trailing_pad, 1, formula="share_i[any t in Ti after the last token that is no padding]",
    doc="Share of rows that train such padding.",
)  # fmt: skip


@reduction(zero=Sum(), needs=("response_mask", "token_id"), optional=("finish_reason", "response_length", "role"))
def _eos_missed(batch: Batch) -> Sum:
    """Rows whose closing EOS is not trained, among the rows that close with an EOS right after a trained token."""
    ends = batch.info.eos_token_ids
    if not ends or not batch.n_tokens:
        return Sum()
    token, trained = batch.columns["token_id"], selection(batch)
    pad = batch.info.pad_token_id
    fillers = ends if pad is None else (*ends, pad)
    filler = np.logical_or.reduce([token == one for one in fillers])
    lengths = batch.lengths
    end = closing(batch, filler) + 1
    judged = real_rows(batch) & (end < lengths) & (end > 0)
    at = np.minimum(batch.splits[:-1] + end, batch.n_tokens - 1)
    judged &= np.isin(token[at], np.array(ends)) & trained[np.maximum(at - 1, 0)]
    if (finish := batch.get("finish_reason")) is not None:
        judged &= (finish == "stop") | ~known(finish)
    if (length := batch.get("response_length")) is not None:
        judged &= ~known(length) | (end < length)
    if (role := batch.get("role")) is not None:
        judged &= (role[at] == _ASSISTANT) | (role[at] < 0)
    return Sum.counted(int(np.count_nonzero(judged & ~trained[at])), int(judged.sum()))


metric(
    "mask.eos_missed_frac",
    _eos_missed,
    mean,
    unit="1",
    source=_SOURCE,
    formula="share_i[EOS untrained | token before it trained]",
    doc="Of the rows that end by an EOS token right after a trained token, the share in which that EOS is not trained.",
)


@reduction(zero=Sums(), needs=("response_mask", "role"))
def _roles(batch: Batch) -> Sums:
    role, trained = batch.columns["role"], selection(batch)
    named = (role >= 0) & spread(batch, real_rows(batch) & (per_sequence_counts(batch) > 0))
    other = role > _ASSISTANT
    return Sums(
        (
            _tally(trained == (role == _ASSISTANT), named),
            _tally(other, trained),
            _tally(trained, named & other),
        )
    )


_declare(
    "role_agreement", _roles, 0, formula="share over t with a role[m = [role = assistant]]",
    doc="Share of tokens with a role that are trained exactly if the assistant wrote them, in rows that train anything.",
)  # fmt: skip
_declare(
    "observation_frac", _roles, 1, formula="share_T[role != assistant]",
    doc="Share of trained tokens that a tool, a user or the system wrote.",
)  # fmt: skip
_declare(
    "observation_trained_frac", _roles, 2, formula="share over t with another role[m]",
    doc="Share of the tokens written by a tool, a user or the system that are trained.",
)  # fmt: skip


@derived
def sampled(batch: Batch) -> Bools:
    """Bool ``[n_tokens]``: tokens with a rollout logprob that is a number other than the filler 0."""
    rollout = batch.columns["rollout_logprob"]
    has: Bools = finite(batch, "rollout_logprob") & (rollout != 0.0)
    return has


@reduction(zero=Sum(), needs=("response_mask", "rollout_logprob"), optional=PAIR_OPTIONAL)
def _sampled(batch: Batch) -> Sum:
    """Agreement of mask and engine, in rows that train something and hold tokens of both kinds.

    0 at a trained token is the logprob of a certain one as well as a filler, unless the trainer is far from certain: such
    tokens count for neither. At untrained tokens it is a filler: trainers store 0 there themselves.
    """
    has = sampled(batch)
    lacking = flags_in(batch.splits, ~has)
    rows = real_rows(batch) & (per_sequence_counts(batch) > 0) & (lacking > 0) & (lacking < batch.lengths)
    if not rows.any():
        return Sum()
    part = restricted(batch, rows, ("response_mask", "is_padding", "rollout_logprob", *PAIR_OPTIONAL))
    trained, told = selection(part), np.ones(part.n_tokens, np.bool_)
    zero = trained & (part.columns["rollout_logprob"] == 0.0)
    if zero.any():
        trainer = trainer_side(part)
        told = ~zero if trainer is None else ~zero | (trainer < CERTAIN)
    agrees = told & (trained == sampled(part))
    return Sum.counted(int(np.count_nonzero(agrees)), int(np.count_nonzero(told)))


metric(
    "mask.sampled_agreement",
    _sampled,
    mean,
    unit="1",
    source=_SOURCE,
    version=2,
    formula="share over stored t[m = [rollout_logprob is known]]",
    doc="Share of tokens that are trained exactly if the engine gave a logprob for them, in rows that hold both kinds. Trained "
    "tokens at 0 count where the trainer's logprob is below -.05: else the token may be certain.",
)


def observation_runs(batch: Batch) -> Bools:
    """Trained tokens in runs of at least three without a rollout logprob, with sampled tokens before and after, ``[n_tokens]``.

    A run counts where a third of it holds NaN, or 0 at tokens that the trainer finds improbable; roles, where known, can only
    take tokens of the assistant out.
    """
    rollout, trained = batch.columns["rollout_logprob"], selection(batch)
    if sampled(batch).all():
        return np.zeros(batch.n_tokens, np.bool_)
    trainer = trainer_side(batch)
    nan = trained & ~finite(batch, "rollout_logprob")
    zero = np.zeros_like(nan) if trainer is None else trained & (rollout == 0.0)
    hard = nan if trainer is None else nan | (zero & (trainer < PLACEHOLDER_BELOW))
    hole = nan if trainer is None else nan | (zero & (trainer < CERTAIN))
    if (role := batch.get("role")) is not None:
        hole &= role != _ASSISTANT
    found: Bools = np.zeros_like(hole)
    if not (hole & hard).any():
        return found
    row = spread(batch, np.arange(batch.n_sequences))
    edge = np.ones(batch.n_tokens, np.bool_)
    edge[1:] = (hole[1:] != hole[:-1]) | (row[1:] != row[:-1])
    starts = np.flatnonzero(edge)
    size = np.diff(np.append(starts, batch.n_tokens))
    severe = np.add.reduceat((hole & hard).astype(np.int64), starts)
    good, position = trained & sampled(batch), positions(batch)
    first, _ = segment_extremes(np.where(good, position, np.inf), batch.splits)
    _, last = segment_extremes(np.where(good, position, -1.0), batch.splits)
    place = position[starts]
    inside = (place > first[row[starts]]) & (place < last[row[starts]])
    keep = hole[starts] & (size >= _RUN) & (3 * severe >= size) & inside
    return np.asarray(np.repeat(keep, size))


_UNSAMPLED: Final = ("rollout_logprob", "old_logprob", "logprob", "minibatch", "epoch", FIRST_STEP, "role")


@reduction(zero=Sums(), needs=("response_mask", "rollout_logprob"), optional=_UNSAMPLED[1:])
def _unsampled(batch: Batch) -> Sums:
    count = int(np.count_nonzero(selection(batch)))
    part = restricted(batch, flags_in(batch.splits, ~sampled(batch)) > 0, ("response_mask", "is_padding", *_UNSAMPLED))
    runs = observation_runs(part)
    if not runs.any():
        return Sums((Sum(count=count), Sum(count=count)))
    trainer, rollout = trainer_side(part), part.columns["rollout_logprob"]
    hard = ~finite(part, "rollout_logprob")
    if trainer is not None:
        hard = hard | ((rollout == 0.0) & (trainer < PLACEHOLDER_BELOW))
    runs &= selection(part)
    return Sums((Sum.counted(int(np.count_nonzero(runs)), count), Sum.counted(int(np.count_nonzero(runs & hard)), count)))


_declare(
    "unsampled_frac", _unsampled, 0, formula="share_T[rollout_logprob unknown, in a run of 3 or more between sampled tokens]",
    doc="Share of trained tokens in runs of three or more, between sampled tokens, for which the engine gave no logprob.",
)  # fmt: skip
_declare(
    "unsampled_hard_frac", _unsampled, 1, formula="share_T[rollout_logprob NaN, or 0 with logprob < -1, in such a run]",
    doc="Share of trained tokens in such runs whose rollout_logprob is NaN, or 0 where the trainer's is below -1.",
)  # fmt: skip


@reduction(zero=Sums(), needs=("prompt_loss_tokens",))
def _prompt(batch: Batch) -> Sums:
    count = batch.columns["prompt_loss_tokens"]
    rows = real_rows(batch) & known(count) & (count >= 0)
    values = np.where(rows, count, 0).astype(np.float64)
    return Sums((Sum.of(values, int(rows.sum())), Sum.counted(int(np.count_nonzero(values)), int(rows.sum()))))


_declare(
    "prompt_loss_tokens", _prompt, 0, unit="tokens", formula="mean_i prompt_loss_tokens",
    doc="Mean number of prompt positions in the loss, per row.",
)  # fmt: skip
_declare(
    "prompt_loss_frac", _prompt, 1, "Share of rows with a prompt position in the loss.", formula="share_i[prompt_loss_tokens > 0]"
)


@reduction(zero=Sums(), needs=("response_mask", "advantage"))
def _advantage(batch: Batch) -> Sums:
    """Advantages outside the mask, in rows that train something and hold untrained tokens too."""
    trained = selection(batch)
    if trained.all():
        return Sums()
    counts = per_sequence_counts(batch)
    mixed = (counts > 0) & (counts < batch.lengths)
    batch = restricted(batch, real_rows(batch) & mixed, ("response_mask", "advantage"))
    trained = selection(batch)
    advantage = np.nan_to_num(batch.columns["advantage"].astype(np.float64), posinf=0.0, neginf=0.0)
    low, high = _inside_range(batch, advantage, trained)
    outside = ~trained & (advantage != 0.0)
    foreign = _any_row(batch, outside & ((advantage != spread(batch, low)) | (spread(batch, low) != spread(batch, high))))
    full = ~_any_row(batch, ~trained & (advantage == 0.0)) & (low == high) & (low != 0.0)
    size = np.abs(advantage)
    mass = segment_sums(np.where(trained, 0.0, size), batch.splits), segment_sums(size, batch.splits)
    alive = mass[1] > 0
    stray = segment_sums(np.where(trained & (advantage == 0.0), 1.0, 0.0), batch.splits)
    return Sums(
        (
            Sum.of(np.where(alive & foreign, mass[0], 0.0), int(alive.sum())),
            Sum.of(np.where(alive, mass[1], 0.0), int(alive.sum())),
            Sum.counted(int((alive & foreign).sum()), int(alive.sum())),
            Sum.counted(int(full.sum()), int(((low == high) & (low != 0.0)).sum())),
            Sum.of(np.where(alive, stray, 0.0), int(per_sequence_counts(batch)[alive].sum())),
        )
    )


def _inside_range(batch: Batch, values: Floats, trained: Bools) -> tuple[Floats, Floats]:
    """Smallest and largest value at the trained tokens of each row; infinite where there is none."""
    low, _ = segment_extremes(np.where(trained, values, np.inf), batch.splits)
    _, high = segment_extremes(np.where(trained, values, -np.inf), batch.splits)
    return low, high


def _share(s: Sums) -> float:
    return s[0].value / s[1].value if s[1].value > 0 else math.nan


metric(
    "mask.adv_outside_frac",
    _advantage,
    _share,
    unit="1",
    source=_SOURCE,
    formula="sum_(t not in T) |A| / sum_t |A|",
    doc="Share of the sum of |advantage| at untrained tokens, not counting rows that repeat their one advantage there.",
)
_declare(
    "adv_outside_row_frac", _advantage, 2, formula="share_i[A != 0 at a t not in Ti, other than the row's constant]",
    doc="Share of rows with an advantage at untrained tokens other than the row's own constant.",
)  # fmt: skip
_declare(
    "adv_broadcast_frac", _advantage, 3, formula="share over i with one A[A the same at all t not in Ti]",
    doc="Share of rows with one constant advantage that repeat it at every untrained token.",
)  # fmt: skip
_declare(
    "adv_inside_zero_frac", _advantage, 4, formula="share_T[A = 0], rows with any A != 0",
    doc="Share of trained tokens with advantage 0, in rows whose advantages are not all 0.",
)  # fmt: skip


@reduction(zero=Sums(), needs=("response_mask",), optional=("loss_mask", "finish_reason", "response_length"))
def _empty(batch: Batch) -> Sums:
    rows = real_rows(batch)
    if (length := batch.get("response_length")) is not None:
        rows = rows & (length != 0)
    empty = rows & (per_sequence_counts(batch) == 0)
    finish = batch.get("finish_reason")
    filtered = np.zeros_like(rows) if finish is None else (finish == "length") | (finish == "abort")
    normaliser = batch.get("loss_mask")
    counted = np.zeros_like(rows)
    if normaliser is not None and empty.any():
        counted = _any_row(batch, normaliser.astype(np.bool_))
    found = (empty, empty & ~filtered & ~counted, empty & counted)
    return Sums(tuple(Sum.counted(int(flags.sum()), int(rows.sum())) for flags in found))


_declare(
    "empty_frac", _empty, 0, formula="share_i[Ti empty]",
    doc="Share of rows without a trained token; padding rows and rows without a response are left out.",
)  # fmt: skip
_declare(
    "empty_unexplained_frac", _empty, 1, formula="share_i[Ti empty, loss_mask empty, finish_reason neither length nor abort]",
    doc="Share of rows without a trained token whose finish_reason is neither length nor abort, and that were not rejected.",
)  # fmt: skip
_declare(
    "rejected_frac", _empty, 2, formula="share_i[Ti empty, loss_mask not empty]",
    doc="Share of rows without a trained token that the loss still counts (loss_mask): rejected as a whole.",
)  # fmt: skip
