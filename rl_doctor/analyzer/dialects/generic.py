"""Names that trainers made at home use, and that mean the same wherever they stand."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from rl_doctor.analyzer.dialects.registry import Lookup, Name
from rl_doctor.schema import PREFERENCE, SUPERVISED

OFFLINE: Final = SUPERVISED | PREFERENCE
"""Algorithms in which no policy samples and nothing is rewarded."""

_PERCENT: Final = ("pct", "percent", "percentage")


def _share(name: str) -> Callable[[Lookup], bool]:
    """Whether what is logged under a name never goes beyond 1: a count or a percentage does."""

    def holds(logged: Lookup) -> bool:
        points = logged(name)
        return points is None or not bool((points[1] > 1.0).any())

    return holds


def _varies(name: str) -> Name:
    """A largest length: a limit from the configuration does not vary."""

    def measured(logged: Lookup) -> bool:
        points = logged(name)
        return points is not None and bool((points[1][1:] != points[1][:-1]).any())

    return Name(name, "length.max", holds=measured)


_ALIKE: Final[dict[str, str]] = {
    "reward.mean": "reward reward/mean mean_reward rewards/mean avg_reward reward_avg average_reward rollout/reward_mean "
    "env/all/reward/total "
    "train_reward env/reward_mean reward/total total_reward ep_rew_mean rollout/ep_rew_mean episodic_return",
    "reward.std": "reward_std std_reward reward/std rewards/std rollout/reward_std",
    "reward.max": "reward_max max_reward reward/max rewards/max",
    "reward.min": "reward_min min_reward reward/min rewards/min",
    "group.std_mean": "group_reward_std mean_group_std group_std_mean reward_group_std group_std",
    "group.zero_std_frac": "frac_reward_zero_std zero_std_frac frac_zero_std zero_std_ratio zero_variance_frac "
    "zero_variance_ratio zero_variance_group_frac zero_std_group_frac",
    "policy.entropy": "entropy policy_entropy mean_entropy entropy_mean token_entropy policy/entropy actor_entropy",
    "policy.kl_old": "approx_kl approxkl approx_kl_mean policy/approx_kl policy/approxkl kl_old old_kl",
    "policy.kl_old_k1": "ppo_kl old_approx_kl",
    "policy.kl_old_k3": "approx_kl_k3 kl_old_k3",
    "ref.kl": "kl kl_divergence kl_div kl_ref ref_kl kl_to_ref kl_mean mean_kl kl/mean reference_kl kl_loss actor/kl_loss",
    "policy.clip_frac": "clip_frac clipfrac clip_fraction pg_clipfrac policy/clipfrac policy/clip_frac policy_clip_frac",
    "policy.ratio_mean": "ratio_mean mean_ratio importance_ratio_mean policy/ratio_mean ratio",
    "policy.loss_pg": "policy_loss pg_loss actor_loss loss/policy policy/loss policy_gradient_loss",
    "value.loss": "value_loss vf_loss critic_loss loss/value value/loss v_loss",
    "value.explained_var": "explained_variance explained_var vf_explained_var value/explained_variance",
    "value.clip_frac": "vf_clipfrac value_clip_frac value_clipfrac vf_clip_frac",
    "value.mean": "value_mean values_mean mean_value vpred_mean values/mean",
    "adv.mean": "advantage_mean advantages_mean adv_mean mean_advantage advantages/mean advantage/mean",
    "adv.std": "advantage_std advantages_std adv_std std_advantage advantages/std advantage/std",
    "adv.max": "advantage_max advantages_max adv_max max_advantage advantages/max advantage/max",
    "adv.min": "advantage_min advantages_min adv_min min_advantage advantages/min advantage/min",
    "return.mean": "return_mean returns_mean mean_return returns/mean",
    "length.mean": "response_length response_length/mean mean_response_length response_len response_len_mean avg_response_len "
    "avg_response_length completion_length completion_length_mean mean_completion_length avg_completion_length avg_gen_tokens "
    "mean_gen_tokens avg_length mean_length gen_len gen_length mean_output_tokens avg_output_tokens output_length",
    "length.min": "response_length/min min_gen_tokens",
    "length.truncated_frac": "truncated_rate truncation_rate truncated_frac truncated_ratio truncation_ratio truncation_frac "
    "clipped_ratio frac_truncated overlong_ratio overlong_frac",
    "length.aborted_frac": "aborted_ratio aborted_frac abort_rate",
    "turns.mean": "num_turns num_turns/mean turns_mean avg_turns mean_turns",
    "stale.mean": "staleness staleness_mean avg_staleness mean_staleness",
    "stale.max": "staleness_max max_staleness",
    "mismatch.k3": "mismatch_kl mismatch_kl_mean rollout_kl_k3",
    "mismatch.abs": "logprob_abs_diff logprob_diff_abs_mean rollout_logprob_abs_diff train_rollout_logprob_abs_diff",
    "optim.grad_norm": "grad_norm gradient_norm optim/grad_norm policy_grad_norm policy/grad_norm actor_grad_norm "
    "grad_norm/total",
    "optim.learning_rate": "learning_rate lr optim/lr policy_lr actor_lr policy/lr optimizer/lr",
    "pref.margin": "reward_margin rewards/margins margin",
    "pref.accuracy": "rewards/accuracies preference_accuracy",
    "pref.chosen_reward": "chosen_reward rewards/chosen chosen_rewards",
    "pref.rejected_reward": "rejected_reward rewards/rejected rejected_rewards reject_reward",
    "pref.chosen_logprob": "logps/chosen chosen_logps chosen_logp chosen_logprob",
    "pref.rejected_logprob": "logps/rejected rejected_logps rejected_logp rejected_logprob",
}
_SHARES: Final = ("group.zero_std_frac", "policy.clip_frac", "length.truncated_frac", "length.aborted_frac")
_NOTES: Final = {
    "policy.kl_old": "is taken for the KL to the old policy, by an estimator that is not known",
    "kl": "is taken for the KL to the reference policy",
    "kl_loss": "is taken for the KL to the reference policy; it may hold the coefficient",
}


def _offline() -> Iterator[Name]:
    for name, metric in (("loss", "sft.loss"), ("entropy", None), ("kl", None)):
        yield Name(name, metric, algorithms=SUPERVISED)
    for name, metric in (("loss", "pref.loss"), ("entropy", None), ("kl", None), ("accuracy", "pref.accuracy")):
        yield Name(name, metric, algorithms=PREFERENCE)


def _alike() -> Iterator[Name]:
    for metric, listed in _ALIKE.items():
        natives = listed.split()
        if metric in _SHARES:
            yield from _shares(metric, natives)
            continue
        for native in natives:
            only = PREFERENCE if native == "margin" else frozenset()
            yield Name(native, metric, algorithms=only, note=_NOTES.get(native, _NOTES.get(metric, "")))


def _shares(metric: str, natives: list[str]) -> Iterator[Name]:
    for native in natives:
        yield Name(native, metric, holds=_share(native))
        yield Name(native, None, note="goes beyond 1: it is no share")
    for stem in dict.fromkeys(re.sub(r"(_|^)(rate|frac|ratio|fraction)$", "", native) for native in natives):
        yield from (Name(f"{stem}_{unit}", metric, factor=0.01, note="is read as a percentage") for unit in _PERCENT)


def _families() -> Iterator[Name]:
    yield Name("rewards/{function}/mean", "reward.component.{function}.mean")
    yield Name("rewards/{function}/std", "reward.component.{function}.std")
    yield Name("rewards/{function}", "reward.component.{function}.mean")
    yield Name("reward_{function}_reward_func", "reward.component.{function}.mean")
    yield Name("reward_components/{function}", "reward.component.{function}.mean")


NAMES: Final = (
    *_offline(),
    *_alike(),
    *(Name(native, "policy.loss_total") for native in ("loss", "total_loss", "loss/total")),
    *map(_varies, ("max_gen_tokens", "response_length/max", "max_response_length", "completion_length_max", "response_len_max")),
    *_families(),
)

_TOPICS: Final = re.compile(r"(?:losses|charts|metrics|rl|stats|training|trainer|scalars|log|optimization)[/_.]", re.IGNORECASE)


_AVERAGE: Final = re.compile(r"(?:train[_/.])?(?:avg|average)[/_.]", re.IGNORECASE)
_NO_AVERAGE: Final = ("std", "max", "min", "frac_low", "frac_high", "coef")
"""What the name of a metric ends with of which the average is another one, or of no use."""


def averaged(native: str) -> str | None:
    """What an average is of, by its name; None for any other name."""
    found = _AVERAGE.match(native)
    return None if found is None else native[found.end() :]


def is_average(metric: str | None) -> bool:
    """Whether a metric is a mean itself, so that its average over a step's batches is the metric."""
    return metric is not None and not metric.endswith(_NO_AVERAGE) and not metric.startswith(("group.", "optim.learning_rate"))


def below_topic(native: str) -> str:
    """A name without a heading before it that says nothing of what it means."""
    found = _TOPICS.match(native)
    return native if found is None else native[found.end() :]
