"""Per-token terms of verl's policy losses, in float64, at the tokens that the loss covers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from rl_doctor.analyzer.derive import Floats, selected, selected_splits
from rl_doctor.analyzer.formulas.divergence_loss import dppo_capped, dppo_loss, within_binary_kl, within_total_variation
from rl_doctor.analyzer.formulas.kl import binary_kl
from rl_doctor.analyzer.formulas.policy_loss import (
    binds,
    cispo_loss,
    dro_loss,
    dual_binds,
    outside,
    reinforce_loss,
    sapo_loss,
    surrogate_of_ratio,
)
from rl_doctor.analyzer.formulas.segments import segment_means, spread
from rl_doctor.analyzer.formulas.sequence_loss import (
    geometric_mean_loss,
    geometric_weight,
    log_ratio_outside,
    pessimistic_log_ratio,
    sequence_log_ratio,
)
from rl_doctor.analyzer.recompute.registry import EPSILON32, TOLERANCE
from rl_doctor.analyzer.recompute.stages import Flags

if TYPE_CHECKING:
    from rl_doctor.analyzer.recompute.verl.settings import Settings
    from rl_doctor.store.batch import Batch

_CLAMP: Final = 20.0
_SEQUENCE_CLAMP: Final = 10.0
_UNCLAMPED: Final = frozenset({"gspo", "clip_cov", "kl_cov", "geo_mean", "dro", "reinforce"})
"""Losses that take the log-ratio as it is."""

RATIO: Final = ("logprob", "old_logprob")
LOSSES: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(
        ("vanilla", "gspo", "dppo_tv", "dppo_kl", "cispo", "geo_mean", "sapo", "dro"), (*RATIO, "advantage")
    ),
    "gpg": ("logprob", "advantage"),
    "reinforce": ("logprob", "advantage"),
}  # fmt: skip
"""Losses that can be recomputed from what is recorded, each with what it needs."""


class Terms:
    """Values that several keys derive from one batch; made once per batch by ``terms``.

    Args:
        batch: with logprob and what the configured loss needs beside it.
        settings: the configuration.
    """

    def __init__(self, batch: Batch, settings: Settings) -> None:
        self.batch = batch
        self.settings = settings

    @cached_property
    def difference(self) -> Floats:
        """Logprob minus old logprob ``[n_selected]``, clamped where the loss clamps it."""
        values = selected(self.batch, "logprob") - selected(self.batch, "old_logprob")
        return values if self.settings.loss_mode in _UNCLAMPED else np.clip(values, -_CLAMP, _CLAMP)

    @cached_property
    def log_ratio(self) -> Floats:
        """What the loss takes the exponential of, ``[n_selected]``: of GSPO the mean over the sequence."""
        if self.settings.loss_mode != "gspo":
            return self.difference
        splits = selected_splits(self.batch)
        return spread(sequence_log_ratio(self.difference, splits, _SEQUENCE_CLAMP), splits)

    @cached_property
    def ratio(self) -> Floats:
        """The ratio ``[n_selected]``."""
        return np.exp(self.log_ratio)

    @cached_property
    def advantage(self) -> Floats:
        """The advantage ``[n_selected]``."""
        return selected(self.batch, "advantage")

    @cached_property
    def rounding(self) -> Floats:
        """Relative error of the ratio ``[n_selected]`` where its logarithm is rounded to float32, in units of the tolerance."""
        if "old_logprob" not in LOSSES[self.settings.loss_mode]:
            return np.ones(self.advantage.size)
        size = np.abs(self.difference)
        if self.settings.loss_mode == "gspo":
            splits = selected_splits(self.batch)
            size = spread(segment_means(size, splits), splits)
        return 1.0 + EPSILON32 / TOLERANCE * size

    @cached_property
    def loss(self) -> tuple[Floats, Floats, Flags | None]:
        """Policy loss, the size of its summands, and what lies at a threshold, each ``[n_selected]``."""
        value, size, near = _LOSSES[self.settings.loss_mode](self)
        weight = self.batch.get("is_weight")
        if weight is None or self.settings.bypasses:
            return value, size * self.rounding, near
        weights = selected(self.batch, "is_weight")
        return value * weights, size * np.abs(weights) * self.rounding, near

    @cached_property
    def clipped(self) -> tuple[Flags, Flags, Flags]:
        """Flags ``[n_selected]`` of ``pg_clipfrac``, of ``pg_clipfrac_lower``, and of what lies at a threshold of either."""
        return _CLIPPED[self.settings.loss_mode](self)

    @property
    def bounds(self) -> tuple[float, float]:
        """The configured distances from 1 of the clip range, or from 0 of what it bounds instead."""
        return self.settings.low or 0.0, self.settings.high or 0.0

    def near(self, values: Floats, bound: float) -> Flags:
        """Where float32 cannot tell positive ``values`` ``[n_selected]`` from ``bound``."""
        if bound <= 0:
            return np.zeros(values.size, np.bool_)
        width = 4 * EPSILON32 * max(bound, 1.0)
        if self.settings.loss_mode == "gspo":
            return np.abs(values - bound) < width * self.rounding
        return np.abs(values - bound) < width * (1.0 + EPSILON32 / TOLERANCE * abs(math.log(bound)))

    @cached_property
    def kept(self) -> tuple[Flags, Flags]:
        """Of DPPO: where the divergence is within its bound, and where it is too close to it to tell."""
        low, high = self.bounds
        logprob, old = selected(self.batch, "logprob"), selected(self.batch, "old_logprob")
        rise = np.exp(logprob) - np.exp(old)
        if self.settings.loss_mode == "dppo_tv":
            near = np.abs(np.where(self.advantage > 0, rise - high, -rise - low)) < 4 * EPSILON32
            return within_total_variation(logprob, old, self.advantage, low, high), near
        divergence, bound = binary_kl(old, logprob), np.where(self.advantage > 0, high, low)
        near = np.abs(divergence - bound) < 4 * EPSILON32 * (1.0 + np.abs(logprob - old))
        near |= (np.abs(rise) < EPSILON32) & (divergence > bound)
        return within_binary_kl(logprob, old, self.advantage, low, high), near


def terms(batch: Batch, settings: Settings) -> Terms:
    """The terms of a batch, made once."""
    key = (Terms, settings)
    if key not in batch.scratch:
        batch.scratch[key] = Terms(batch, settings)
    found: Terms = batch.scratch[key]
    return found


Loss = Callable[[Terms], tuple[Floats, Floats, Flags | None]]


def _plain(value: Floats) -> tuple[Floats, Floats, None]:
    return value, np.abs(value), None


def _surrogate(t: Terms) -> tuple[Floats, Floats, None]:
    dual = t.settings.dual_clip if t.settings.loss_mode == "vanilla" else None
    return _plain(surrogate_of_ratio(t.ratio, t.advantage, *t.bounds, dual))


def _bounded(t: Terms) -> tuple[Floats, Floats, Flags]:
    inside, near = t.kept
    logprob = selected(t.batch, "logprob")
    full = dppo_loss(t.ratio, t.advantage, logprob, np.ones_like(inside), _cap(t))
    return dppo_loss(t.ratio, t.advantage, logprob, inside, _cap(t)), np.abs(full), near


def _cispo(t: Terms) -> tuple[Floats, Floats, None]:
    return _plain(cispo_loss(t.ratio, t.advantage, selected(t.batch, "logprob"), *t.bounds))


def _sapo(t: Terms) -> tuple[Floats, Floats, None]:
    return _plain(sapo_loss(t.ratio, t.advantage, t.settings.tau_positive or np.nan, t.settings.tau_negative or np.nan))


def _reinforce(t: Terms) -> tuple[Floats, Floats, None]:
    return _plain(reinforce_loss(selected(t.batch, "logprob"), t.advantage))


def _dro(t: Terms) -> tuple[Floats, Floats, None]:
    linear, beta = reinforce_loss(selected(t.batch, "logprob"), t.advantage), t.settings.dro_beta or 0.0
    value = dro_loss(selected(t.batch, "logprob"), t.difference, t.advantage, beta)
    return value, np.abs(linear) + np.abs(value - linear), None


_LOSSES: Final[Mapping[str, Loss]] = {
    "vanilla": _surrogate, "gspo": _surrogate, "dppo_tv": _bounded, "dppo_kl": _bounded, "cispo": _cispo, "sapo": _sapo,
    "gpg": _reinforce, "reinforce": _reinforce, "dro": _dro,
}  # fmt: skip


def _cap(t: Terms) -> float:
    return np.inf if t.settings.dual_clip is None else t.settings.dual_clip


def _clipped_surrogate(t: Terms) -> tuple[Flags, Flags, Flags]:
    low, high = t.bounds
    near = t.near(t.ratio, 1.0 - low) | t.near(t.ratio, 1.0 + high)
    lower, dual = np.zeros(t.advantage.size, np.bool_), t.settings.dual_clip
    if t.settings.loss_mode == "vanilla" and dual is not None:
        lower = dual_binds(t.ratio, t.advantage, low, dual)
        near |= t.near(t.ratio, dual)
    return binds(t.ratio, t.advantage, low, high), lower, near & (t.advantage != 0)


def _left_out(t: Terms) -> tuple[Flags, Flags, Flags]:
    inside, near = t.kept
    return ~inside, dppo_capped(t.ratio, inside, _cap(t)), near | t.near(t.ratio, min(_cap(t), 1e30))


def _outside(t: Terms) -> tuple[Flags, Flags, Flags]:
    flags = outside(t.ratio, *t.bounds)
    return flags, np.zeros_like(flags), t.near(t.ratio, 1.0 - t.bounds[0]) | t.near(t.ratio, 1.0 + t.bounds[1])


def _outside_logarithm(t: Terms) -> tuple[Flags, Flags, Flags]:
    """GMPO clamps the log-ratio itself."""
    low, high = t.bounds
    flags = log_ratio_outside(t.difference, low, high)
    near = (np.abs(t.difference + low) < EPSILON32) | (np.abs(t.difference - high) < EPSILON32)
    return flags & (t.advantage > 0), flags & (t.advantage < 0), near & (t.advantage != 0)


def _never(t: Terms) -> tuple[Flags, Flags, Flags]:
    none = np.zeros(t.advantage.size, np.bool_)
    return none, none, none


_CLIPPED: Final[Mapping[str, Callable[[Terms], tuple[Flags, Flags, Flags]]]] = {
    "vanilla": _clipped_surrogate, "gspo": _clipped_surrogate, "dppo_tv": _left_out, "dppo_kl": _left_out, "cispo": _outside,
    "geo_mean": _outside_logarithm, "sapo": _never,
}  # fmt: skip


def row_losses(t: Terms) -> tuple[Floats, Floats]:
    """GMPO's loss per sequence and its size, each ``[n_sequences]``."""
    splits = selected_splits(t.batch)
    loss = geometric_mean_loss(t.difference, t.advantage, splits, *t.bounds)
    ratio = np.exp(segment_means(pessimistic_log_ratio(t.difference, t.advantage, *t.bounds), splits))
    size = segment_means(np.abs(t.advantage), splits) * ratio
    if t.batch.get("is_weight") is not None:
        weight = geometric_weight(selected(t.batch, "is_weight"), splits)
        loss, size = loss * weight, size * weight
    return loss, size * (1.0 + EPSILON32 / TOLERANCE * segment_means(np.abs(t.difference), splits))
