"""verl: actor, critic, batch statistics and validation, from 0.3 to 0.9."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from rl_doctor.analyzer.dialects.registry import Bounds, Trainer, Version, trainer
from rl_doctor.analyzer.dialects.verl_names import STAGES, VALIDATION, names

_BATCH: Final = ("critic_score_mean", "response_length_clip_ratio", "prompt_length_clip_ratio")
_UPDATE: Final = ("actor_pg_loss", "actor_ppo_kl", "actor_pg_clipfrac", "actor_grad_norm", "actor_lr")
"""Names that are logged together with what tells versions apart: where they are there and it is not, it was not logged."""
_SINCE: Final[tuple[tuple[str, Version], ...]] = (
    ("response_aborted_ratio", (0, 6)), ("training_rollout_actor_probs_pearson_corr", (0, 6)), ("mismatch_", (0, 6)),
    ("rollout_corr_", (0, 6, 1)), ("perf_mfu_actor_infer", (0, 7)), ("variance_proxy_", (0, 7)), ("actor_loss", (0, 7)),
    ("actor_rollout_corr_", (0, 8)), ("training_off_policy_trajectory_", (0, 9)), ("rollout_moe_", (0, 9)),
)  # fmt: skip
"""How names begin, and the version that they came with."""


_READS: Final = (
    *(
        f"actor_rollout_ref.actor.{name}"
        for name in (
            "calculate_entropy", "clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "entropy_coeff",
            "kl_loss_coef", "kl_loss_type", "loss_agg_mode", "policy_loss.dro_beta", "policy_loss.loss_mode",
            "policy_loss.rollout_correction", "strategy", "tau_neg", "tau_pos", "use_kl_loss",
        )
    ),
    *(
        f"algorithm.rollout_correction.{name}"
        for name in (
            "bypass_mode", "loss_type", "rollout_is", "rollout_is_batch_normalize", "rollout_is_threshold", "rollout_rs",
            "rollout_rs_threshold", "use_policy_gradient",
        )
    ),
    "algorithm.kl_penalty", "critic.cliprange_value", "critic.loss_agg_mode", "data.max_prompt_length",
    "trainer.use_legacy_worker_impl", "trainer.use_v1", "trainer.v1.separate_async.parameter_sync_step",
    "trainer.v1.trainer_mode",
)  # fmt: skip
"""Members of ``config.native`` that ``recompute/verl`` reads."""


def _dated(names: Collection[str]) -> Bounds:
    """What the plain names tell of the version."""
    found = Bounds()
    for start, version in _SINCE:
        if start in names or (start.endswith("_") and any(name.startswith(start) for name in names)):
            found = found.meets(Bounds(version))
    if any(name.startswith("mismatch_") for name in names):
        found = found.meets(Bounds(None, (0, 6, 1)))
    if all(name in names for name in _BATCH) and "response_aborted_ratio" not in names:
        found = found.meets(Bounds(None, (0, 6)))
    if all(name in names for name in _UPDATE) and "actor_loss" not in names:
        found = found.meets(Bounds(None, (0, 8)))
        if "actor_entropy" in names and "perf_mfu_actor" in names and "perf_mfu_actor_infer" not in names:
            found = found.meets(Bounds(None, (0, 7)))
    return found


VERL: Final = trainer(
    Trainer(
        name="verl",
        label="verl",
        source="verl 0.5 to 0.9.1: workers/utils/losses.py, workers/actor/dp_actor.py, workers/critic/dp_critic.py, "
        "trainer/ppo/core_algos.py, metric_utils.py and rollout_corr_helper.py",
        names=(*names(), *VALIDATION),
        marks=(
            "actor/ppo_kl", "actor/pg_clipfrac", "actor/pg_loss", "critic/score/mean", "critic/rewards/mean",
            "critic/advantages/mean", "response_length/clip_ratio", "prompt_length/clip_ratio", "actor/entropy_loss",
            "perf/mfu/actor", "timing_per_token_ms/gen", "global_seqlen/mean", "val-core/{source}", "val/test_score/{source}",
        ),
        dated=_dated,
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
        reads=_READS,
        stages=STAGES,
    )
)  # fmt: skip
