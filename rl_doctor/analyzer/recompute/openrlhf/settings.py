"""What of OpenRLHF's arguments its logged numbers depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from rl_doctor.schema import RunInfo

Gating = Literal["ratio", "binary_kl", "tv"]
_GATINGS: Final[Mapping[str, Gating]] = {"ratio": "ratio", "binary_kl": "binary_kl", "tv": "tv"}
_TYPES: Final[Mapping[str, tuple[str, str]]] = {
    "tis": ("token", "clip"),
    "icepop": ("token", "mask"),
    "seq-mask-tis": ("seq", "mask"),
}
"""Types of correction before 0.11.2 -> level and mode of those since."""


@dataclass(frozen=True, slots=True)
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

    @classmethod
    def of(cls, info: RunInfo) -> Settings | None:
        """Read the settings; None where the native arguments were not recorded."""
        native = info.config.native
        if not native or "actor.policy_loss_type" not in native or not native.get("actor.eps_clip_low_high"):
            return None
        low, high = native["actor.eps_clip_low_high"]
        loss = str(native["actor.policy_loss_type"])
        level, mode, gating = _correction(native)
        dynamic = bool(native.get("train.dynamic_batch_enable"))
        samples = int(native.get("rollout.n_samples_per_prompt") or 1)
        bounds = native.get("algo.advantage.is_correction_threshold") or (0.5, 5.0)
        clip = native.get("reward.clip_range")
        coefficient = native.get("algo.kl.init_coef")
        return cls(
            loss=loss,
            per_sequence_loss=loss == "gspo" or native.get("actor.loss_agg_mode", "token-mean") != "token-mean",
            low=1.0 - float(low),
            high=1.0 + float(high),
            dual_clip=None if native.get("actor.dual_clip") is None else float(native["actor.dual_clip"]),
            correction=level,
            correction_mode=mode,
            gating=gating,
            bounds=(float(bounds[0]), float(bounds[1])),
            kl_in_loss=bool(native.get("algo.kl.use_loss")),
            kl_estimator=str(native.get("algo.kl.estimator") or "k1"),
            kl_coefficient=None if coefficient is None or native.get("algo.kl.target") is not None else float(coefficient),
            dynamic=dynamic,
            microbatch=None if dynamic else int(native.get("train.micro_batch_size") or 1),
            samples=samples,
            rollouts=int(native.get("rollout.batch_size") or 0) * samples,
            estimator=str(native.get("algo.advantage.estimator")),
            reward_clip=(float(clip[0]), float(clip[1])) if clip else None,
            longest=native.get("data.max_len"),
            value_clip=info.config.value_clip,
        )


def _correction(native: Mapping[str, Any]) -> tuple[str, str, Gating]:
    """Level, mode and gating of the correction; before 0.11.2 a switch and a type that stood for them."""
    prefix = "algo.advantage.is_correction"
    if f"{prefix}_enable" in native:
        level, mode = _TYPES[str(native.get(f"{prefix}_type") or "tis")] if native[f"{prefix}_enable"] else ("off", "mask")
        return level, mode, "ratio"
    return (
        str(native.get(f"{prefix}_level") or "off"),
        str(native.get(f"{prefix}_mode") or "mask"),
        _GATINGS[str(native.get(f"{prefix}_gating") or "ratio")],
    )
