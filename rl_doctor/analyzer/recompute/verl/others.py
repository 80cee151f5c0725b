"""verl: other values than those that its keys are defined as."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import Floats, derived, per_sequence_sums, selected
from rl_doctor.analyzer.recompute.stages import Flags, Share, token_shares
from rl_doctor.analyzer.recompute.variations.measures import Part
from rl_doctor.analyzer.recompute.variations.ranges import WORDS
from rl_doctor.analyzer.recompute.variations.values import (
    Clip,
    Value,
    Valued,
    as_tokens,
    clamps,
    clipped_shares,
    estimates,
    losses,
    parts,
)
from rl_doctor.analyzer.recompute.verl.losses import terms
from rl_doctor.analyzer.recompute.verl.settings import Settings
from rl_doctor.frozen import frozen
from rl_doctor.store.batch import Batch

Others = Callable[[], tuple[Part, ...]]
Rows = Callable[[Batch], tuple[Floats, Floats, Floats | None]]
_CLAMP: Final = 20.0
BOUNDED: Final = frozenset({"vanilla", "dppo_tv", "dppo_kl", "gspo", "cispo", "geo_mean"})
"""Losses that need ``clip_ratio``."""
_SIGN: Final = {"k1": ("k1 reversed",)}
"""Estimates that are others with the opposite sign."""


def other_distances(settings: Settings) -> Others:
    """Of the distance from the old policy."""

    def x(batch: Batch) -> Floats:
        return selected(batch, "logprob") - selected(batch, "old_logprob")

    own = "abs" if settings.loss_mode == "kl_cov" else "k1"
    return lambda: parts(as_tokens, [*estimates(x, own, *_SIGN.get(own, ())), *clamps(x, own, _CLAMP)])


def other_clips(settings: Settings, own: str) -> Others:
    """Of a share of clipped tokens."""
    if settings.loss_mode not in {"vanilla", "gspo", "cispo"}:
        return tuple

    def flags(other: Settings) -> Share:
        return lambda batch: token_shares(batch, terms(batch, other).clipped[0].astype(np.float64))

    def others() -> tuple[Part, ...]:
        ends = other_ends(settings) if own == "both sides" else ()
        return (
            *parts(as_tokens, clipped_shares(_clip(settings), own)),
            *(Part(name, sentence, derived(flags(other))) for name, sentence, other in ends),
        )

    return others


@frozen(eq=False)
class Beside:
    """What else is in the loss: its name, its values per sequence, its sign times its coefficient, and the columns it needs."""

    name: str
    rows: Rows
    factor: float
    needs: tuple[str, ...]


def other_losses(settings: Settings, share: Callable[[Rows], Share], own: Rows, beside: Iterable[Beside]) -> Others:
    """Of the policy loss ``own``; ``share`` aggregates sums per sequence, and ``beside`` is what is aggregated alike."""

    def others() -> Iterator[Part]:
        for one in beside:
            name = f"{one.name} term included"
            yield Part(name, f"has the {one.name} term in it", share(_added(own, one)), one.needs)
        for name, sentence, other in other_ends(settings):
            yield Part(name, sentence, share(partial(policy_rows, settings=other)))
        if settings.loss_mode in {"vanilla", "gspo"}:
            yield from _aggregated(losses(_clip(settings)), share)

    return lambda: tuple(others())


def policy_rows(batch: Batch, settings: Settings) -> tuple[Floats, Floats, Floats | None]:
    """The policy loss, per sequence."""
    return summed(batch, *terms(batch, settings).loss)


def summed(batch: Batch, values: Floats, sizes: Floats, near: Flags | None) -> tuple[Floats, Floats, Floats | None]:
    """Sums per sequence of a loss, of the size of its summands, and of what of it may flip at a threshold."""
    slack = None if near is None else per_sequence_sums(batch, np.where(near, sizes, 0.0))
    return per_sequence_sums(batch, values), per_sequence_sums(batch, sizes), slack


def _added(own: Rows, beside: Beside) -> Rows:
    def rows(batch: Batch) -> tuple[Floats, Floats, Floats | None]:
        value, size, slack = own(batch)
        more, its_size, _ = beside.rows(batch)
        return value + beside.factor * more, size + abs(beside.factor) * its_size, slack

    return rows


def other_ends(settings: Settings) -> Iterator[tuple[str, str, Settings]]:
    """The clip range of the canonical configuration, and the own one with one of its ends on both sides."""
    low, high, told = settings.low, settings.high, settings.canonical_range
    if low is None or high is None or settings.loss_mode not in BOUNDED:
        return
    if told is not None:
        yield *WORDS, replace(settings, low=told[0], high=told[1])
    if low == high:
        return
    yield (
        "lower bound on both sides",
        f"has the lower bound's {low:g} on both sides of the clip range",
        replace(settings, high=low),
    )
    yield (
        "upper bound on both sides",
        f"has the upper bound's {high:g} on both sides of the clip range",
        replace(settings, low=high),
    )


def times_coefficient(name: str, coefficient: float | None, share: Callable[[float], Share]) -> tuple[Part, ...]:
    """A term of the loss, logged with its coefficient; ``share`` is the term times a number."""
    if not coefficient or coefficient == 1.0:
        return ()
    told = f"the {name} coefficient"
    return (Part(f"times {told}", f"is multiplied by {told}, {coefficient:g}", share(coefficient)),)


def other_penalties(kind: str, share: Callable[[Rows], Share]) -> Others:
    """Of the KL to the reference, estimated as ``kind``."""

    def x(batch: Batch) -> Floats:
        return selected(batch, "ref_logprob") - selected(batch, "logprob")

    return lambda: _aggregated(estimates(x, kind, *_SIGN.get(kind, ())), share)


def _aggregated(values: Iterable[Value], share: Callable[[Rows], Share]) -> tuple[Part, ...]:
    return parts(lambda function: share(_rows(function)), list(values))


def _rows(function: Valued) -> Rows:
    def rows(batch: Batch) -> tuple[Floats, Floats, None]:
        value, size = function(batch)
        return per_sequence_sums(batch, value), per_sequence_sums(batch, size), None

    return rows


def _clip(settings: Settings) -> Clip:
    low, high = settings.low or 0.0, settings.high or 0.0
    dual = settings.dual_clip if settings.loss_mode == "vanilla" else None
    return Clip(lambda batch: terms(batch, settings).ratio, 1.0 - low, 1.0 + high, dual)
