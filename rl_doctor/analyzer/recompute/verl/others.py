"""verl: other values than those that its keys are defined as."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from rl_doctor.analyzer.derive import Floats, per_sequence_sums, selected
from rl_doctor.analyzer.recompute.stages import Share
from rl_doctor.analyzer.recompute.variations.measures import Part
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
from rl_doctor.store.batch import Batch

Others = Callable[[], tuple[Part, ...]]
Rows = Callable[[Batch], tuple[Floats, Floats, Floats | None]]
_CLAMP: Final = 20.0
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
    return lambda: parts(as_tokens, clipped_shares(_clip(settings), own))


def other_losses(settings: Settings, share: Callable[[Rows], Share]) -> Others:
    """Of the policy loss; ``share`` aggregates sums per sequence."""
    if settings.loss_mode not in {"vanilla", "gspo"}:
        return tuple
    return lambda: _aggregated(losses(_clip(settings)), share)


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
