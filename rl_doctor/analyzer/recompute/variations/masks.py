"""The same values over other tokens, over a padded width, or averaged by sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import known, per_sequence_counts, real_rows
from rl_doctor.analyzer.recompute.stages import Share, Shares
from rl_doctor.analyzer.recompute.variations.measures import Varied
from rl_doctor.store.batch import Batch

Flags = NDArray[np.bool_]

_LATE: Final = "mask one position late"


def _mask(batch: Batch) -> Flags:
    return np.asarray(batch.columns["response_mask"], np.bool_)


def _earlier(batch: Batch) -> Flags:
    """Each token selected that stands before a selected one."""
    flags = np.append(_mask(batch)[1:], False)
    ends = batch.splits[1:][batch.lengths > 0] - 1
    flags[ends] = False
    return flags


def _later(batch: Batch) -> Flags:
    """Each token selected that stands behind a selected one."""
    flags = np.append(False, _mask(batch)[:-1]) if batch.n_tokens else _mask(batch)
    flags[batch.splits[:-1][batch.lengths > 0]] = False
    return flags


_MASKS: Final[dict[str, tuple[str, Callable[[Batch], Flags], tuple[str, ...]]]] = {
    "without the mask": (
        "is over all stored tokens, masked ones too", lambda batch: np.ones(batch.n_tokens, np.bool_), (),
    ),
    "mask one position early": ("is over tokens one position before those of the mask", _earlier, ()),
    _LATE: ("is over tokens one position behind those of the mask", _later, ()),
    "inverted mask": ("is over the tokens that the mask leaves out", lambda batch: ~_mask(batch), ()),
    "the loss mask": (
        "is over the tokens of loss_mask, not of response_mask",
        lambda batch: np.asarray(batch.columns["loss_mask"], np.bool_), ("loss_mask",),
    ),
    "only tokens of both masks": (
        "is over the tokens of both response_mask and loss_mask",
        lambda batch: _mask(batch) & np.asarray(batch.columns["loss_mask"], np.bool_), ("loss_mask",),
    ),
}  # fmt: skip


def recounted(share: Share) -> Share:
    """The same with the mask's own tokens in place of a recorded number of them."""

    def other(batch: Batch) -> Shares:
        key = "recounted"
        if key not in batch.scratch:
            columns = {name: values for name, values in batch.columns.items() if name not in {"batch_num_tokens", "loss_mask"}}
            batch.scratch[key] = replace(batch, columns=columns, scratch={})
        return share(batch.scratch[key])

    return other


def remasked(share: Share, name: str, *, recounted: bool) -> Share:
    """What each sequence adds under another mask.

    Args:
        share: what it adds under its own.
        name: of the other mask.
        recounted: whether a recorded number of tokens that divides the sums gives way to the number of those selected.
    """
    _, flags, _ = _MASKS[name]

    def other(batch: Batch) -> Shares:
        key = ("remasked", name, recounted)
        if key not in batch.scratch:
            left_out = ("batch_num_tokens", "loss_mask") if recounted else ()
            columns = {column: values for column, values in batch.columns.items() if column not in left_out}
            batch.scratch[key] = replace(batch, columns={**columns, "response_mask": flags(batch)}, scratch={})
        return share(batch.scratch[key])

    return other


def _padding_counted(share: Share, *, recounted: bool) -> Share:
    """One position late, where a padding position behind the last token counts as 0."""
    late = remasked(share, _LATE, recounted=recounted)

    def other(batch: Batch) -> Shares:
        found, mask, lengths = late(batch), _mask(batch), batch.lengths
        width = batch.get("padded_width")
        room = np.ones(batch.n_sequences, np.bool_) if width is None else (width > lengths) | ~known(width)
        behind = np.zeros(batch.n_sequences, np.int64)
        behind[lengths > 0] = mask[batch.splits[1:][lengths > 0] - 1]
        counts = per_sequence_counts(batch.scratch["remasked", _LATE, recounted])
        if not found.weights.any():
            return found
        if np.array_equal(found.weights, counts):
            return replace(found, weights=counts + behind * room)
        scale = counts / np.maximum(counts + behind * room, 1)  # of a row's own mean
        slack = None if found.slack is None else found.slack * scale
        weights = np.maximum(found.weights, behind * room)
        return Shares(found.numerators * scale, found.magnitudes * scale, weights, slack)

    return other


def other_masks(own: Varied) -> Iterator[Varied]:
    """The key under each other mask; where it is divided by a recorded number of tokens, also with that counted anew."""
    needs, recounts = (*own.needs, "response_mask"), "batch_num_tokens" in own.optional

    def masked(name: str, sentence: str, make: Callable[[Share], Share], more: tuple[str, ...] = ()) -> Varied:
        shares = tuple(make(share) for share in own.shares)
        return replace(own, name=name, sentence=sentence, shares=shares, needs=(*needs, *more))

    for name, (sentence, _, more) in _MASKS.items():
        yield masked(name, sentence, partial(remasked, name=name, recounted=False), more)
        if recounts:
            told = f"{sentence}, divided by the number of those"
            yield masked(f"{name} (recounted)", told, partial(remasked, name=name, recounted=True), more)
    sentence = f"{_MASKS[_LATE][0]}, where padding counts as 0"
    padded = masked(f"{_LATE} (padding counted)", sentence, partial(_padding_counted, recounted=recounts))
    yield replace(padded, optional=(*padded.optional, "padded_width"))
    yield from other_counts(own)


def other_counts(own: Varied) -> Iterator[Varied]:
    """The mean with other denominators: what lies beyond the mask counts as 0."""
    if len(own.shares) != 1:
        return
    share = own.shares[0]
    for name, sentence, count, needs in _COUNTS:
        yield replace(
            own, name=name, sentence=sentence, shares=(_counted(share, count),), needs=(*own.needs, *needs),
        )  # fmt: skip


OVER_WIDTH: Final = (
    "over the padded width", "is a mean over the padded width (the sum over the tokens, divided by rows times width)",
)  # fmt: skip


def over_width(share: Share) -> Share:
    """The sum over the mask, divided by rows times width."""
    return _counted(share, _column("padded_width"))


def _counted(share: Share, count: Callable[[Batch], NDArray[np.int64]]) -> Share:
    def other(batch: Batch) -> Shares:
        found, counts = share(batch), count(batch)
        told = counts >= 0
        return replace(
            found, numerators=np.where(told, found.numerators, np.nan), weights=np.where(told, counts, 0).astype(np.int64)
        )

    return other


def _column(name: str) -> Callable[[Batch], NDArray[np.int64]]:
    def count(batch: Batch) -> NDArray[np.int64]:
        values = batch.columns[name]
        return np.where(real_rows(batch), np.where(known(values), values, -1), 0).astype(np.int64)

    return count


def _with_column(name: str) -> Callable[[Batch], NDArray[np.int64]]:
    def count(batch: Batch) -> NDArray[np.int64]:
        more = _column(name)(batch)
        return np.where(more < 0, -1, per_sequence_counts(batch) + more)

    return count


def _stored(batch: Batch) -> NDArray[np.int64]:
    return np.where(real_rows(batch), batch.lengths, 0).astype(np.int64)


_COUNTS: Final = (
    (*OVER_WIDTH, _column("padded_width"), ("padded_width",)),
    (
        "prompt included", "divides by the tokens of the prompts too", _with_column("prompt_length"), ("prompt_length",),
    ),
    (
        "prompt tokens in the loss included", "divides by the prompt tokens in the loss too", _with_column("prompt_loss_tokens"),
        ("prompt_loss_tokens",),
    ),
    ("over the whole responses", "divides the sum over the mask by all response tokens", _column("response_length"),
     ("response_length",)),
    ("over the stored tokens", "divides the sum over the mask by all stored tokens", _stored, ("response_mask",)),
)  # fmt: skip


def other_rows(own: Varied) -> Iterator[Varied]:
    """The same sums per sequence, averaged over sequences; of a key that is one mean."""
    if len(own.shares) != 1:
        return
    share = own.shares[0]

    def by_sequence(batch: Batch, *, over: Callable[[Batch, Shares], NDArray[np.float64]], empty: bool) -> Shares:
        found = share(batch)
        if not np.array_equal(found.weights, per_sequence_counts(batch)):
            found = replace(found, numerators=np.full(batch.n_sequences, np.nan))  # no mean over tokens
        scale = over(batch, found)
        rows = real_rows(batch) if empty else real_rows(batch) & (found.weights > 0)
        slack = None if found.slack is None else found.slack * scale
        return Shares(found.numerators * scale, found.magnitudes * scale, rows.astype(np.int64), slack)

    def part(name: str, sentence: str, over: Callable[[Batch, Shares], NDArray[np.float64]], *, empty: bool = True,
             needs: tuple[str, ...] = ()) -> Varied:  # fmt: skip
        made: Share = lambda batch: by_sequence(batch, over=over, empty=empty)  # noqa: E731
        return replace(own, name=name, sentence=sentence, shares=(made,), needs=(*own.needs, *needs))

    mean = "is the mean of the sequences' own means, not a mean over tokens"
    yield part("mean of the sequences' means", mean, lambda _, found: 1.0 / np.maximum(found.weights, 1))
    yield part("mean of the filled sequences' means", f"{mean}, without empty sequences",
               lambda _, found: 1.0 / np.maximum(found.weights, 1), empty=False)  # fmt: skip
    yield part("mean of the sequences' sums", "is the mean over sequences of the sum over each (seq-mean-token-sum)",
               lambda batch, _: np.ones(batch.n_sequences))  # fmt: skip
    yield part(
        "mean of the sequences' sums over the width",
        "is the mean over sequences of the sum over each, divided by the padded width (seq-mean-token-sum-norm)",
        lambda batch, _: 1.0 / np.where(batch.columns["padded_width"] > 0, batch.columns["padded_width"], np.nan),
        needs=("padded_width",),
    )  # fmt: skip
