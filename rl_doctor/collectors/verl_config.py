"""verl's configuration in canonical terms (verl 0.9, ``ppo_trainer.yaml``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any, Final

from rl_doctor.frozen import frozen
from rl_doctor.schema import RunConfig, RunInfo

_ESTIMATORS: Final[Mapping[str, str]] = {
    "kl": "k1",
    "k1": "k1",
    "abs": "abs",
    "mse": "k2",
    "k2": "k2",
    "low_var_kl": "k3",
    "k3": "k3",
}
_ADVANTAGES: Final[Mapping[str, str]] = {"grpo_vectorized": "grpo", "rloo_vectorized": "rloo"}
_CLIPPING: Final = frozenset({"vanilla", "gspo", "cispo", "geo_mean", "clip_cov"})
_CLAMPING: Final = frozenset({"vanilla", "dppo_tv", "dppo_kl", "sapo", "cispo"})
_ALGORITHMS: Final[Mapping[str, str]] = {"gspo": "gspo", "cispo": "cispo", "sapo": "sapo", "geo_mean": "gmpo"}
_NATIVE: Final[Mapping[str, tuple[str, ...]]] = {
    "actor_rollout_ref.actor": (
        "strategy", "ppo_mini_batch_size", "ppo_micro_batch_size_per_gpu", "use_dynamic_bsz", "ppo_max_token_len_per_gpu",
        "clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "policy_loss", "loss_agg_mode", "loss_scale_factor",
        "entropy_coeff", "calculate_entropy", "calculate_sum_pi_squared", "use_kl_loss", "kl_loss_coef", "kl_loss_type",
        "tau_pos", "tau_neg", "ppo_epochs", "shuffle", "data_loader_seed", "use_fused_kernels", "rollout_n",
        "use_rollout_log_probs",
    ),
    "actor_rollout_ref.actor.optim": (
        "lr", "lr_warmup_steps", "lr_warmup_steps_ratio", "lr_scheduler_type", "weight_decay", "clip_grad", "betas", "optimizer",
    ),
    "actor_rollout_ref.model": ("lora_rank",),
    "actor_rollout_ref.rollout": (
        "name", "n", "temperature", "top_p", "top_k", "prompt_length", "response_length", "calculate_log_probs", "dtype",
        "log_prob_micro_batch_size_per_gpu", "log_prob_use_dynamic_bsz", "quantization", "load_format", "logprobs_mode",
        "max_model_len",
    ),
    "actor_rollout_ref.rollout.multi_turn": ("enable", "max_assistant_turns", "max_user_turns"),
    "critic": (
        "enable", "cliprange_value", "loss_agg_mode", "loss_scale_factor", "ppo_mini_batch_size", "ppo_epochs", "shuffle",
        "data_loader_seed",
    ),
    "critic.optim": ("lr", "weight_decay", "clip_grad"),
    "algorithm": (
        "adv_estimator", "gamma", "lam", "norm_adv_by_std_in_grpo", "use_kl_in_reward", "kl_penalty", "kl_ctrl", "filter_groups",
        "rollout_correction", "use_pf_ppo", "pf_ppo", "gdpo_reward_keys",
    ),
    "data": ("train_batch_size", "gen_batch_size", "max_prompt_length", "max_response_length", "shuffle", "seed"),
    "trainer": (
        "use_v1", "v1", "total_epochs", "total_training_steps", "critic_warmup", "balance_batch", "nnodes", "n_gpus_per_node",
        "test_freq", "save_freq",
    ),
    "distillation": ("enabled", "distillation_loss"),
}  # fmt: skip
"""Section -> settings that are kept as they are; nothing that names files, prompts or accounts."""

_LEFT_OUT: Final = frozenset({"_target_", "path"})


@frozen
class Model:
    """What a run needs to know of the model and its tokenizer."""

    vocab_size: int | None = None
    pad_token_id: int | None = None
    eos_token_ids: tuple[int, ...] | None = None

    @classmethod
    def of(cls, hf_config: Any, tokenizer: Any) -> Model:
        """From a Hugging Face configuration and a tokenizer, either of which may be None."""
        ends = getattr(tokenizer, "eos_token_id", None)
        if ends is None:
            ends = getattr(hf_config, "eos_token_id", None)
        pad = getattr(tokenizer, "pad_token_id", None)
        vocabulary = getattr(hf_config, "vocab_size", None)
        return cls(
            vocab_size=None if vocabulary is None and tokenizer is None else int(vocabulary or len(tokenizer)),
            pad_token_id=None if pad is None else int(pad),
            eos_token_ids=None if ends is None else tuple(int(end) for end in (ends if isinstance(ends, Sequence) else [ends])),
        )


def describe(
    settings: Mapping[str, Any], model: Model, ranks: int | None, writing_ranks: tuple[int, ...] | None, *, critic: bool
) -> RunInfo:
    """What ``run.json`` says of a run.

    Args:
        settings: verl's configuration, or the sections of it that are known.
        model: the model.
        ranks: number of data-parallel ranks of the actor, or of the critic.
        writing_ranks: ranks of the writers.
        critic: whether it is the run of the critic's passes.
    """
    native = {section: _section(settings, section, names) for section, names in _NATIVE.items()}
    tree: dict[str, Any] = {}
    for section, values in native.items():
        _plant(tree, section, values)
    config = _critic(tree) if critic else _actor(tree)
    return RunInfo(
        trainer="verl",
        trainer_version=metadata.version("verl"),
        algorithm=_algorithm(tree),
        world_size=ranks,
        writing_ranks=writing_ranks,
        vocab_size=model.vocab_size,
        pad_token_id=model.pad_token_id,
        eos_token_ids=model.eos_token_ids,
        config=config,
    )


def _section(settings: Mapping[str, Any], section: str, names: tuple[str, ...]) -> dict[str, Any]:
    found = at(settings, section)
    if not isinstance(found, Mapping):
        return {}
    # verl's own configurations raise what is no KeyError for a name that they do not have.
    return {name: _plain(value) for name in names if (value := found.get(name)) is not None}


def _plant(tree: dict[str, Any], section: str, values: Mapping[str, Any]) -> None:
    if values:
        for name in section.split("."):
            tree = tree.setdefault(name, {})
        tree |= values


def at(settings: Any, path: str) -> Any:
    """The setting at a path of names with dots between them; None where it is not there."""
    for name in path.split("."):
        settings = settings.get(name) if isinstance(settings, Mapping) else None
    return settings


def _plain(value: Any) -> Any:
    """The value as JSON can hold it."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items() if name not in _LEFT_OUT}
    if isinstance(value, (list, tuple)) or (isinstance(value, Sequence) and not isinstance(value, str)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return getattr(value, "value", value)
    return str(value)


def _actor(native: dict[str, Any]) -> RunConfig:
    actor = at(native, "actor_rollout_ref.actor") or {}
    rollout = at(native, "actor_rollout_ref.rollout") or {}
    algorithm = native.get("algorithm") or {}
    mode = str(at(actor, "policy_loss.loss_mode") or "vanilla")
    clips = mode in _CLIPPING
    estimator = str(algorithm.get("adv_estimator") or "").removeprefix("AdvantageEstimator.").lower() or None
    scaled = algorithm.get("norm_adv_by_std_in_grpo", True)
    in_reward = bool(algorithm.get("use_kl_in_reward"))
    in_loss = bool(actor.get("use_kl_loss"))
    penalty = actor.get("kl_loss_type") if in_loss else algorithm.get("kl_penalty")
    kind = _ESTIMATORS.get(str(penalty).removesuffix("+"))
    correction = algorithm.get("rollout_correction") or {}
    batch, mini = at(native, "data.train_batch_size"), actor.get("ppo_mini_batch_size")
    coefficient = actor.get("kl_loss_coef") if in_loss else at(algorithm, "kl_ctrl.kl_coef") if in_reward else 0.0
    known = bool(actor)
    return RunConfig(
        clip_low=_first(actor, "clip_ratio_low", "clip_ratio") if clips else None,
        clip_high=_first(actor, "clip_ratio_high", "clip_ratio") if clips else None,
        dual_clip=_number(actor.get("clip_ratio_c")) if mode == "vanilla" else None,
        log_ratio_clamp=20.0 if known and mode in _CLAMPING else None,
        kl_coef=_number(coefficient) if known else None,
        kl_estimator=kind if in_loss or in_reward else None,
        kl_in_reward=(in_reward and not in_loss) if known and (algorithm or in_loss) else None,
        kl_input_clamp=20.0 if kind == "k3" else None,
        kl_output_clamp=10.0 if kind == "k3" else None,
        entropy_coef=_number(actor.get("entropy_coeff")),
        loss_agg="seq-mean-token-mean" if mode == "sapo" else None if mode == "geo_mean" else actor.get("loss_agg_mode"),
        adv_estimator="dr_grpo" if estimator == "grpo" and not scaled else _ADVANTAGES.get(str(estimator), estimator),
        adv_eps=1e-6 if estimator in {"grpo", "grpo_vectorized"} else None,
        adv_ddof=1 if estimator in {"grpo", "grpo_vectorized"} else None,
        adv_norm=_norm(_ADVANTAGES.get(str(estimator), estimator), scaled=bool(scaled)),
        gamma=_number(algorithm.get("gamma")),
        lam=_number(algorithm.get("lam")),
        value_clip=_number(at(native, "critic.cliprange_value")) if _has_critic(native) else None,
        temperature=_number(rollout.get("temperature")),
        top_p=_number(rollout.get("top_p")),
        top_k=_whole(rollout.get("top_k")),
        max_response_length=_whole(rollout.get("response_length") or at(native, "data.max_response_length")),
        group_size=_whole(rollout.get("n") or actor.get("rollout_n")),
        epochs=_whole(actor.get("ppo_epochs")),
        minibatches=int(batch) // int(mini) if batch and mini and int(batch) % int(mini) == 0 else None,
        max_grad_norm=_number(at(actor, "optim.clip_grad")),
        is_correction="bypass" if mode == "bypass_mode" else _correction(correction, known=bool(algorithm)),
        native={**native, "loss_mode": mode} if known else native,
    )


def _critic(native: dict[str, Any]) -> RunConfig:
    critic = native.get("critic") or {}
    return RunConfig(
        value_clip=_number(critic.get("cliprange_value")),
        loss_agg=critic.get("loss_agg_mode"),
        epochs=_whole(critic.get("ppo_epochs")),
        gamma=_number(at(native, "algorithm.gamma")),
        lam=_number(at(native, "algorithm.lam")),
        group_size=_whole(at(native, "actor_rollout_ref.rollout.n")),
        max_response_length=_whole(at(native, "actor_rollout_ref.rollout.response_length")),
        max_grad_norm=_number(at(critic, "optim.clip_grad")),
        native=native,
    )


def _has_critic(native: Mapping[str, Any]) -> bool:
    enabled = at(native, "critic.enable")
    return bool(enabled) if enabled is not None else at(native, "algorithm.adv_estimator") == "gae"


def _algorithm(native: Mapping[str, Any]) -> str | None:
    mode = str(at(native, "actor_rollout_ref.actor.policy_loss.loss_mode") or "vanilla")
    estimator = at(native, "algorithm.adv_estimator")
    if mode in _ALGORITHMS:
        return _ALGORITHMS[mode]
    if estimator is None:
        return None
    if str(estimator).startswith("grpo"):
        return "grpo" if at(native, "algorithm.norm_adv_by_std_in_grpo") is not False else "dr_grpo"
    return {"gae": "ppo", "rloo_vectorized": "rloo"}.get(str(estimator), str(estimator))


def _norm(estimator: str | None, *, scaled: bool) -> str | None:
    if estimator == "grpo":
        return "group" if scaled else "none"
    return {
        "gae": "batch",
        "reinforce_plus_plus": "batch",
        "reinforce_plus_plus_baseline": "batch",
        "rloo": "none",
        "remax": "none",
    }.get(str(estimator))


def _correction(given: Mapping[str, Any], *, known: bool) -> str | None:
    if not known:
        return None
    if given.get("bypass_mode"):
        return "bypass"
    return str(given.get("rollout_is") or "none")


def _first(settings: Mapping[str, Any], *names: str) -> float | None:
    return next((_number(settings[name]) for name in names if settings.get(name) is not None), None)


def _number(value: Any) -> float | None:
    return None if value is None or isinstance(value, str) else float(value)


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)
