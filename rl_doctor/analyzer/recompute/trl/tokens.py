"""Per-token terms of TRL's losses, in float64, at the tokens that the loss covers."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from rl_doctor.analyzer.derive import Floats, per_sequence_counts, per_sequence_sums, selected, selected_splits
from rl_doctor.analyzer.formulas.kl import k3
from rl_doctor.analyzer.formulas.policy_loss import (
    cispo_capped,
    cispo_capped_loss,
    delta_clamped_loss,
    reinforce_loss,
    sapo_loss,
    surrogate_of_ratio,
)
from rl_doctor.analyzer.formulas.rejection import off_policy_kept
from rl_doctor.analyzer.formulas.sequence_loss import sequence_log_ratio, summed_log_ratio, vespo_weight
from rl_doctor.analyzer.recompute.registry import EPSILON32, TOLERANCE
from rl_doctor.analyzer.recompute.stages import Flags, Shares, clip_flags, k3_size, token_shares
from rl_doctor.analyzer.recompute.trl.rows import first_weight

if TYPE_CHECKING:
    from rl_doctor.analyzer.recompute.trl.settings import Settings
    from rl_doctor.store.batch import Batch

WINDOWED: Final = frozenset({"dapo", "cispo", "vespo"})
"""Losses that are sums over the tokens of an accumulation window."""


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
        ratio: Floats = np.exp(sequence_log_ratio(self.log_ratio, selected_splits(self.batch)))
        return ratio

    @cached_property
    def summed_ratio(self) -> Floats:
        """Exp of the summed log-ratio, per sequence (RLOO)."""
        with np.errstate(over="ignore"):
            ratio: Floats = np.exp(summed_log_ratio(self.log_ratio, selected_splits(self.batch)))
        return ratio

    @cached_property
    def ratio(self) -> Floats:
        """The importance ratio at the configured level, per token."""
        if self.settings.per_sequence_ratio:
            return np.repeat(self.sequence_ratio, self.counts)
        with np.errstate(over="ignore"):
            return np.exp(self.log_ratio)

    @cached_property
    def rounding(self) -> Floats:
        """Relative error of ``ratio`` as float32 has it, in units of the tolerance and beside 1, per token."""
        size = np.abs(self.log_ratio)
        if self.settings.per_sequence_ratio:
            size = np.repeat(per_sequence_sums(self.batch, size) / np.maximum(self.counts, 1), self.counts)
        return 1.0 + EPSILON32 / TOLERANCE * size

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
        return value * self.ratio, size * self.ratio * self.rounding

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
        return self.clip(*self.levelled)

    @cached_property
    def levelled(self) -> tuple[Floats, Floats, Floats]:
        """Ratio, advantage and what float32 loses of the log-ratio, in units of its spacing: per sequence if the ratio is."""
        size = np.abs(self.log_ratio)
        if self.settings.per_sequence_ratio:
            lost = per_sequence_sums(self.batch, size) / np.maximum(self.counts, 1)
            return self.sequence_ratio, self.sequence_advantage, lost
        return self.ratio, selected(self.batch, "advantage"), size

    @cached_property
    def capped(self) -> tuple[Flags, Flags, Flags]:
        """None below; above CISPO's cap with a positive advantage; and too close to tell. As ``clipped``."""
        ratio, advantage, lost = self.levelled
        above = cispo_capped(ratio, advantage, self.settings.high)
        return np.zeros_like(above), above, self.near(ratio, self.settings.high, lost) & (advantage > 0)

    @cached_property
    def unclipped(self) -> tuple[Flags, Flags, Flags]:
        """Out of range where the clip does not bind: below it with a positive advantage, above it with a negative one."""
        ratio, advantage, lost = self.levelled
        return self.clip(ratio, -advantage, lost)

    @cached_property
    def summed_clipped(self) -> tuple[Flags, Flags, Flags]:
        """As ``clipped``, for the ratio of whole sequences (RLOO), whose logprobs are summed before they are subtracted."""
        lost = per_sequence_sums(self.batch, np.abs(selected(self.batch, "logprob")))
        return self.clip(self.summed_ratio, self.sequence_advantage, lost)

    def clip(self, ratio: Floats, advantage: Floats, lost: Floats) -> tuple[Flags, Flags, Flags]:
        """Flags of (low, high, too close to tell) for matching ratios, advantages and what float32 loses of the log-ratios."""
        low, high = self.settings.low, self.settings.high
        capped = ratio if self.settings.delta is None else np.minimum(ratio, self.settings.delta)
        below, above, _ = clip_flags(capped, advantage, low, high)
        near = self.near(capped, low, lost) | self.near(capped, high, lost)
        return below, above, near & (advantage != 0)

    @staticmethod
    def near(ratio: Floats, bound: float, lost: Floats) -> Flags:
        """Where float32 cannot tell the ratio from a bound."""
        close: Flags = np.abs(ratio - bound) < EPSILON32 * (4.0 + lost) * max(abs(bound), 1.0)
        return close

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
    def policy_loss(self) -> tuple[Floats, Floats]:
        """The policy term of the loss per token, before aggregation and without KL, and the size of its summands."""
        settings, ratio, advantage = self.settings, self.ratio, selected(self.batch, "advantage")
        with np.errstate(over="ignore", invalid="ignore"):
            if settings.loss_type == "cispo":
                loss = cispo_capped_loss(ratio, advantage, selected(self.batch, "logprob"), settings.high)
            elif settings.loss_type == "sapo":
                loss = sapo_loss(ratio, advantage, *settings.sapo_temperatures)
            elif settings.loss_type == "vespo":
                loss = self.over_tokens(self.vespo) * reinforce_loss(selected(self.batch, "logprob"), advantage)
            elif settings.delta is not None:
                loss = delta_clamped_loss(ratio, advantage, 1.0 - settings.low, settings.high - 1.0, settings.delta)
            else:
                loss = surrogate_of_ratio(ratio, advantage, 1.0 - settings.low, settings.high - 1.0)
        size = np.abs(loss) * (self.over_tokens(self.vespo_rounding) if settings.loss_type == "vespo" else self.rounding)
        if settings.off_policy_limit is not None:
            kept = self.over_tokens(self.kept)
            loss, size = np.where(kept, loss, 0.0), np.where(kept, size, 0.0)
        if settings.corrects_sampling and settings.loss_type != "vespo":
            weight = selected(self.batch, "is_weight")
            loss, size = loss * weight, size * weight
        return loss, size

    def over_tokens(self, values: Floats | Flags) -> Floats:
        """Values per sequence at each of their tokens."""
        return np.repeat(values, self.counts)

    @cached_property
    def kept(self) -> Flags:
        """Sequences that the off-policy mask keeps in the loss."""
        engine = self.settings.uses_engine and self.settings.version.sampling_mask
        behind = selected(self.batch, "logprob") - selected(self.batch, "rollout_logprob" if engine else "old_logprob")
        limit = self.settings.off_policy_limit or 0.0
        return off_policy_kept(behind, self.sequence_advantage, selected_splits(self.batch), limit)

    @cached_property
    def vespo(self) -> Floats:
        """VESPO's weight of each sequence."""
        settings, splits = self.settings, selected_splits(self.batch)
        correction = None
        if settings.corrects_sampling:
            correction = selected(self.batch, "is_weight")
            if not settings.sampling_mode.startswith("token"):  # one weight, which stands at each token
                correction = np.ones_like(correction)
                first = splits[:-1][self.counts > 0]
                correction[first] = first_weight(self.batch)[self.counts > 0]
        return vespo_weight(
            self.log_ratio, self.sequence_advantage, splits, settings.vespo_shapes, settings.vespo_rates, correction
        )  # fmt: skip

    @cached_property
    def vespo_rounding(self) -> Floats:
        """As ``rounding``, of VESPO's weights per sequence, which are powers of the summed log-ratios."""
        size = per_sequence_sums(self.batch, np.abs(self.log_ratio))
        power = max(*self.settings.vespo_shapes, *self.settings.vespo_rates)
        return 1.0 + EPSILON32 / TOLERANCE * power * (2.0 + size)

    @cached_property
    def vespo_shares(self) -> Shares:
        """The mean of VESPO's weights over sequences."""
        size = np.abs(self.vespo) * (
            1.0 + EPSILON32 / TOLERANCE * 3.0 * (2.0 + per_sequence_sums(self.batch, np.abs(self.log_ratio)))
        )
        return Shares(self.vespo, size, np.ones(self.batch.n_sequences, np.int64))

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
        return self._aggregated(*self.policy_loss)

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
        weights = np.ones(batch.n_sequences, np.int64)
        scale = 1.0 / self._accumulation
        if settings.loss_type in {"grpo", "sapo"}:
            scale = scale / np.maximum(self.counts, 1)
        elif settings.loss_type == "bnpo":
            weights = self.counts
        elif settings.loss_type == "dr_grpo":
            scale = scale / float(settings.max_completion_length or 1)
        elif settings.loss_type in WINDOWED:
            scale = self._over_window
            weights = np.zeros_like(weights)  # a sum, not a mean: the weight is clamped to 1
        return Shares(per_sequence_sums(batch, values) * scale, per_sequence_sums(batch, sizes) * scale, weights)

    @property
    def _accumulation(self) -> Floats:
        return self._context("grad_accumulation", self.settings.accumulation)

    @property
    def _over_window(self) -> Floats:
        """What a sum over tokens is multiplied by: ranks over the tokens of the generation batch, or of a window's share."""
        settings = self.settings
        scale = settings.ranks / np.maximum(self._context("num_items_in_batch", 0), 1.0)
        return settings.steps_per_generation * scale / self._accumulation if settings.version.scaled_window else scale

    @cached_property
    def unaccumulated_loss(self) -> Shares:
        """``loss_shares`` before it is divided by the number of accumulated micro-batches: ``policy_loss`` as it is logged."""
        return self.unaccumulated(self.loss_shares)

    def unaccumulated(self, found: Shares) -> Shares:
        """A term of the loss before it is divided by the number of accumulated micro-batches."""
        scale = 1.0 if self.settings.loss_type in WINDOWED else self._accumulation
        return Shares(found.numerators * scale, found.magnitudes * scale, found.weights)

    @cached_property
    def entropy_bonus(self) -> Shares:
        """Minus the entropy bonus, as ``loss_shares``: a mean over tokens, or before 1.10 what DAPO and its like have."""
        share = token_shares(self.batch, selected(self.batch, "entropy"))
        coefficient = self.settings.entropy_coef
        if self.settings.loss_type in WINDOWED and not self.settings.version.mean_bonus:
            scale, weights = coefficient * self._over_window, np.zeros_like(share.weights)
        else:
            scale, weights = coefficient / self._accumulation, share.weights
        return Shares(-share.numerators * scale, share.magnitudes * scale, weights)

    @cached_property
    def summed_loss(self) -> Shares:
        """RLOO's loss: a mean over sequences, which the Hugging Face trainer divides by the accumulation.

        A sequence of which no token is trained on still adds minus its advantage, which is not recorded: NaN.
        """
        settings, advantage = self.settings, self.sequence_advantage
        ratio = self.summed_ratio
        loss = surrogate_of_ratio(ratio, advantage, 1.0 - settings.low, settings.high - 1.0)
        loss = np.where(self.counts > 0, loss, np.nan)
        scale = 1.0 / self._accumulation
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
