"""Per-token terms of OpenRLHF's losses, in float64, at the tokens that the loss covers."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from rl_doctor.analyzer.derive import Floats, per_sequence_counts, per_sequence_sums, selected
from rl_doctor.analyzer.formulas.kl import bounded, k2, k3
from rl_doctor.analyzer.formulas.policy_loss import surrogate_loss
from rl_doctor.analyzer.formulas.rejection import engine_gate
from rl_doctor.analyzer.recompute.registry import EPSILON32, TOLERANCE
from rl_doctor.analyzer.recompute.stages import Flags, Shares, clip_flags, k3_size, token_shares
from rl_doctor.analyzer.recompute.variations.ranges import WORDS

if TYPE_CHECKING:
    from rl_doctor.analyzer.recompute.openrlhf.settings import Settings
    from rl_doctor.store.batch import Batch

_CLAMP: Final = 20.0
_KL_CLAMP: Final = 10.0


def estimate(kind: str, difference: Floats) -> tuple[Floats, Floats]:
    """A KL estimate of the log-ratio to the reference ``[n]``, and the size of its summands; all are clamped to 10 nat."""
    if kind == "k3":
        x = np.minimum(-difference, _KL_CLAMP)
        value = np.minimum(k3(x), _KL_CLAMP)
        return value, k3_size(x, value)
    value = bounded(k2(difference) if kind == "k2" else difference, _KL_CLAMP)
    return value, np.abs(value)


class Terms:
    """Values that several keys derive from one batch; made once per batch by ``terms``. All arrays are ``[n_selected]``."""

    def __init__(self, batch: Batch, settings: Settings) -> None:
        self.batch = batch
        self.settings = settings

    @cached_property
    def difference(self) -> Floats:
        """Logprob minus old logprob."""
        return selected(self.batch, "logprob") - selected(self.batch, "old_logprob")

    @cached_property
    def log_ratio(self) -> Floats:
        """What the loss takes the exponential of: of GSPO the mean over the sequence, of PPO clamped."""
        if self.settings.loss != "gspo":
            return np.clip(self.difference, -_CLAMP, _CLAMP)
        against = self.difference
        if self.settings.correction != "off":
            against = selected(self.batch, "logprob") - selected(self.batch, "rollout_logprob")
        return self.over_sequences(against)

    def over_sequences(self, values: Floats) -> Floats:
        """The mean over the sequence at each of its tokens."""
        counts = per_sequence_counts(self.batch)
        return np.repeat(per_sequence_sums(self.batch, values) / np.maximum(counts, 1), counts)

    @cached_property
    def distance(self) -> Shares:
        """Old minus new logprob, without a clamp."""
        return token_shares(self.batch, -self.difference)

    @cached_property
    def engine_distance(self) -> Shares:
        """The engine's logprob minus the old one."""
        return token_shares(self.batch, selected(self.batch, "rollout_logprob") - selected(self.batch, "old_logprob"))

    @cached_property
    def clipped(self) -> Shares:
        """Share of tokens at which the clip range binds."""
        below, above, near = clip_flags(
            np.exp(self.log_ratio), selected(self.batch, "advantage"), self.settings.low, self.settings.high
        )
        flags = (below | above).astype(np.float64)
        return token_shares(self.batch, flags, flags, near | self._shaky(flags))

    def _shaky(self, flags: Floats) -> Flags:
        """Where the mean log-ratio of a sequence, which is summed in float32, is too close to a bound."""
        if self.settings.loss != "gspo":
            return np.zeros(len(flags), np.bool_)
        rounding = EPSILON32 * (2.0 + self.over_sequences(np.abs(selected(self.batch, "logprob"))))
        ratio = np.exp(self.log_ratio)
        near: Flags = np.minimum(np.abs(ratio - self.settings.low), np.abs(ratio - self.settings.high)) <= 4 * rounding * ratio
        return near

    @cached_property
    def loss(self) -> tuple[Floats, Floats, Floats]:
        """The policy loss, the size of its summands, and what of it may flip at a threshold of the correction."""
        settings, advantage = self.settings, selected(self.batch, "advantage")
        value = surrogate_loss(self.log_ratio, advantage, 1.0 - settings.low, settings.high - 1.0, settings.dual_clip)
        size = np.abs(value) * (1.0 + EPSILON32 / TOLERANCE * np.abs(self.log_ratio))
        if settings.correction == "off" or settings.loss == "gspo":
            return value, size, np.zeros(len(value))
        coefficient, _, near = self.correction
        weight = self._engine_ratio
        return value * coefficient, size * coefficient, near * np.abs(value) * weight

    @cached_property
    def _engine_ratio(self) -> Floats:
        return np.exp(selected(self.batch, "old_logprob") - selected(self.batch, "rollout_logprob"))

    @cached_property
    def correction(self) -> tuple[Floats, Flags, Flags]:
        """The weight that corrects for the engine, where it is out of bounds, and where it is too close to a bound to tell."""
        settings, (low, high) = self.settings, self.settings.bounds
        old, rollout = selected(self.batch, "old_logprob"), selected(self.batch, "rollout_logprob")
        log_ratio, gate = old - rollout, engine_gate(old, rollout, settings.gating)
        statistic = self.over_sequences(gate) if settings.correction == "seq" else gate
        if settings.gating == "ratio":
            statistic = np.exp(statistic)
        outside = (statistic < low) | (statistic > high)
        slack = 1e-5 * (1.0 + np.abs(log_ratio)) * np.maximum(statistic, 1e-2)
        near = np.minimum(np.abs(statistic - low), np.abs(statistic - high)) <= slack
        if settings.correction_mode == "clip":
            return np.clip(statistic, low, high), outside, np.zeros_like(near)
        return np.where(outside, 0.0, self._engine_ratio), outside, near

    @cached_property
    def filtered(self) -> Shares:
        """Share of tokens that the correction finds out of bounds."""
        _, outside, near = self.correction
        flags = outside.astype(np.float64)
        return token_shares(self.batch, flags, flags, near)

    @cached_property
    def filtered_rows(self) -> Shares:
        """As ``filtered``, the share of sequences, weighted by tokens; one without a token counts as out of bounds."""
        _, outside, near = self.correction
        counts = per_sequence_counts(self.batch)
        over = np.maximum(counts, 1)
        rows = np.where(counts > 0, per_sequence_sums(self.batch, outside.astype(np.float64)) / over, 1.0)
        return Shares(rows, rows, counts, per_sequence_sums(self.batch, near.astype(np.float64)) / over)


def terms(batch: Batch, settings: Settings) -> Terms:
    """The terms of a batch, made once."""
    found = batch.scratch.get(Terms)
    if not isinstance(found, Terms):
        found = batch.scratch[Terms] = Terms(batch, settings)
    return found


def clipped_with(batch: Batch, settings: Settings) -> Shares:
    """The share of clipped tokens with other settings than the run's."""
    return Terms(batch, settings).clipped


def losses_with(batch: Batch, settings: Settings) -> tuple[Floats, Floats, Floats]:
    """The policy loss with other settings, as sums per sequence."""
    value, size, slack = (per_sequence_sums(batch, part) for part in Terms(batch, settings).loss)
    return value, size, slack


def other_ends(settings: Settings) -> tuple[tuple[str, str, Settings], ...]:
    """The canonical clip range, and the own one with one of its ends on both sides: name, sentence, and the settings."""
    low, high, other = 1.0 - settings.low, settings.high - 1.0, settings.canonical_range
    found = () if other is None else ((*WORDS, replace(settings, low=1.0 - other[0], high=1.0 + other[1])),)
    if math.isclose(low, high):
        return found
    told = "on both sides of the clip range"
    return (
        *found,
        ("lower bound on both sides", f"has the lower bound's {low:g} {told}", replace(settings, high=1.0 + low)),
        ("upper bound on both sides", f"has the upper bound's {high:g} {told}", replace(settings, low=1.0 - high)),
    )
