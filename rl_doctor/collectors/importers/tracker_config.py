"""The configuration that trackers keep of a run, in canonical terms: of verl and TRL, which log theirs whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from rl_doctor.collectors.importers.numbers import number, whole
from rl_doctor.collectors.trl_config import algorithm_of, of_settings
from rl_doctor.schema import RunConfig, RunInfo

_KL_ESTIMATORS: Final = {"kl": "k1", "k1": "k1", "abs": "abs", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
_VERL_ESTIMATORS: Final = frozenset({"grpo", "rloo", "gae", "remax", "reinforce_plus_plus"})
_LOSS_MODES: Final = frozenset({"gspo", "cispo", "sapo", "gpg"})


def info_of(config: Mapping[str, Any], run_id: str | None = None) -> RunInfo:
    """What a run's configuration tells of it. It never raises: what is not as expected is unknown.

    Args:
        config: as the trainer gave it to the tracker.
        run_id: the tracker's id of the run.
    """
    native = dict(config)
    told = RunInfo(run_id=run_id, config=RunConfig(native=native or None))
    if isinstance(native.get("actor_rollout_ref"), dict):
        return _verl(told, native)
    algorithm = algorithm_of(native)
    if algorithm is None:
        return told
    try:
        return replace(told, trainer="trl", algorithm=algorithm, config=replace(of_settings(native, algorithm), native=native))
    except (TypeError, ValueError, ArithmeticError):
        return replace(told, trainer="trl", algorithm=algorithm)


def _verl(told: RunInfo, native: dict[str, Any]) -> RunInfo:
    def at(path: str) -> Any:
        value: Any = native
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        return value

    actor = "actor_rollout_ref.actor"
    estimator, mode = str(at("algorithm.adv_estimator") or ""), str(at(f"{actor}.policy_loss.loss_mode") or "vanilla")
    unscaled = estimator == "grpo" and at("algorithm.norm_adv_by_std_in_grpo") is False
    clip, low, high = (number(at(f"{actor}.{name}")) for name in ("clip_ratio", "clip_ratio_low", "clip_ratio_high"))
    prompts, per_update = whole(at("data.train_batch_size")), whole(at(f"{actor}.ppo_mini_batch_size"))
    config = RunConfig(
        clip_low=clip if low is None else low,
        clip_high=clip if high is None else high,
        dual_clip=number(at(f"{actor}.clip_ratio_c")) if mode == "vanilla" else None,
        entropy_coef=number(at(f"{actor}.entropy_coeff")),
        loss_agg=_word(at(f"{actor}.loss_agg_mode")),
        adv_estimator="dr_grpo" if unscaled else estimator if estimator in _VERL_ESTIMATORS else None,
        adv_norm=("none" if unscaled else "group") if estimator == "grpo" else None,
        gamma=number(at("algorithm.gamma")),
        lam=number(at("algorithm.lam")),
        temperature=number(at("actor_rollout_ref.rollout.temperature")),
        top_p=number(at("actor_rollout_ref.rollout.top_p")),
        top_k=whole(at("actor_rollout_ref.rollout.top_k")),
        max_response_length=whole(at("data.max_response_length")),
        group_size=whole(at("actor_rollout_ref.rollout.n")),
        epochs=whole(at(f"{actor}.ppo_epochs")),
        minibatches=prompts // per_update if prompts and per_update and prompts % per_update == 0 else None,
        max_grad_norm=number(at(f"{actor}.grad_clip")),
        native={**native, "loss_mode": mode},
        **_verl_kl(at),
    )
    algorithm = mode if mode in _LOSS_MODES else "ppo" if estimator == "gae" else estimator or None
    return replace(told, trainer="verl", algorithm=algorithm, config=config)


def _verl_kl(at: Any) -> dict[str, Any]:
    """The KL term: in the loss, in the reward, in neither, or, in both, unknown."""
    in_loss, in_reward = at("actor_rollout_ref.actor.use_kl_loss"), at("algorithm.use_kl_in_reward")
    if in_loss and in_reward:
        return {}
    if in_reward:
        coefficient, estimator = at("algorithm.kl_ctrl.kl_coef"), at("algorithm.kl_penalty")
    elif in_loss:
        coefficient, estimator = (at(f"actor_rollout_ref.actor.kl_loss_{name}") for name in ("coef", "type"))
    else:
        coefficient, estimator = (None if in_loss is None or in_reward is None else 0.0), None
    return {
        "kl_coef": number(coefficient),
        "kl_in_reward": None if in_reward is None else bool(in_reward),
        "kl_estimator": _KL_ESTIMATORS.get(str(estimator).removesuffix("+")),
    }


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
