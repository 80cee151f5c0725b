"""What of OpenRLHF's arguments its logged numbers depend on."""

from __future__ import annotations

from dataclasses import dataclass

from rl_doctor.schema import RunInfo


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
    gating: str
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
        dynamic = bool(native.get("train.dynamic_batch_enable"))
        samples = int(native.get("rollout.n_samples_per_prompt") or 1)
        bounds = native.get("algo.advantage.is_correction_threshold") or (0.5, 5.0)
        clip = native.get("reward.clip_range")
        coefficient = native.get("algo.kl.init_coef")
        return cls(
            loss=loss,
            per_sequence_loss=loss == "gspo" or native.get("actor.loss_agg_mode") != "token-mean",
            low=1.0 - float(low),
            high=1.0 + float(high),
            dual_clip=None if native.get("actor.dual_clip") is None else float(native["actor.dual_clip"]),
            correction=str(native.get("algo.advantage.is_correction_level") or "off"),
            correction_mode=str(native.get("algo.advantage.is_correction_mode") or "mask"),
            gating=str(native.get("algo.advantage.is_correction_gating") or "ratio"),
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
