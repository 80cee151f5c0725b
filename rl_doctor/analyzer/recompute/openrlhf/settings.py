"""What of OpenRLHF's arguments its logged numbers depend on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Literal

from rl_doctor.analyzer.recompute.native import Native, Pair, contradictions
from rl_doctor.analyzer.recompute.variations.ranges import Range, canonical_range
from rl_doctor.frozen import frozen
from rl_doctor.schema import RunInfo

Gating = Literal["ratio", "binary_kl", "tv"]
_GATINGS: Final[Mapping[str, Gating]] = {"ratio": "ratio", "binary_kl": "binary_kl", "tv": "tv"}
_SAME: Final[tuple[Pair, ...]] = ((("actor.dual_clip",), "dual_clip"), (("algo.kl.init_coef",), "kl_coef"))
_TYPES: Final[Mapping[str, tuple[str, str]]] = {
    "tis": ("token", "clip"),
    "icepop": ("token", "mask"),
    "seq-mask-tis": ("seq", "mask"),
}
"""Types of correction before 0.11.2 -> level and mode of those since."""


@frozen
class Settings:
    """Arguments of ``openrlhf.cli.train_ppo_ray``.

    ``low`` and ``high`` are the ends of the ratio's clip range, ``correction`` the level at which the distance from the engine
    is corrected (off, token, seq), ``bounds`` the thresholds of that. ``kl_coefficient`` is None where it changes in the run,
    ``microbatch`` the sequences per micro-batch, None where their number varies.
    """

    loss: str
    per_sequence_loss: bool
    low: float
    high: float
    dual_clip: float | None
    correction: str
    correction_mode: str
    gating: Gating
    bounds: tuple[float, float]
    kl_in_loss: bool
    kl_estimator: str
    kl_coefficient: float | None
    dynamic: bool
    microbatch: int | None
    samples: int
    rollouts: int
    estimator: str
    reward_clip: tuple[float, float] | None
    longest: int | None
    value_clip: float | None
    canonical_range: Range | None

    @classmethod
    def of(cls, info: RunInfo) -> Settings | None:
        """Read the settings; None where the native arguments were not recorded, or do not fit."""
        native = Native(info.config.native)
        found = cls.read(info, native)
        return None if native.doubts else found

    @classmethod
    def read(cls, info: RunInfo, native: Native) -> Settings | None:
        """Read the settings from arguments, which note what does not fit."""
        loss, ends = native.word("actor.policy_loss_type"), native.numbers("actor.eps_clip_low_high", 2)
        if loss is None or ends is None:
            return None
        level, mode, gating = _correction(native)
        dynamic = bool(native.flag("train.dynamic_batch_enable"))
        samples = native.whole("rollout.n_samples_per_prompt") or 1
        bounds = native.numbers("algo.advantage.is_correction_threshold", 2) or (0.5, 5.0)
        clip = native.numbers("reward.clip_range", 2)
        coefficient = native.number("algo.kl.init_coef")
        return cls(
            loss=loss,
            per_sequence_loss=loss == "gspo" or native.word("actor.loss_agg_mode", "token-mean") != "token-mean",
            low=1.0 - ends[0],
            high=1.0 + ends[1],
            dual_clip=native.number("actor.dual_clip"),
            correction=level,
            correction_mode=mode,
            gating=gating,
            bounds=(bounds[0], bounds[1]),
            kl_in_loss=bool(native.flag("algo.kl.use_loss")),
            kl_estimator=native.word("algo.kl.estimator") or "k1",
            kl_coefficient=None if native.number("algo.kl.target") is not None else coefficient,
            dynamic=dynamic,
            microbatch=None if dynamic else native.whole("train.micro_batch_size") or 1,
            samples=samples,
            rollouts=(native.whole("rollout.batch_size") or 0) * samples,
            estimator=native.word("algo.advantage.estimator") or "",
            reward_clip=(clip[0], clip[1]) if clip else None,
            longest=native.whole("data.max_len"),
            value_clip=info.config.value_clip,
            canonical_range=canonical_range(info.config, *ends),
        )


def doubts(info: RunInfo) -> Iterator[str]:
    """What of the arguments does not fit, or says two things."""
    native = Native(info.config.native)
    Settings.read(info, native)
    yield from native.told()
    yield from contradictions(native, info.config, _SAME)


def _correction(native: Native) -> tuple[str, str, Gating]:
    """Level, mode and gating of the correction; before 0.11.2 a switch and a type that stood for them."""
    prefix = "algo.advantage.is_correction"
    if f"{prefix}_enable" in native:
        level, mode = _TYPES[native.choice(f"{prefix}_type", _TYPES, "tis")]
        return (level, mode, "ratio") if native.flag(f"{prefix}_enable") else ("off", "mask", "ratio")
    return (
        native.word(f"{prefix}_level") or "off",
        native.word(f"{prefix}_mode") or "mask",
        _GATINGS[native.choice(f"{prefix}_gating", _GATINGS, "ratio")],
    )
