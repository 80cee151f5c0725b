"""verl: the value loss. Its keys are computed from the rows that have ``value``: of the run, or of its critic's passes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from rl_doctor.analyzer.derive import Floats, derived, per_sequence_sums, selected
from rl_doctor.analyzer.formulas.value import clipped_value_errors
from rl_doctor.analyzer.recompute.registry import TOLERANCE, Logged
from rl_doctor.analyzer.recompute.stages import Flags, Shares, token_shares
from rl_doctor.analyzer.recompute.verl.aggregation import mini
from rl_doctor.analyzer.recompute.verl.settings import Settings
from rl_doctor.analyzer.recompute.verl.stages import Older, modes_of
from rl_doctor.store.batch import Batch

_NEEDS = ("value", "old_value", "return")


def keys(settings: Settings) -> Iterator[Logged]:
    """The loss per mini-batch, before 0.9 per micro-batch; the rest per micro-batch and rank, averaged without weights."""
    local = Older(settings.era, None if settings.era.engine else settings.response_limit)
    yield local.micro("critic/vpred_mean", "value.mean", "reward", derived(_mean), ("value",), tuple)
    if settings.value_clip is None:
        return
    clip = settings.value_clip
    yield local.micro("critic/vf_clipfrac", "value.clip_frac", "1", derived(partial(_clipped, clip=clip)), _NEEDS, tuple)
    mode = settings.value_agg
    if mode is None or mode not in modes_of(settings.era):
        return
    rows = derived(partial(_loss, clip=clip))
    if settings.era.minor < (0, 9):
        yield local.loss("critic/vf_loss", "value.loss", rows, mode, _NEEDS, factor=0.5)
        return
    for name in ("critic/vf_loss", "critic/loss"):
        yield mini(name, "value.loss", rows, mode, _NEEDS, factor=0.5)


def _mean(batch: Batch) -> Shares:
    return token_shares(batch, selected(batch, "value"))


def _errors(batch: Batch, clip: float) -> tuple[Floats, Floats, Floats, Flags]:
    """Squared errors of the value as it is and clipped, size of their summands, and where float32 cannot tell which is larger."""
    value, old, returns = (selected(batch, name) for name in _NEEDS)
    plain, clipped = clipped_value_errors(value, old, returns, clip)
    size = np.maximum(plain, clipped)
    scale = np.abs(value) + np.abs(old) + np.abs(returns) + clip
    near = (plain != clipped) & (np.abs(plain - clipped) <= TOLERANCE * scale * np.sqrt(size))
    near |= (np.abs(np.abs(value - old) - clip) <= TOLERANCE * scale) & (size > 0)
    return plain, clipped, size + TOLERANCE * scale, near


def _clipped(batch: Batch, clip: float) -> Shares:
    plain, clipped, _, near = _errors(batch, clip)
    flags = (clipped > plain).astype(np.float64)
    return token_shares(batch, flags, flags, near)


def _loss(batch: Batch, clip: float) -> tuple[Floats, Floats, None]:
    plain, clipped, size, _ = _errors(batch, clip)
    return per_sequence_sums(batch, np.maximum(plain, clipped)), per_sequence_sums(batch, size), None
