"""OpenRLHF: PPO and its relatives, preference, reward-model and supervised trainers."""

from __future__ import annotations

from typing import Final

from rl_doctor.analyzer.dialects.recipes import absent, exact
from rl_doctor.analyzer.dialects.registry import Name, Trainer, trainer
from rl_doctor.schema import RunConfig

_PREFERENCE: Final = frozenset({"dpo", "kto", "reward_model"})
_SFT: Final = frozenset({"sft"})


def _which_kl(config: RunConfig) -> str | None:
    """Whether the KL is a penalty in the reward, and so logged of the experience, or a term of the loss."""
    if config.kl_in_reward is None:
        return None
    return "is that of the experience: a mean over sequences, before the update" if config.kl_in_reward else ""


_ROWS: Final = "*mean over rows*"
_TOKENS: Final = "*mean over tokens*"
_WEIGHTED: Final = "*weighted mean*"
_STAGES: Final = {
    "mean over rows": "mean over the rows of all ranks, micro-batches and epochs",
    "mean over tokens": "mean over the tokens of all ranks, micro-batches and epochs",
    "weighted mean": "mean over ranks, micro-batches and epochs weighted by their tokens",
    "normalised by the window": "sum over m times ranks / the tokens of the window (seq-mean-token-mean, and gspo: sum over "
    "rows of "
    "means over m (eps 1e-8) times ranks / its rows); times the accumulation without dynamic batches",
    "ratio": "r = exp(clip20(x)); gspo: exp of the mean of x over m, of logprob - rollout_logprob if corrected",
}
_NORMALISER: Final = "*normalised by the window*"
_RATIO: Final = "*ratio*"
_ESTIMATE: Final = "k1(z), k2(z) or k3(z) of z at most 10, each within -+10"
_ROLLOUT: Final = "over the rows of the rollout"
_LAST: Final = absent("a row of the log has the last micro-batch of one rank alone")
_NORM: Final = absent("gradients are not recorded", "norm before clipping, as last read")
_RATE: Final = absent("is a setting of the step")
_TIME: Final = absent("is a time")

_HELD_OUT: Final = absent(
    "answers to held-out prompts are not recorded", "mean over prompts of the largest of n rewards; pass1: of their mean"
)

_NAMES: Final = (
    Name("reward", "reward.mean", definition=exact(f"reward of the response, length penalties in it; {_ROWS}")),
    Name("rollout/reward_mean", "reward.mean", definition=exact(f"reward, length penalties in it; mean {_ROLLOUT}")),
    Name("rollout/reward_std", "reward.std", definition=exact(f"standard deviation (ddof 1) of the reward {_ROLLOUT}")),
    Name("score", "reward.score_mean", definition=exact(f"score of the response as the environment gave it; {_ROWS}")),
    Name(
        "return",
        "return.mean",
        definition=exact(
            "reward less its baseline (rloo, reinforce_baseline, dr_grpo; group_norm / (deviation (ddof 1) + 1e-9); "
            f"flash_reinforce: mean of the rollout), within clip_range, less init_coef times the summed KL; {_ROWS}"
        ),
    ),
    Name("group_reward_std", "group.std_mean", definition=exact(f"standard deviation (ddof 1) of the group's rewards; {_ROWS}")),
    Name(
        "policy_loss",
        "policy.loss_pg",
        definition=exact(
            "-min(r A, clip(r, 1 - low, 1 + high) A), with dual_clip and A < 0 at most -A dual; ppo: times the weight "
            f"against the engine; {_RATIO}; {_NORMALISER}; {_WEIGHTED}"
        ),
    ),
    Name("act_loss", "policy.loss_pg", definition=absent("stands in the progress bar alone, rounded", "policy_loss")),
    Name(
        "ppo_clip_ratio", "policy.clip_frac", definition=exact(f"1[clip(r) A < r A], dual clip left aside; {_RATIO}; {_TOKENS}")
    ),
    Name("ppo_kl", "policy.kl_old_k1", definition=exact(f"old_logprob - logprob, no clamp; {_TOKENS}")),
    Name("vllm_kl", "mismatch.k1", definition=exact(f"rollout_logprob - old_logprob (ppo with a correction); {_TOKENS}")),
    Name(
        "is_filter_ratio",
        None,
        since=(0, 11, 2),
        definition=exact(
            "share of tokens, or of rows of a micro-batch at level seq, whose ratio (of the mean over m), binary KL or "
            f"change of probability, with probabilities within 1e-6 of 0 and 1, is out of bounds; {_WEIGHTED}"
        ),
    ),
    Name(
        "kl",
        "ref.kl",
        note="is that of the experience (mean over sequences) or that of the loss: it does not say which",
        note_by=_which_kl,
        definition=exact(
            f"{_ESTIMATE}. In the reward: z = ref_logprob - old_logprob, mean over m of a row; {_ROWS}. In the loss: "
            f"z = y, {_NORMALISER}; {_WEIGHTED}; nothing with init_coef 0"
        ),
    ),
    Name(
        "logprobs_diff",
        None,
        definition=exact(
            f"no clamp. In the reward: old_logprob - ref_logprob, mean over m of a row; {_ROWS}. In the loss: -y; {_TOKENS}"
        ),
    ),
    Name(
        "entropy_loss",
        "policy.entropy",
        note="is the entropy itself",
        definition=exact(f"entropy over the vocabulary; sum over m times ranks / the tokens of the window; {_WEIGHTED}"),
    ),
    Name(
        "critic_loss",
        "value.loss",
        definition=exact(
            "max((V - G)^2, (V_old + clip(V - V_old, -+value_clip) - G)^2) / 2; sum over m times ranks / the tokens of the "
            "window; plain mean over ranks, micro-batches and epochs"
        ),
    ),
    Name("values", "value.mean", definition=exact("V; mean over m; plain mean over ranks, micro-batches and epochs")),
    Name("actor_grad_norm", "optim.grad_norm", definition=_NORM),
    Name("actor_lr", "optim.learning_rate", definition=_RATE),
    Name("critic_grad_norm", None, definition=_NORM),
    Name("critic_lr", None, definition=_RATE),
    Name(
        "response_length",
        "length.mean",
        definition=exact(f"last minus first position of m plus 1: what an environment wrote in between counts; {_ROWS}"),
    ),
    Name("total_length", None, definition=exact(f"tokens of prompt and response; {_ROWS}")),
    Name("response_clip_ratio", None, definition=exact(f"1[prompt and response have max_len tokens]; {_ROWS}")),
    Name("rollout/response_length_mean", "length.mean", definition=exact(f"as response_length; mean {_ROLLOUT}")),
    Name("rollout/num_samples", None, definition=exact("rows of the rollout")),
    Name(
        "rollout/truncated_rate", "length.truncated_frac", definition=exact(f"1[the engine stopped for length]; mean {_ROLLOUT}")
    ),
    Name("truncated", "length.truncated_frac", definition=exact(f"1[the engine stopped for length]; {_ROWS}")),
    Name(
        "dynamic_filtering_pass_rate",
        None,
        definition=absent("prompts that were filtered out are not recorded", "kept prompts / generated prompts, in percent"),
    ),
    Name("timing/{what}", None, definition=_TIME),
    Name("eval_{source}_pass1", None, definition=_HELD_OUT),
    Name("eval_{source}_pass{n}", None, definition=_HELD_OUT),
    Name("loss", "pref.loss", algorithms=_PREFERENCE, definition=_LAST),
    Name("loss_mean", None, algorithms=_PREFERENCE | _SFT, definition=_LAST),
    Name("acc", "pref.accuracy", algorithms=_PREFERENCE, definition=_LAST),
    Name("chosen_reward", "pref.chosen_reward", algorithms=_PREFERENCE, definition=_LAST),
    Name("reject_reward", "pref.rejected_reward", algorithms=_PREFERENCE, definition=_LAST),
    Name("gpt_loss", "sft.loss", algorithms=_SFT, definition=_LAST),
)

_READS: Final = (
    "actor.dual_clip", "actor.eps_clip_low_high", "actor.loss_agg_mode", "actor.policy_loss_type", "algo.advantage.estimator",
    "algo.advantage.is_correction_enable", "algo.advantage.is_correction_gating", "algo.advantage.is_correction_level",
    "algo.advantage.is_correction_mode", "algo.advantage.is_correction_threshold", "algo.advantage.is_correction_type",
    "algo.kl.estimator", "algo.kl.init_coef", "algo.kl.target", "algo.kl.use_loss", "data.max_len", "reward.clip_range",
    "rollout.batch_size", "rollout.n_samples_per_prompt", "train.dynamic_batch_enable", "train.micro_batch_size",
)  # fmt: skip
"""Members of ``config.native`` that ``recompute/openrlhf`` reads."""

OPENRLHF: Final = trainer(
    Trainer(
        name="openrlhf",
        label="OpenRLHF",
        source="OpenRLHF 0.11: models/loss.py, trainer/ppo_trainer.py, trainer/ray/ppo_actor.py",
        names=_NAMES,
        reads=_READS,
        stages=_STAGES,
        marks=(
            "ppo_clip_ratio",
            "vllm_kl",
            "rollout/truncated_rate",
            "rollout/response_length_mean",
            "actor_grad_norm+actor_lr",
            "logprobs_diff",
            "dynamic_filtering_pass_rate",
            "response_length+total_length",
            "gpt_loss",
            "loss_mean",
            "chosen_reward+reject_reward",
            "acc_mean",
            "policy_loss+critic_loss+values",
            "kl+return+policy_loss",
        ),
        kinds={
            "dpo": ("chosen_reward+reject_reward",),
            "ppo": ("critic_loss", "values"),
            "sft": ("gpt_loss",),
        },
        validation=(("eval_{source}_pass1", "eval_{source}_pass@1"),),
        best=(("eval_{source}_pass{n}", "eval_{source}_pass@{n}"),),
    )
)
