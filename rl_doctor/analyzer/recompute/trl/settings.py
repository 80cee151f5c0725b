"""What of TRL's version and configuration its logged numbers depend on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from rl_doctor.analyzer.dialects.registry import Bounds, Version, bounds_of
from rl_doctor.analyzer.recompute.native import Native, Pair, contradictions
from rl_doctor.analyzer.recompute.variations.ranges import Range, canonical_range
from rl_doctor.frozen import frozen
from rl_doctor.schema import RunInfo

_SEQUENCES: Final = "sequence"
_OF_UPDATE: Final = (
    "epsilon", "epsilon_high", "delta", "beta", "entropy_coef", "loss_type", "importance_sampling_level", "top_entropy_quantile",
    "off_policy_mask_threshold", "use_bias_correction_kl", "use_adaptive_entropy", "sapo_temperature_pos", "sapo_temperature_neg",
    "vespo_k_pos", "vespo_k_neg", "vespo_lambda_pos", "vespo_lambda_neg",
)  # fmt: skip
"""Settings that nothing but the update depends on."""
_SAME: Final[tuple[Pair, ...]] = (
    (("epsilon",), "clip_low"), (("beta",), "kl_coef"), (("entropy_coef",), "entropy_coef"), (("delta",), "dual_clip"),
)  # fmt: skip
"""Of the upper end of the clip range, which is another for each loss, nothing is said."""
_OPPOSITE: Final[Mapping[bool | None, bool | None]] = {True: False, False: True, None: None}


def since(bounds: Bounds, version: Version) -> bool | None:
    """Whether the version is this one or newer; None where that is not known."""
    return True if bounds.at_least(version) else False if bounds.before(version) else None


@frozen
class Switches:
    """How the version computes: each None where the version that is known leaves it open.

    Attributes:
        single_clip_key: ``clip_ratio`` is logged, of the tokens out of range at which the clip does not bind (before 0.17).
        selectable_loss: there are several losses (0.17).
        counts_before_mask: lengths are counted before truncated responses are masked (0.18).
        empty_ranks: a rank whose micro-batch has no tokens gives 0, not NaN (0.20).
        swapped_scaling: "batch" and "group" of ``scale_rewards`` do each other's work (0.22.0 and 0.22.1).
        counts_generated: what tools wrote is not trained on, nor counted in lengths (0.26).
        corrected_kl: there is ``use_bias_correction_kl`` (0.26), and it is on by default (1.10).
        batch_deviation: ``reward_std`` is over all rows, not the mean of the groups' (0.27).
        raw_reward: ``reward`` is of the rewards as they were given, before RLOO's penalty (0.27).
        weighted_reward: ``reward`` and ``reward_std`` have the reward weights (not from 0.27 to 0.29).
        sampling_mask: off-policy masks use the engine's log-probabilities where it has some (0.27.1).
        skips_unscored: rows that no function could score are left out, instead of counting as 0 (1.6).
        token_weighted: means are over the tokens of all ranks, not over the ranks' means (1.9).
        scaled_window: what is divided by the tokens of the generation batch is scaled to one accumulation window (1.9.1).
        mean_bonus: the entropy bonus is a mean over tokens whatever the loss, and LUSPO's loss leaves out the padding (1.10).
    """

    single_clip_key: bool | None
    selectable_loss: bool | None
    counts_before_mask: bool | None
    empty_ranks: bool | None
    swapped_scaling: bool | None
    counts_generated: bool | None
    corrected_kl: bool | None
    batch_deviation: bool | None
    raw_reward: bool | None
    weighted_reward: bool | None
    sampling_mask: bool | None
    skips_unscored: bool | None
    token_weighted: bool | None
    scaled_window: bool | None
    mean_bonus: bool | None

    @classmethod
    def of(cls, bounds: Bounds) -> Switches:
        """The switches of a version."""
        selectable, deviation = since(bounds, (0, 17)), since(bounds, (0, 27))
        return cls(
            single_clip_key=_OPPOSITE[selectable],
            selectable_loss=selectable,
            counts_before_mask=since(bounds, (0, 18)),
            empty_ranks=since(bounds, (0, 20)),
            swapped_scaling=_between(bounds, (0, 22), (0, 22, 2)),
            counts_generated=since(bounds, (0, 26)),
            corrected_kl=since(bounds, (1, 10)),
            batch_deviation=deviation,
            raw_reward=deviation,
            weighted_reward=_OPPOSITE[_between(bounds, (0, 27), (1, 0))],
            sampling_mask=since(bounds, (0, 27, 1)),
            skips_unscored=since(bounds, (1, 6)),
            token_weighted=since(bounds, (1, 9)),
            scaled_window=since(bounds, (1, 9, 1)),
            mean_bonus=since(bounds, (1, 10)),
        )


def _between(bounds: Bounds, first: Version, end: Version) -> bool | None:
    """Whether the version is from ``first`` up to but not ``end``."""
    if bounds.before(first) or bounds.at_least(end):
        return False
    return True if bounds.at_least(first) and bounds.before(end) else None


@frozen
class Settings:
    """Fields of ``GRPOConfig`` or ``RLOOConfig``, under their native names where they have one.

    ``ranks`` is the world size, ``low`` and ``high`` the ends of the ratio's clip range (1 away from ``epsilon``; the cap
    itself for CISPO), ``reward_weights`` by component in the order of the reward functions. ``plain_loss`` tells whether the
    loss can be recomputed, ``bias_corrected_kl`` is None where its default is not known, ``clipped_ratio_of_rank`` whether the
    share of truncated responses is divided by the rows of one rank (0.18.0), ``known_update`` whether all is known that the
    update depends on, ``canonical_range`` the clip range of the canonical configuration where that is another.
    """

    version: Switches
    rloo: bool
    ranks: int
    loss_type: str
    per_sequence_ratio: bool
    low: float
    high: float
    delta: float | None
    beta: float
    bias_corrected_kl: bool | None
    entropy_coef: float
    accumulation: int
    steps_per_generation: int
    max_completion_length: int | None
    scale_rewards: str
    aggregation: str
    reward_weights: Mapping[str, float] | None
    corrects_sampling: bool
    sampling_mode: str
    off_policy_limit: float | None
    uses_engine: bool
    masks_truncated: bool
    fused: bool
    plain_loss: bool
    microbatch_rows: int | None
    generation_rows: int | None
    sapo_temperatures: tuple[float, float] = (1.0, 1.05)
    vespo_shapes: tuple[float, float] = (2.0, 3.0)
    vespo_rates: tuple[float, float] = (3.0, 2.0)
    clipped_ratio_of_rank: bool | None = False
    known_update: bool = True
    canonical_range: Range | None = None

    @classmethod
    def of(cls, info: RunInfo) -> Settings | None:
        """Read the settings; None where the native configuration was not recorded, or what all depends on does not fit."""
        given = info.config.native
        if not given or "epsilon" not in given or "beta" not in given:
            return None
        native = Native(given)
        found = cls.read(info, native)
        return found if set(native.doubts) <= set(_OF_UPDATE) else None

    @classmethod
    def read(cls, info: RunInfo, native: Native) -> Settings:
        """Read the settings from a configuration, which notes what does not fit."""
        bounds = bounds_of(info.trainer_version)
        version = Switches.of(bounds)
        ranks = info.world_size or 1
        epsilon, beta = native.number("epsilon"), native.number("beta")
        epsilon_high = native.number("epsilon_high", epsilon)
        low, high = epsilon or 0.0, epsilon_high or 0.0
        loss_type = native.word("loss_type") or ("bnpo" if version.selectable_loss is False else "")
        per_device = native.whole("per_device_train_batch_size")
        accumulation = native.whole("gradient_accumulation_steps") or 1
        steps_per_generation = native.whole("steps_per_generation") or accumulation
        rows = None if per_device is None else per_device * ranks
        level = native.word("importance_sampling_level")
        found = cls(
            version=version,
            rloo=(info.algorithm or "").lower() == "rloo",
            ranks=ranks,
            loss_type=loss_type,
            per_sequence_ratio=level == _SEQUENCES,
            low=1.0 - low,
            high=high if loss_type == "cispo" else 1.0 + high,
            delta=native.number("delta"),
            beta=beta or 0.0,
            bias_corrected_kl=native.flag("use_bias_correction_kl", version.corrected_kl),
            entropy_coef=native.number("entropy_coef") or 0.0,
            accumulation=accumulation,
            steps_per_generation=steps_per_generation,
            max_completion_length=native.whole("max_completion_length"),
            scale_rewards=_scaling(native),
            aggregation=native.word("multi_objective_aggregation") or "sum_then_normalize",
            reward_weights=info.config.reward_weights,
            sapo_temperatures=_pair(native, "sapo_temperature", (1.0, 1.05)),
            vespo_shapes=_pair(native, "vespo_k", (2.0, 3.0)),
            vespo_rates=_pair(native, "vespo_lambda", (3.0, 2.0)),
            corrects_sampling=_corrects(native, bounds),
            sampling_mode=native.word("vllm_importance_sampling_mode") or "token_truncate",
            off_policy_limit=native.number("off_policy_mask_threshold"),
            uses_engine=bool(native.flag("use_vllm")),
            masks_truncated=bool(native.flag("mask_truncated_completions")),
            fused=bool(native.flag("use_liger_kernel") or native.flag("use_liger_loss")) and not bounds.at_least((1, 14)),
            plain_loss=_plain_loss(native, version, loss_type, per_sequence=level == _SEQUENCES),
            microbatch_rows=rows,
            generation_rows=None if rows is None else rows * steps_per_generation,
            canonical_range=None if loss_type == "cispo" else canonical_range(info.config, epsilon, epsilon_high),
            clipped_ratio_of_rank=_between(bounds, (0, 18), (0, 18, 1)) if ranks > 1 else False,
        )
        known = None not in (epsilon, beta) and native.doubts.keys().isdisjoint(_OF_UPDATE)
        return replace(found, known_update=known)

    @property
    def weights(self) -> Mapping[str, float]:
        """The reward weights, those that the logged reward has."""
        return self.reward_weights or MappingProxyType({})


def doubts(info: RunInfo) -> Iterator[str]:
    """What of the configuration does not fit, or says two things."""
    native = Native(info.config.native)
    Settings.read(info, native)
    yield from native.told()
    yield from contradictions(native, info.config, _SAME)


def _pair(native: Native, name: str, default: tuple[float, float]) -> tuple[float, float]:
    positive, negative = (native.number(f"{name}_{side}", at) for side, at in zip(("pos", "neg"), default, strict=True))
    return positive or 0.0, negative or 0.0


def _corrects(native: Native, bounds: Bounds) -> bool:
    corrects = native.flag("vllm_importance_sampling_correction", not bounds.before((0, 23)))
    return bool(native.flag("use_vllm")) and bool(corrects)


def _scaling(native: Native) -> str:
    """How rewards are scaled: a word, or, of older versions, whether they are at all."""
    name = "scale_rewards"
    if native.is_flag(name):
        return "group" if native.flag(name) else "none"
    return native.word(name) or "group"


def _plain_loss(native: Native, version: Switches, loss_type: str, *, per_sequence: bool) -> bool:
    """Whether the loss has none of the terms that cannot be recomputed from the recorded columns.

    A quantile of the entropies needs a whole micro-batch at once, an adaptive coefficient what came before; and LUSPO's loss
    covered the padding before 1.10, unless all its terms were of whole sequences.
    """
    if (native.number("top_entropy_quantile") or 1.0) < 1.0 or native.flag("use_adaptive_entropy"):
        return False
    if loss_type == "luspo" and not version.mean_bonus:
        by_token = bool(native.flag("use_vllm")) and (native.word("vllm_importance_sampling_mode") or "").startswith("token")
        return per_sequence and not native.number("beta") and not by_token
    return bool(loss_type)
