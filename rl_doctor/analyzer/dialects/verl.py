"""verl: actor, critic, batch statistics and validation, from 0.3 to 0.9."""

from __future__ import annotations

from typing import Final

import numpy as np

from rl_doctor.analyzer.dialects.registry import Lookup, Name, Trainer, trainer

_PARTS: Final = (
    ("ppo_kl", "policy.kl_old_k1"),
    ("pg_clipfrac_lower", "policy.clip_frac_dual"),
    ("pg_clipfrac", "policy.clip_frac"),
    ("pg_loss", "policy.loss_pg"),
    ("entropy", "policy.entropy"),
    ("ratio_mean", "policy.ratio_mean"),
    ("advantage_mean", "adv.mean"),
    ("token_frac", "token_frac"),
)


def _has_limit(logged: Lookup) -> bool:
    """Whether the width that lengths are held against is a limit: all responses that reach it are then equally long.

    Against the longest of the batch, as in the trainers of verl 0.9, the share is never 0 and the length it stands for varies.
    """
    share, longest = logged("response_length_clip_ratio"), logged("response_length_max")
    if share is None or longest is None:
        return share is not None
    _, at, also = np.intersect1d(share[0], longest[0], assume_unique=True, return_indices=True)
    shares, ends = share[1][at], longest[1][also]
    reached = ends[shares > 0.0]
    return reached.size < 3 or reached.size < shares.size or bool((reached == reached[0]).all())


VERL: Final = trainer(
    Trainer(
        name="verl",
        label="verl",
        source="verl 0.5 to 0.9.1: workers/utils/losses.py, trainer/ppo/core_algos.py, trainer/ppo/metric_utils.py",
        names=(
            Name("critic/rewards/mean", "reward.mean"),
            Name("critic/rewards/max", "reward.max"),
            Name("critic/rewards/min", "reward.min"),
            Name("critic/score/mean", "reward.score_mean"),
            Name("critic/score/max", "reward.score_max"),
            Name("critic/score/min", "reward.score_min"),
            Name("critic/advantages/mean", "adv.mean"),
            Name("critic/advantages/max", "adv.max"),
            Name("critic/advantages/min", "adv.min"),
            Name("critic/returns/mean", "return.mean"),
            Name("critic/returns/max", "return.max"),
            Name("critic/returns/min", "return.min"),
            Name("critic/values/mean", "value.mean"),
            Name("critic/vpred_mean", "value.mean"),
            Name("critic/vf_loss", "value.loss"),
            Name("critic/vf_clipfrac", "value.clip_frac"),
            Name("critic/vf_explained_var", "value.explained_var"),
            Name("actor/entropy", "policy.entropy"),
            Name("actor/entropy_loss", "policy.entropy", note="is the entropy itself, of the policy being trained"),
            Name("actor/ppo_kl", "policy.kl_old_k1", measured=True),
            Name("actor/pg_clipfrac", "policy.clip_frac"),
            Name("actor/pg_clipfrac_lower", "policy.clip_frac_dual"),
            Name("actor/pg_loss", "policy.loss_pg"),
            Name("actor/loss", "policy.loss_total"),
            Name("actor/kl_loss", "ref.kl", measured=True),
            Name("actor/reward_kl_penalty", "ref.kl"),
            Name("critic/kl", "ref.kl"),
            Name("batch/solve_none", None),
            Name("batch/solve_all", None),
            Name("actor/grad_norm", "optim.grad_norm"),
            Name("actor/lr", "optim.learning_rate"),
            Name("response_length/mean", "length.mean", measured=True),
            Name("response_length/max", "length.max"),
            Name("response_length/min", "length.min"),
            Name("response_length/clip_ratio", "length.limit_frac", holds=_has_limit),
            Name(
                "response_length/clip_ratio", None,
                note="is the share as long as the longest response of the batch, not as the limit: it says nothing of truncation",
            ),
            Name("response/aborted_ratio", "length.aborted_frac"),
            Name("num_turns/mean", "turns.mean"),
            Name("training/rollout_probs_diff_mean", "mismatch.prob_abs"),
            Name("training/rollout_probs_diff_max", "mismatch.prob_max"),
            Name("training/rollout_actor_probs_pearson_corr", "mismatch.prob_corr"),
            Name("rollout_corr/kl", "mismatch.k1"),
            Name("rollout_corr/k3_kl", "mismatch.k3"),
            Name("rollout_corr/rollout_is_mean", "mismatch.is_weight_mean"),
            Name("training/off_policy/trajectory_staleness/mean", "stale.mean"),
            Name("training/off_policy/trajectory_staleness/max", "stale.max"),
            *(Name(f"actor/{{part}}_{native}", f"part.{{part}}.{metric}") for native, metric in _PARTS),
        ),
        marks=(
            "actor/ppo_kl", "actor/pg_clipfrac", "actor/pg_loss", "critic/score/mean", "critic/rewards/mean",
            "critic/advantages/mean", "response_length/clip_ratio", "prompt_length/clip_ratio", "actor/entropy_loss",
            "perf/mfu/actor", "timing_per_token_ms/gen", "global_seqlen/mean", "val-core/{source}", "val/test_score/{source}",
        ),
        kinds={"ppo": ("critic/vf_loss", "critic/vf_explained_var", "critic/values/mean")},
        validation=(
            ("val-core/{source}/acc/mean@{n}", "val-core/{source}/reward/mean@{n}"),
            ("val-core/{source}/{score}/mean@{n}",),
            ("val-aux/{source}/acc/mean@{n}",),
            ("val-aux/{source}/reward/mean@{n}", "val-aux/{source}/score/mean@{n}"),
            ("val/test_score/{source}",),
        ),
        best=(
            ("val-core/{source}/{score}/best@{n}/mean",),
            ("val-aux/{source}/acc/best@{n}/mean",),
            ("val-aux/{source}/reward/best@{n}/mean", "val-aux/{source}/score/best@{n}/mean"),
        ),
        settings={"kl_coef": ("actor/kl_coef", "critic/kl_coeff", "actor/reward_kl_penalty_coeff")},
        caps={"mismatch.is_weight_mean": ("algorithm.rollout_correction.rollout_is_threshold",)},
        loss_adds_up=True,
    )
)  # fmt: skip
