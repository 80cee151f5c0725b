"""Per-token terms of verl's policy losses, in float64, at the tokens that the loss covers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from rl_doctor.analyzer.derive import Floats, per_sequence_counts, per_sequence_sums, selected
from rl_doctor.analyzer.formulas.policy_loss import surrogate_of_ratio
from rl_doctor.analyzer.recompute.registry import EPSILON32, TOLERANCE
from rl_doctor.analyzer.recompute.stages import Flags

if TYPE_CHECKING:
    from rl_doctor.analyzer.recompute.verl_settings import Settings
    from rl_doctor.store.batch import Batch

_CLAMP: Final = 20.0
_SEQUENCE_CLAMP: Final = 10.0
_TINY: Final = 1e-8
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
        return np.minimum(self._over_sequences(self.difference), _SEQUENCE_CLAMP)

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
        size = np.abs(self.difference)
        if self.settings.loss_mode == "gspo":
            size = self._over_sequences(size)
        return 1.0 + EPSILON32 / TOLERANCE * size

    def _over_sequences(self, values: Floats) -> Floats:
        counts = per_sequence_counts(self.batch)
        return np.repeat(per_sequence_sums(self.batch, values) / np.maximum(counts, 1), counts)

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
        new, old = np.exp(selected(self.batch, "logprob")), np.exp(selected(self.batch, "old_logprob"))
        if self.settings.loss_mode == "dppo_tv":
            up, down, size = new - old, old - new, 1.0
            inside = np.where(self.advantage > 0, up <= high, down <= low)
            near = np.where(self.advantage > 0, np.abs(up - high), np.abs(down - low)) < 4 * EPSILON32 * size
            return inside, near
        difference = selected(self.batch, "old_logprob") - selected(self.batch, "logprob")
        divergence = old * difference + (1 - old) * np.log((1.0 - old + _TINY) / (1.0 - new + _TINY))
        inside = np.where(self.advantage > 0, (divergence <= high) | (new <= old), (divergence <= low) | (new >= old))
        bound = np.where(self.advantage > 0, high, low)
        near = np.abs(divergence - bound) < 4 * EPSILON32 * (1.0 + np.abs(difference))
        near |= (np.abs(new - old) < EPSILON32) & (divergence > bound)
        return inside, near


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
    """DPPO: the truncated ratio times the logprob, where the divergence is within its bound."""
    inside, near = t.kept
    full = -t.advantage * np.minimum(t.ratio, _cap(t)) * selected(t.batch, "logprob")
    return np.where(inside, full, 0.0), np.abs(full), near


def _cispo(t: Terms) -> tuple[Floats, Floats, None]:
    low, high = t.bounds
    return _plain(-np.clip(t.ratio, 1.0 - low, 1.0 + high) * t.advantage * selected(t.batch, "logprob"))


def _sapo(t: Terms) -> tuple[Floats, Floats, None]:
    positive, negative = t.settings.tau_positive or np.nan, t.settings.tau_negative or np.nan
    tau: Floats = np.where(t.advantage > 0, positive, negative)
    with np.errstate(over="ignore"):
        return _plain(-4.0 / tau / (1.0 + np.exp(-tau * (t.ratio - 1.0))) * t.advantage)


def _reinforce(t: Terms) -> tuple[Floats, Floats, None]:
    return _plain(-t.advantage * selected(t.batch, "logprob"))


def _dro(t: Terms) -> tuple[Floats, Floats, None]:
    linear = -selected(t.batch, "logprob") * t.advantage
    square = 0.5 * (t.settings.dro_beta or 0.0) * t.difference**2
    return linear + square, np.abs(linear) + square, None


_LOSSES: Final[Mapping[str, Loss]] = {
    "vanilla": _surrogate, "gspo": _surrogate, "dppo_tv": _bounded, "dppo_kl": _bounded, "cispo": _cispo, "sapo": _sapo,
    "gpg": _reinforce, "reinforce": _reinforce, "dro": _dro,
}  # fmt: skip


def _cap(t: Terms) -> float:
    return np.inf if t.settings.dual_clip is None else t.settings.dual_clip


def _clipped_surrogate(t: Terms) -> tuple[Flags, Flags, Flags]:
    low, high = 1.0 - t.bounds[0], 1.0 + t.bounds[1]
    falling = t.advantage < 0
    clipped = (falling & (t.ratio < low)) | ((t.advantage > 0) & (t.ratio > high))
    near = t.near(t.ratio, low) | t.near(t.ratio, high)
    lower = np.zeros_like(clipped)
    if t.settings.loss_mode == "vanilla" and t.settings.dual_clip is not None:
        lower = falling & (t.ratio > t.settings.dual_clip)
        near |= t.near(t.ratio, t.settings.dual_clip)
    return clipped, lower, near & (t.advantage != 0)


def _left_out(t: Terms) -> tuple[Flags, Flags, Flags]:
    inside, near = t.kept
    return ~inside, inside & (t.ratio > _cap(t)), near | t.near(t.ratio, min(_cap(t), 1e30))


def _outside(t: Terms) -> tuple[Flags, Flags, Flags]:
    low, high = 1.0 - t.bounds[0], 1.0 + t.bounds[1]
    outside = (t.ratio < low) | (t.ratio > high)
    return outside, np.zeros_like(outside), t.near(t.ratio, low) | t.near(t.ratio, high)


def _outside_logarithm(t: Terms) -> tuple[Flags, Flags, Flags]:
    """GMPO clamps the log-ratio itself."""
    low, high = t.bounds
    outside = (t.difference < -low) | (t.difference > high)
    near = (np.abs(t.difference + low) < EPSILON32) | (np.abs(t.difference - high) < EPSILON32)
    return outside & (t.advantage > 0), outside & (t.advantage < 0), near & (t.advantage != 0)


def _never(t: Terms) -> tuple[Flags, Flags, Flags]:
    none = np.zeros(t.advantage.size, np.bool_)
    return none, none, none


_CLIPPED: Final[Mapping[str, Callable[[Terms], tuple[Flags, Flags, Flags]]]] = {
    "vanilla": _clipped_surrogate, "gspo": _clipped_surrogate, "dppo_tv": _left_out, "dppo_kl": _left_out, "cispo": _outside,
    "geo_mean": _outside_logarithm, "sapo": _never,
}  # fmt: skip


def geometric_mean_loss(t: Terms) -> tuple[Floats, Floats]:
    """GMPO's loss per sequence and its size, each ``[n_sequences]``: the advantage times the geometric mean of bounded ratios."""
    low, high = t.bounds
    counts = np.maximum(per_sequence_counts(t.batch), 1)
    sign = np.sign(t.advantage)
    bounded = sign * np.minimum(sign * t.difference, sign * np.clip(t.difference, -low, high))
    ratio = np.exp(per_sequence_sums(t.batch, bounded) / counts)
    loss = -per_sequence_sums(t.batch, t.advantage) / counts * ratio
    size = per_sequence_sums(t.batch, np.abs(t.advantage)) / counts * ratio
    if t.batch.get("is_weight") is not None:
        weight = np.exp(per_sequence_sums(t.batch, np.log(selected(t.batch, "is_weight") + 1e-10)) / counts)
        loss, size = loss * weight, size * weight
    return loss, size * (1.0 + EPSILON32 / TOLERANCE * per_sequence_sums(t.batch, np.abs(t.difference)) / counts)
