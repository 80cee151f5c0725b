"""Where inside a response engine and trainer part: the stretch of tokens of a row in which they disagree."""

from __future__ import annotations

from dataclasses import fields
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import FIRST_STEP, Floats, derived, per_sequence_counts, restricted, selected_splits, selection
from rl_doctor.analyzer.metrics.mismatch import possible, rollout_pair, rollout_rows, trainer_side
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Sum, Sums, Top, mean
from rl_doctor.frozen import frozen
from rl_doctor.store.batch import Batch

_ROWS_ABOVE: Final = 0.1
"""Mean |d| (nat) of a row from which on it is looked at token by token."""
_LEAST: Final = 24
_SIDE: Final = 8
"""Tokens that the stretch must have, and that must come before it."""
_LEVEL: Final = 0.25
"""|d| (nat) that counts as neither floor nor fault; |d| is cut at eight times it."""
_FLOOR: Final = 0.1
_FAULT: Final = 0.4
_UNRELATED: Final = 0.5
_FILLED: Final = 0.5
"""Share of rollout_logprob in a stretch that may be exactly 0: where it is more, they are missing and not of other tokens."""
_NEAR_END: Final = 5
_CELLS: Final = 1 << 21
_LAGS: Final = (-3, -2, -1, 1, 2, 3)

NEEDS: Final = ("rollout_logprob", "old_logprob|logprob", "response_mask")
_PAIR: Final = ("old_logprob", "logprob", "minibatch", "epoch", FIRST_STEP, "response_length")
OPTIONAL: Final = (*_PAIR, "token_version")
_KEPT: Final = (*NEEDS[::2], *_PAIR, "is_padding", "token_version")


@frozen(eq=False)
class _Parted:
    """Rows with a stretch in which engine and trainer disagree and before which they agree.

    Attributes:
        rows: int64 ``[k]``, of the batch.
        looked: number of rows with enough pairs.
        apart: float64 ``[k]``, mean |d| inside.
        at: int64 ``[k]``, first token of the stretch among the trained ones.
        to_end: bool ``[k]``, it reaches a gap in the mask or the end.
        gap: bool ``[k]``, the row has gaps in its mask.
        after_gap: bool ``[k]``, the stretch begins right behind one.
        switched: bool ``[k]``, the version that sampled changes where it begins.
        shifted: bool ``[k]``, inside, one column moved by 1 to 3 tokens follows the other.
    """

    rows: NDArray[np.int64]
    looked: int
    apart: Floats
    at: NDArray[np.int64]
    to_end: NDArray[np.bool_]
    gap: NDArray[np.bool_]
    after_gap: NDArray[np.bool_]
    switched: NDArray[np.bool_]
    shifted: NDArray[np.bool_]


@derived
def _parted(batch: Batch) -> _Parted | None:
    pair, sums = rollout_pair(batch), rollout_rows(batch)
    if pair is None or sums is None:
        return None
    counts = np.diff(pair.splits)
    enough = counts >= _LEAST
    chosen = np.flatnonzero(enough & (sums.sums[0] > _ROWS_ABOVE * counts))
    looked = int(np.count_nonzero(enough))
    pieces = [_look(batch, rows, looked) for rows in _portions(per_sequence_counts(batch), chosen)]
    if not pieces:
        return _nothing(looked) if looked else None
    names = [one.name for one in fields(_Parted) if one.name != "looked"]
    joined = {name: np.concatenate([getattr(piece, name) for piece in pieces]) for name in names}
    return _Parted(looked=looked, **joined)


def _nothing(looked: int) -> _Parted:
    none, flags = np.empty(0, np.int64), np.empty(0, np.bool_)
    return _Parted(none, looked, np.empty(0), none, flags, flags, flags, flags, flags)


def _portions(counts: NDArray[np.int64], rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The rows, in portions whose padded tables have a bounded number of cells."""
    if not rows.size:
        return []
    order = rows[np.argsort(counts[rows], kind="stable")]
    cells = np.cumsum(counts[order])
    return np.split(order, np.flatnonzero(np.diff(cells // _CELLS)) + 1)


def _look(batch: Batch, rows: NDArray[np.int64], looked: int) -> _Parted:
    rows = np.sort(rows)
    flags = np.zeros(batch.n_sequences, np.bool_)
    flags[rows] = True
    part = restricted(batch, flags, _KEPT)
    trainer, chosen = trainer_side(part), selection(part)
    if trainer is None:  # the pair of the batch has one
        raise ValueError("no logprob of the trainer")
    splits = selected_splits(part)
    x, y = part.columns["rollout_logprob"][chosen].astype(np.float64), trainer[chosen].astype(np.float64)
    fine = possible(x) & possible(y)
    size = np.where(fine, np.minimum(np.abs(np.where(fine, y - x, 0.0)), 8 * _LEVEL), np.nan)
    table = _table(np.where(fine, size - _LEVEL, 0.0), splits, -_LEVEL)
    start, stop = _largest(table)
    inside, outside = _sides(np.where(fine, size, 0.0), splits, start, stop)
    length, number = stop - start, np.diff(splits)
    found = (length >= _SIDE) & (start >= _SIDE) & (inside >= _FAULT * length) & (outside <= _FLOOR * (number - length))
    in_place, moved = _related(x, y, fine, splits, start, stop)
    found &= ~(in_place >= _UNRELATED)
    filled, _ = _sides((x == 0).astype(np.float64), splits, start, stop)
    found &= filled <= _FILLED * length
    at = np.flatnonzero(found)
    place = np.flatnonzero(chosen)
    first, last = splits[:-1][at] + start[at], splits[:-1][at] + stop[at] - 1
    gaps = np.diff(part.splits) > number
    before = np.maximum(first - 1, 0)
    jump = place[first] - place[before] > 1
    return _Parted(
        rows[at], looked, inside[at] / length[at], start[at], _reaches(place, splits, at, last), gaps[at],
        jump, _switches(part, place, first), moved[at] > np.maximum(in_place[at], 0.8),
    )  # fmt: skip


def _table(values: Floats, splits: NDArray[np.int64], empty: float) -> Floats:
    """Values of ragged rows as ``[rows, width]``."""
    counts = np.diff(splits)
    table = np.full((len(counts), int(counts.max(initial=1))), empty)
    row = np.repeat(np.arange(len(counts)), counts)
    table[row, np.arange(len(values)) - splits[:-1][row]] = values
    return table


def _largest(table: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Start and stop of the stretch of each row with the largest sum, int64 ``[rows]``."""
    sums = np.concatenate([np.zeros((len(table), 1)), np.cumsum(table, axis=1)], axis=1)
    lowest = np.minimum.accumulate(sums[:, :-1], axis=1)
    stop = np.argmax(sums[:, 1:] - lowest, axis=1)
    start = np.argmax(sums[:, :-1] == lowest[np.arange(len(table)), stop][:, None], axis=1)
    return start.astype(np.int64), (stop + 1).astype(np.int64)


def _sides(size: Floats, splits: NDArray[np.int64], start: NDArray[np.int64], stop: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Sums of ``size`` inside and outside the stretch of each row."""
    ends = np.stack([splits[:-1] + start, splits[:-1] + stop], axis=1).reshape(-1)
    inside = np.add.reduceat(np.append(size, 0.0), ends)[::2]  # each by itself, so that no other row matters
    return inside, np.add.reduceat(size, splits[:-1]) - inside


def _related(
    x: Floats, y: Floats, fine: NDArray[np.bool_], splits: NDArray[np.int64], start: NDArray[np.int64], stop: NDArray[np.int64]
) -> tuple[Floats, Floats]:
    """Correlation of the two inside the stretch of each row: in place, and the best of those moved by 1 to 3 tokens."""
    row = np.repeat(np.arange(len(start)), np.diff(splits))
    position = np.arange(len(x)) - splits[:-1][row]
    within = fine & (position >= start[row]) & (position < stop[row])
    best = np.full(len(start), -1.0)
    for lag in _LAGS:
        best = np.fmax(best, _correlation(x, np.roll(y, lag), within & np.roll(within, lag) & _same(row, lag), row, len(start)))
    return _correlation(x, y, within, row, len(start)), best


def _same(row: NDArray[np.int64], lag: int) -> NDArray[np.bool_]:
    same: NDArray[np.bool_] = row == np.roll(row, lag)
    return same


def _correlation(x: Floats, y: Floats, chosen: NDArray[np.bool_], row: NDArray[np.int64], rows: int) -> Floats:
    index = row[chosen]
    n = np.maximum(np.bincount(index, minlength=rows), 1)
    left, right = x[chosen], y[chosen]
    left = left - (np.bincount(index, left, minlength=rows) / n)[index]
    right = right - (np.bincount(index, right, minlength=rows) / n)[index]
    both = np.bincount(index, left * right, minlength=rows)
    scale = np.sqrt(np.bincount(index, left**2, minlength=rows) * np.bincount(index, right**2, minlength=rows))
    return np.where(scale > 0, both / np.where(scale > 0, scale, 1.0), 0.0)


def _reaches(
    place: NDArray[np.int64], splits: NDArray[np.int64], at: NDArray[np.int64], last: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Whether within a few tokens behind ``last`` the row ends or its mask has a gap: the last differences may be small."""
    later = np.minimum(last + _NEAR_END, splits[1:][at] - 1)
    ends = last + _NEAR_END >= splits[1:][at]
    return np.asarray(ends | (place[later] - place[last] > later - last), np.bool_)


def _switches(part: Batch, place: NDArray[np.int64], first: NDArray[np.int64]) -> NDArray[np.bool_]:
    version = part.get("token_version")
    if version is None or not first.size:
        return np.zeros(first.size, np.bool_)
    after, before = np.minimum(first + 1, len(place) - 1), np.maximum(first - 2, 0)
    return np.asarray(version[place[after]] != version[place[before]], np.bool_)


@reduction(zero=Sums(), needs=NEEDS, optional=OPTIONAL)
def _counts(batch: Batch) -> Sums:
    found = _parted(batch)
    if found is None:
        return Sums()
    number = len(found.rows)
    flags = (found.to_end, found.gap, found.after_gap, found.switched, found.shifted)
    shares = tuple(Sum.counted(int(np.count_nonzero(flag)), number) for flag in flags)
    position = Sum.counted(int(found.at.sum()), number)
    return Sums((Sum.counted(number, found.looked), *shares, position, Sum.of(found.apart, number)))


_SOURCE: Final = "tokens that were sampled and tokens that were trained are the same up to the first that differs"
_METRICS: Final = (
    ("parted_frac", "1", "share_i[a stretch of 8 tokens or more with mean |d| > .4 after 8 or more with mean |d| < .1]",
     "Share of the rows of 24 tokens or more in which engine and trainer agree up to a token and are unrelated from it on."),
    ("to_end_frac", "1", "share over these[the stretch ends at a gap in the mask or the end]",
     "Of these rows, the share whose stretch reaches the end of the turn."),
    ("gap_frac", "1", "share over these[the mask has gaps]",
     "Of these rows, the share with untrained tokens in their response."),
    ("after_gap_frac", "1", "share over these[the stretch begins after a gap]",
     "Of these rows, the share whose stretch begins with the first token after untrained ones."),
    ("switched_frac", "1", "share over these[token_version changes there]",
     "Of these rows, the share in which the version that sampled changes where the stretch begins."),
    ("shifted_frac", "1", "share over these[corr at a lag of 1 to 3 > .8 and above that at 0]",
     "Of these rows, the share in which one column follows the other some tokens later, inside the stretch."),
    ("start_mean", "tokens", "mean first token of the stretch", "Mean number of trained tokens before the stretch."),
    ("abs", "nat", "mean |d| of the stretch, |d| cut at 2", "Mean |d| inside the stretch."),
)  # fmt: skip
for _index, (_name, _unit, _formula, _doc) in enumerate(_METRICS):
    metric(f"inner.{_name}", _counts, mean, part=_index, unit=_unit, source=_SOURCE, formula=_formula, doc=_doc)


@reduction(zero=Top(), needs=(*NEEDS, "sequence"), optional=(*OPTIONAL, "uid"))
def _rows(batch: Batch) -> Top:
    found, uid = _parted(batch), batch.get("uid")
    if found is None:
        return Top()
    return Top.of(found.apart, batch.columns["sequence"][found.rows], None if uid is None else uid[found.rows])


metric(
    "inner.rows", _rows, lambda top: top.largest, unit="nat", source="arithmetic", formula="max over these mean |d|",
    doc="Largest mean |d| of such a stretch; the rows are told as samples.",
)  # fmt: skip
