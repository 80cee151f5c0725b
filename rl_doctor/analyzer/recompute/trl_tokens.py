"""Per-token terms of TRL's losses, in float64, at the tokens that the loss covers."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from rl_doctor.analyzer.derive import Floats, per_sequence_counts, per_sequence_sums, selected, selected_splits
from rl_doctor.analyzer.formulas.kl import k3
from rl_doctor.analyzer.recompute.stages import Flags, Shares, clip_flags, k3_size, token_shares

if TYPE_CHECKING:
    from rl_doctor.analyzer.recompute.trl_settings import Settings
    from rl_doctor.store.batch import Batch


class Terms:
    """Values that several keys derive from one batch; made once per batch by ``terms``.

    "Per token" arrays are float64 ``[n_selected]``, "per sequence" arrays ``[n_sequences]``.
    """

    def __init__(self, batch: Batch, settings: Settings) -> None:
        self.batch = batch
        self.settings = settings
        self.counts = per_sequence_counts(batch)

    @cached_property
    def log_ratio(self) -> Floats:
        """Log-probability minus old log-probability, per token; no clamp."""
        return selected(self.batch, "logprob") - selected(self.batch, "old_logprob")

    @cached_property
    def sequence_ratio(self) -> Floats:
        """Exp of the mean log-ratio, per sequence; 1 where the loss covers no token."""
        return np.exp(per_sequence_sums(self.batch, self.log_ratio) / np.maximum(self.counts, 1))

    @cached_property
    def summed_ratio(self) -> Floats:
        """Exp of the summed log-ratio, per sequence (RLOO)."""
        return np.exp(per_sequence_sums(self.batch, self.log_ratio))

    @cached_property
    def ratio(self) -> Floats:
        """The importance ratio at the configured level, per token."""
        if self.settings.per_sequence_ratio:
            return np.repeat(self.sequence_ratio, self.counts)
        return np.exp(self.log_ratio)

    @cached_property
    def sequence_advantage(self) -> Floats:
        """The advantage of each sequence, which all its tokens share; 0 where the loss covers none of them."""
        values = np.zeros(self.batch.n_sequences)
        covered = self.counts > 0
        values[covered] = selected(self.batch, "advantage")[selected_splits(self.batch)[:-1][covered]]
        return values

    @cached_property
    def reference_difference(self) -> Floats:
        """Reference log-probability minus log-probability, per token."""
        return selected(self.batch, "ref_logprob") - selected(self.batch, "logprob")

    @cached_property
    def plain_kl(self) -> tuple[Floats, Floats]:
        """K3 to the reference per token, and the size of its summands."""
        value = k3(self.reference_difference)
        return value, k3_size(self.reference_difference, value)

    @cached_property
    def weighted_kl(self) -> tuple[Floats, Floats]:
        """K3 to the reference times the ratio per token, and the size of its summands."""
        value, size = self.plain_kl
        return value * self.ratio, size * self.ratio

    @property
    def kl(self) -> tuple[Floats, Floats]:
        """The reference KL term per token, times the ratio if so configured, and the size of its summands."""
        return self.weighted_kl if self.settings.bias_corrected_kl else self.plain_kl

    @property
    def other_kl(self) -> tuple[Floats, Floats]:
        """The same, times the ratio if not so configured."""
        return self.plain_kl if self.settings.bias_corrected_kl else self.weighted_kl

    @cached_property
    def clipped(self) -> tuple[Flags, Flags, Flags]:
        """Below the clip range with a negative advantage; above it with a positive one; and too close to tell.

        Per sequence if the ratio is, else per token.
        """
        if self.settings.per_sequence_ratio:
            return self.clip(self.sequence_ratio, self.sequence_advantage)
        return self.clip(self.ratio, selected(self.batch, "advantage"))

    @cached_property
    def summed_clipped(self) -> tuple[Flags, Flags, Flags]:
        """As ``clipped``, for the ratio of whole sequences (RLOO)."""
        return self.clip(self.summed_ratio, self.sequence_advantage)

    def clip(self, ratio: Floats, advantage: Floats) -> tuple[Flags, Flags, Flags]:
        """Flags of (low, high, too close to tell) for matching ratios and advantages."""
        capped = ratio if self.settings.delta is None else np.minimum(ratio, self.settings.delta)
        return clip_flags(capped, advantage, self.settings.low, self.settings.high)

    def flag_shares(self, flags: Flags, near: Flags) -> Shares:
        """The share of tokens with a flag, or of sequences where the flag is per sequence."""
        if len(flags) == self.batch.n_sequences and self.settings.per_sequence_ratio:
            return self.row_shares(flags, near)
        values = flags.astype(np.float64)
        return token_shares(self.batch, values, values, near)

    def row_shares(self, flags: Flags, near: Flags) -> Shares:
        """The share of sequences with a flag."""
        values = flags.astype(np.float64)
        return Shares(values, values, np.ones(len(flags), np.int64), near.astype(np.float64))

    def fractions(self, flags: Flags, near: Flags) -> tuple[Floats, Floats]:
        """Per sequence the share of its tokens with a flag, NaN without tokens, and what may flip; or the flag itself."""
        if len(flags) == self.batch.n_sequences and self.settings.per_sequence_ratio:
            return flags.astype(np.float64), near.astype(np.float64)
        weight = np.where(self.counts > 0, self.counts, np.nan)
        return (
            per_sequence_sums(self.batch, flags.astype(np.float64)) / weight,
            per_sequence_sums(self.batch, near.astype(np.float64)) / weight,
        )

    @cached_property
    def policy_loss(self) -> Floats:
        """The policy term of the loss per token, before aggregation and without KL."""
        settings, ratio = self.settings, self.ratio
        advantage = selected(self.batch, "advantage")
        if settings.loss_type == "cispo":
            loss = -np.minimum(ratio, settings.high) * advantage * selected(self.batch, "logprob")
        elif settings.loss_type == "sapo":
            temperature = np.where(advantage > 0, *settings.sapo_temperatures)
            loss = -4.0 / temperature / (1.0 + np.exp(-temperature * (ratio - 1.0))) * advantage
        else:
            capped = ratio if settings.delta is None else np.minimum(ratio, settings.delta)
            loss = -np.minimum(capped * advantage, np.clip(ratio, settings.low, settings.high) * advantage)
        return loss * selected(self.batch, "is_weight") if settings.corrects_sampling else loss

    @cached_property
    def loss_shares(self) -> Shares:
        """What each sequence adds to the loss of its micro-batch on its rank, scaled for gradient accumulation."""
        policy = self.policy_shares
        if not self.settings.beta:
            return policy
        penalty = self.penalty_shares
        return Shares(policy.numerators + penalty.numerators, policy.magnitudes + penalty.magnitudes, policy.weights)

    @cached_property
    def policy_shares(self) -> Shares:
        """The policy term of ``loss_shares``."""
        return self._aggregated(self.policy_loss, np.abs(self.policy_loss))

    @cached_property
    def penalty_shares(self) -> Shares:
        """The KL term of ``loss_shares``."""
        return self._penalty(*self.kl)

    @cached_property
    def other_penalty_shares(self) -> Shares:
        """The KL term of ``loss_shares`` with ``other_kl``."""
        return self._penalty(*self.other_kl)

    def _penalty(self, value: Floats, size: Floats) -> Shares:
        return self._aggregated(self.settings.beta * value, abs(self.settings.beta) * size)

    def _aggregated(self, values: Floats, sizes: Floats) -> Shares:
        """Values and sizes per token, aggregated as the loss is."""
        settings, batch = self.settings, self.batch
        accumulation = self._context("grad_accumulation", settings.accumulation)
        weights = np.ones(batch.n_sequences, np.int64)
        scale = 1.0 / accumulation
        if settings.loss_type in {"grpo", "sapo"}:
            scale = scale / np.maximum(self.counts, 1)
        elif settings.loss_type == "bnpo":
            weights = self.counts
        elif settings.loss_type == "dr_grpo":
            scale = scale / float(settings.max_completion_length or 1)
        elif settings.loss_type != "luspo":
            items = np.maximum(self._context("num_items_in_batch", 0), 1.0)
            scale = settings.ranks * settings.steps_per_generation * scale / items
            weights = np.zeros_like(weights)  # a sum, not a mean: the weight is clamped to 1
        return Shares(per_sequence_sums(batch, values) * scale, per_sequence_sums(batch, sizes) * scale, weights)

    @cached_property
    def entropy_bonus(self) -> Shares:
        """Minus the entropy bonus, as ``loss_shares``: a mean over tokens whatever the loss type."""
        share = token_shares(self.batch, selected(self.batch, "entropy"))
        scale = self.settings.entropy_coef / self._context("grad_accumulation", self.settings.accumulation)
        return Shares(-share.numerators * scale, share.magnitudes * scale, share.weights)

    @cached_property
    def summed_loss(self) -> Shares:
        """RLOO's loss: a mean over sequences, which the Hugging Face trainer divides by the accumulation."""
        settings, advantage = self.settings, self.sequence_advantage
        ratio = self.summed_ratio
        loss = -np.minimum(ratio * advantage, np.clip(ratio, settings.low, settings.high) * advantage)
        scale = 1.0 / self._context("grad_accumulation", settings.accumulation)
        # The sums of log-probabilities are rounded before they are subtracted.
        size = np.abs(loss) * (1.0 + per_sequence_sums(self.batch, np.abs(selected(self.batch, "logprob"))))
        return Shares(loss * scale, size * scale, np.ones(len(loss), np.int64))

    def _context(self, name: str, default: float) -> Floats:
        column = self.batch.get(name)
        if column is None:
            return np.full(self.batch.n_sequences, float(default))
        values = column.astype(np.float64)
        return np.where(values > 0, values, float(default))


def terms(batch: Batch, settings: Settings) -> Terms:
    """The terms of a batch, made once for each settings."""
    key = (Terms, id(settings))
    found = batch.scratch.get(key)
    if not isinstance(found, Terms):
        found = batch.scratch[key] = Terms(batch, settings)
    return found
