"""Where mask and author part: at the edges of what the policy wrote, inside it, and in which sequences."""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer import slices
from rl_doctor.analyzer.derive import (
    FIRST_STEP,
    Bools,
    derived,
    finite,
    known,
    per_sequence_counts,
    positions,
    real_rows,
    selection,
    spread,
)
from rl_doctor.analyzer.formulas.segments import segment_sums
from rl_doctor.analyzer.metrics.mismatch import CERTAIN, trainer_side
from rl_doctor.analyzer.registry import Reduction, metric, reduction
from rl_doctor.analyzer.states import Counts, Named, Sum, Sums, Top, mean
from rl_doctor.schema import ROLES
from rl_doctor.store.batch import Batch

_ASSISTANT: Final = ROLES.index("assistant")
_SOURCE: Final = "the loss covers what the policy sampled, and nothing else"
LONGEST: Final = 8
"""Longer runs of wrong tokens are not an edge that is a few tokens off."""
OTHER: Final = 0
WRITTEN: Final = 1

NEEDS: Final = ("response_mask", "role|rollout_logprob")
OPTIONAL: Final = (
    "role", "rollout_logprob", "old_logprob", "logprob", "minibatch", "epoch", FIRST_STEP, "response_length",
)  # fmt: skip


@derived
def authors(batch: Batch) -> NDArray[np.int8] | None:
    """Int8 ``[n_tokens]``: 1 where the policy wrote the token, 0 where it did not, -1 where nothing tells; None for no token.

    By role, else by the engine, which gives logprobs of what it sampled only. Tokens at and beyond the length are unknown.
    """
    role, rollout = batch.get("role"), batch.get("rollout_logprob")
    unknown = np.int8(-1)
    if rollout is None:
        found = np.full(batch.n_tokens, unknown)
    else:
        there = finite(batch, "rollout_logprob")
        silent = ~there | (rollout == 0.0)
        at = np.flatnonzero(silent)
        if not at.size and role is None and selection(batch).all():
            return None
        found = np.full(batch.n_tokens, WRITTEN, np.int8)
        found[at] = _silent(batch, at, there)
    if role is not None:
        found = np.where(role < 0, found, (role == _ASSISTANT).astype(np.int8))
    return _inside(batch, found)


def _silent(batch: Batch, at: NDArray[np.int64], there: Bools) -> NDArray[np.int8]:
    """Int8 ``[k]``: whether the policy wrote the tokens ``at`` that the engine gave no logprob but 0.

    A row without any logprob says nothing about authors, and 0 nothing where the trainer is sure of the token too.
    """
    trainer = trainer_side(batch)
    missing = ~there[at] if trainer is None else ~there[at] | (trainer[at] < CERTAIN)
    number = np.diff(np.searchsorted(at, batch.splits))
    spoken = number < batch.lengths
    row = np.repeat(np.arange(batch.n_sequences), number)
    return np.where(missing & spoken[row], np.int8(OTHER), np.int8(-1))


def _inside(batch: Batch, found: NDArray[np.int8]) -> NDArray[np.int8]:
    length = batch.get("response_length")
    if length is None:
        return found
    beyond = known(length) & (length >= 0) & (length < batch.lengths)
    if beyond.any():
        found = np.where(spread(batch, beyond) & (positions(batch) >= spread(batch, length)), np.int8(-1), found)
    return found


@derived
def _wrong(batch: Batch) -> Bools | None:
    """Bool ``[n_tokens]``: tokens at which mask and author contradict each other, in rows that train something; None for none."""
    author = authors(batch)
    if author is None:
        return None
    wrong = (author >= 0) & (selection(batch) != (author == WRITTEN))
    if not wrong.any():
        return None
    wrong &= spread(batch, real_rows(batch) & (per_sequence_counts(batch) > 0))
    return wrong if wrong.any() else None


@derived
def _blocks(batch: Batch) -> NDArray[np.int64]:
    """Int64 ``[n_sequences]``: stretches that the policy wrote, in rows that train something."""
    rows = real_rows(batch) & (per_sequence_counts(batch) > 0)
    author = authors(batch)
    if author is None:
        return rows.astype(np.int64)
    wrote = author == WRITTEN
    begins = wrote.copy()
    np.greater(wrote[1:], wrote[:-1], out=begins[1:])
    starts = batch.splits[:-1][batch.lengths > 0]
    begins[starts] = wrote[starts]
    return np.where(rows, np.diff(np.searchsorted(np.flatnonzero(begins), batch.splits)), 0)


@derived
def _runs(batch: Batch) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]] | None:
    """Runs of wrong tokens as (start, stop, kind), int64 ``[k]``; None for none.

    Kind 0: others' tokens trained before what the policy wrote, with untrained ones before them, 1: after it, with untrained
    ones after them; 2: first tokens that it wrote untrained, 3: last ones; 4: none of these (long, or between its own).
    """
    wrong, author, trained = _wrong(batch), authors(batch), selection(batch)
    if wrong is None or author is None:
        return None
    row = spread(batch, np.arange(batch.n_sequences))
    at = np.flatnonzero(wrong)
    cut = np.ones(at.size, np.bool_)
    cut[1:] = (np.diff(at) > 1) | (row[at[1:]] != row[at[:-1]]) | (author[at[1:]] != author[at[:-1]])
    start = at[cut]
    stop = np.append(at[np.flatnonzero(cut)[1:] - 1], at[-1]) + 1
    left, right = np.maximum(start - 1, 0), np.minimum(stop, batch.n_tokens - 1)
    has_left, has_right = start > batch.splits[row[start]], stop < batch.splits[row[start] + 1]
    right_of = has_right & trained[right] & (author[right] == WRITTEN)  # what is right follows, or comes before
    left_of = has_left & trained[left] & (author[left] == WRITTEN)
    extra = author[start] == OTHER
    kind = np.full(start.size, 4, np.int64)
    short = stop - start <= LONGEST
    kind[short & extra & right_of & has_left & ~trained[left]] = 0
    kind[short & extra & left_of & has_right & ~trained[right]] = 1
    kind[short & ~extra & right_of & ~left_of] = 2
    kind[short & ~extra & left_of & ~right_of] = 3
    return start, stop, kind


@reduction(zero=Sums(), needs=NEEDS, optional=OPTIONAL)
def _edges(batch: Batch) -> Sums:
    blocks, found = int(_blocks(batch).sum()), _runs(batch)
    numbers = np.zeros(4, np.int64) if found is None else np.bincount(found[2], minlength=5)[:4]
    return Sums(tuple(Sum.counted(min(int(number), blocks), blocks) for number in numbers))


_EDGES: Final = (
    ("extra_head", "have tokens of somebody else trained right before them"),
    ("extra_tail", "have tokens of somebody else trained right after them"),
    ("missing_head", "lack their first tokens in the loss"),
    ("missing_tail", "lack their last tokens in the loss"),
)
for _index, (_name, _words) in enumerate(_EDGES):
    metric(
        f"mask.{_name}_frac", _edges, mean, part=_index, unit="1", source=_SOURCE,
        formula=f"share of stretches written by the policy[{_name.replace('_', ' ')}, 1 to 8 tokens]",
        doc=f"Share of the stretches that the policy wrote which {_words}, 1 to {LONGEST} tokens.",
    )  # fmt: skip


@reduction(zero=Sums(), needs=NEEDS, optional=OPTIONAL)
def _inner(batch: Batch) -> Sums:
    """Tokens of the policy that are not trained in rows that train others: all, and those with trained ones on both sides."""
    author, found = authors(batch), _runs(batch)
    rows = real_rows(batch) & (per_sequence_counts(batch) > 0)
    count = int(batch.lengths[rows].sum()) if author is None else int(segment_sums(author == WRITTEN, batch.splits)[rows].sum())
    if author is None or found is None:
        return Sums((Sum(count=count), Sum(count=count)))
    start, stop, kind = found
    mine = author[start] == WRITTEN
    size = stop - start
    inside = mine & (kind == 4)
    return Sums((Sum.counted(int(size[mine].sum()), count), Sum.counted(int(size[inside].sum()), count)))


metric(
    "mask.written_untrained_frac", _inner, mean, part=0, unit="1", source=_SOURCE,
    formula="share over t that the policy wrote[m = 0], rows that train anything",
    doc="Share of the tokens that the policy wrote which are not trained, in rows that train others.",
)  # fmt: skip
metric(
    "mask.written_untrained_inside_frac", _inner, mean, part=1, unit="1", source=_SOURCE,
    formula="share over t that the policy wrote[m = 0, not at an edge]",
    doc="Share of the tokens that the policy wrote which are not trained and lie elsewhere than at an edge.",
)  # fmt: skip


@derived
def _wrong_rows(batch: Batch) -> NDArray[np.float64]:
    """Float64 ``[n_sequences]``: number of wrong tokens of each row."""
    wrong = _wrong(batch)
    found = np.zeros(batch.n_sequences) if wrong is None else segment_sums(wrong, batch.splits)
    return np.asarray(found, np.float64)


def _by(by: str, batch: Batch) -> Named:
    return slices.of_sequences(batch, by, _wrong_rows(batch)[None], batch.lengths)


for _slice in ("rank", "source", "finish", "turns", "left_padding", "microbatch"):
    metric(
        f"mask.wrong_by.{_slice}.",
        Reduction(partial(_by, _slice), Named({}), (*NEEDS, *slices.SEQUENCE_SLICES[_slice][0]), OPTIONAL, "token"),
        mean, part=0, unit="1", source="where a difference concentrates tells its cause",
        formula="share of stored t[m contradicts the author] of each part",
        doc=f"Share of the stored tokens at which mask and author contradict each other, by {_slice.replace('_', ' ')}.",
    )  # fmt: skip


@reduction(zero=Named({}), needs=(*NEEDS, "turn"), optional=OPTIONAL)
def _by_turn(batch: Batch) -> Named:
    turn, wrong = batch.columns["turn"], _wrong(batch)
    fine = known(turn) & (turn >= 0) & spread(batch, real_rows(batch) & (per_sequence_counts(batch) > 0))
    names, member = np.unique(turn[fine], return_inverse=True)
    flags = np.zeros(member.size) if wrong is None else wrong[fine].astype(np.float64)
    counts = np.bincount(member, minlength=len(names))
    sums = np.bincount(member, flags, minlength=len(names))
    return Named.of([str(name) for name in names], np.arange(len(names)), sums.astype(np.float64)[None], counts)


metric(
    "mask.wrong_by.turn.", _by_turn, mean, part=0, unit="1", source="where a difference concentrates tells its cause",
    formula="share of stored t[m contradicts the author] of each turn",
    doc="Share of the stored tokens at which mask and author contradict each other, by turn.",
)  # fmt: skip


@reduction(zero=Top(), needs=(*NEEDS, "sequence"), optional=(*OPTIONAL, "uid"))
def _worst(batch: Batch) -> Top:
    wrong = _wrong_rows(batch)
    rows, uid = np.flatnonzero(wrong), batch.get("uid")
    return Top.of(wrong[rows], batch.columns["sequence"][rows], None if uid is None else uid[rows])


metric(
    "mask.wrong_rows", _worst, lambda top: top.largest, unit="tokens", source="arithmetic",
    formula="max_i number of stored t[m contradicts the author]",
    doc="Largest number of tokens of a row at which mask and author contradict each other; the rows are told as samples.",
)  # fmt: skip


@reduction(zero=Sums(), needs=NEEDS, optional=OPTIONAL)
def _foreign(batch: Batch) -> Sums:
    """Of others' tokens that are trained those at edges; of the runs of the policy's that are not, those inside."""
    found, author = _runs(batch), authors(batch)
    if found is None or author is None:
        return Sums()
    start, stop, kind = found
    size, other = stop - start, author[start] == OTHER
    edge = other & (kind < 2)
    return Sums((Sum.counted(int(size[edge].sum()), int(size[other].sum())),))


metric(
    "mask.observation_edge_frac", _foreign, mean, part=0, unit="1", source=_SOURCE,
    formula="share over trained t that somebody else wrote[at an edge]",
    doc=f"Of the trained tokens that somebody else wrote, the share in runs of {LONGEST} or less beside what the policy wrote.",
)  # fmt: skip


def _edge_tokens(kinds: tuple[int, ...], batch: Batch) -> Counts:
    found = _runs(batch)
    if found is None:
        return Counts({})
    start, _, kind = found
    ids, numbers = np.unique(batch.columns["token_id"][start[np.isin(kind, kinds)]], return_counts=True)
    return Counts({str(name): int(number) for name, number in zip(ids.tolist(), numbers.tolist(), strict=True)})


def commonest(state: Counts) -> float:
    """Share of the items that have the commonest name; NaN for none."""
    return max(state.names.values()) / state.count if state.count else float("nan")


for _edge, _number in (("extra_head", 0), ("extra_tail", 1)):
    metric(
        f"mask.{_edge}_same_token",
        Reduction(partial(_edge_tokens, (_number,)), Counts({}), (*NEEDS, "token_id"), OPTIONAL, "token"),
        commonest, unit="1", source="a chat template puts the same tokens at every turn",
        formula="share of the commonest first token of such runs",
        doc="Of the runs of others' tokens trained at that edge, the share that begin with the commonest token.",
    )  # fmt: skip
