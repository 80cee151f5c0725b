"""verl: the value loss. Its keys are computed from the rows that have ``value``: of the run, or of its critic's passes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from rl_doctor.analyzer.derive import Floats, derived, per_sequence_counts, per_sequence_sums, selected
from rl_doctor.analyzer.formulas.value import clipped_value_errors
from rl_doctor.analyzer.recompute.registry import TOLERANCE, Logged
from rl_doctor.analyzer.recompute.stages import MICROBATCH_OF_RANK, Flags, Shares, sums_by, token_shares
from rl_doctor.analyzer.recompute.verl_aggregation import AGGREGATIONS, each, mini
from rl_doctor.analyzer.recompute.verl_settings import Settings
from rl_doctor.store.batch import Batch

_NEEDS = ("value", "old_value", "return")
_PADDING = ("is_padding",)


def keys(settings: Settings) -> Iterator[Logged]:
    """The loss per mini-batch; the rest per micro-batch and rank, averaged at once without weights."""
    mean = sums_by(MICROBATCH_OF_RANK, derived(_mean), needs=("value",), optional=_PADDING)
    yield Logged("critic/vpred_mean", "value.mean", "reward", mean, each, "step")
    if settings.value_clip is None:
        return
    clip = settings.value_clip
    flags = sums_by(MICROBATCH_OF_RANK, derived(partial(_clipped, clip=clip)), needs=_NEEDS, optional=_PADDING)
    yield Logged("critic/vf_clipfrac", "value.clip_frac", "1", flags, each, "step")
    mode = settings.value_agg
    rows = derived(partial(_loss, clip=clip))
    if settings.nine and mode is not None and mode in AGGREGATIONS:
        for name in ("critic/vf_loss", "critic/loss"):
            yield mini(name, "value.loss", rows, mode, _NEEDS, factor=0.5)
    elif mode == "token-mean":  # 0.8 normalises each micro-batch by its own tokens
        local = sums_by(MICROBATCH_OF_RANK, derived(partial(_local, clip=clip)), needs=_NEEDS, optional=_PADDING)
        yield Logged("critic/vf_loss", "value.loss", "1", local, each, "step")


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


def _local(batch: Batch, clip: float) -> Shares:
    value, size, _ = _loss(batch, clip)
    return Shares(0.5 * value, 0.5 * size, per_sequence_counts(batch))
