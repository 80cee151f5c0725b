"""What is recomputed from a recorded run of verl's trainer and workers equals what verl logged, key by key and step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rl_doctor import Run
from tests.trainers.verl.conftest import Train
from tests.trainers.verl.exact_comparison import compared, corrupted, differing, findings, uncompared

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(600)]

NOT_FROM_ROWS = {
    "actor/grad_norm", "actor/lr", "actor/kl_coef", "actor/reward_kl_penalty_coeff", "critic/grad_norm", "critic/lr",
    "training/global_step", "training/epoch",
}  # fmt: skip
MACHINE = ("perf/", "timing", "actor/perf/", "critic/perf/", "actor/mfu", "critic/mfu", "global_seqlen/")
ACTOR = "actor_rollout_ref.actor"
CORRECTION = "algorithm.rollout_correction"
REWARD_KL = ["algorithm.use_kl_in_reward=true", "algorithm.kl_penalty=low_var_kl"]
CASES: dict[str, dict[str, Any]] = {
    "grpo": {
        "driver": True, "mismatch": 0.05, "overrides": [f"{ACTOR}.ppo_micro_batch_size_per_gpu=2", f"{ACTOR}.clip_ratio=0.05"],
    },
    "grpo, calling the workers": {"mismatch": 0.05},
    "ppo with a critic, padding, observations and rejected rows": {
        "driver": True, "critic": True, "prompts": 3, "padding": 4, "mismatch": 0.05, "observations": True, "reject": [3],
        "overrides": [
            "algorithm.adv_estimator=gae", "critic.cliprange_value=0.05", f"{CORRECTION}.rollout_is=token",
            f"{CORRECTION}.rollout_rs=seq_mean_k1", f"{CORRECTION}.rollout_rs_threshold=0.5_2.0",
        ],
    },
    "gspo by sequence, KL in the reward": {
        "driver": True, "mismatch": 0.05, "overrides": [
            f"{ACTOR}.policy_loss.loss_mode=gspo", f"{ACTOR}.loss_agg_mode=seq-mean-token-mean", f"{ACTOR}.clip_ratio_low=0.003",
            f"{ACTOR}.clip_ratio_high=0.004", *REWARD_KL,
        ],
    },
    "two ranks": {"ranks": 2, "driver": True, "critic": True, "mismatch": 0.05, "overrides": [
        "algorithm.adv_estimator=gae", f"{ACTOR}.ppo_micro_batch_size_per_gpu=2",
        f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm",
    ]},
    "bypass": {"driver": True, "mismatch": 0.05, "overrides": [
        f"{CORRECTION}.bypass_mode=true", f"{ACTOR}.policy_loss.loss_mode=bypass_mode",
        f"+{ACTOR}.policy_loss.rollout_correction=${{algorithm.rollout_correction}}",
    ]},
}  # fmt: skip


@pytest.fixture(scope="module", params=CASES)
def recorded(request: pytest.FixtureRequest, train: Train) -> tuple[str, Run]:
    return request.param, train(**CASES[request.param]).run


def test_every_logged_number_is_recomputed(recorded: tuple[str, Run]) -> None:
    _, run = recorded
    found = compared(run)
    left = {name for name in uncompared(run, found) if not name.startswith(MACHINE)}
    assert left - NOT_FROM_ROWS == set()
    assert differing(found) == {}
    assert {"actor/ppo_kl", "actor/pg_clipfrac", "actor/pg_clipfrac_lower", "actor/pg_loss", "actor/kl_loss"} <= set(found)
    assert ({"critic/vf_loss", "critic/vf_clipfrac", "critic/vpred_mean"} <= set(found)) == (run.critic is not None)


def test_the_update_does_something(recorded: tuple[str, Run]) -> None:
    """The keys would be easy to match if nothing moved."""
    name, run = recorded
    log = run.metrics()
    assert np.abs(log.series("actor/kl_loss")[1]).max() > 1e-4
    assert np.abs(log.series("actor/ppo_kl")[1]).max() > 1e-4
    if "critic" in name:
        assert log.series("critic/vf_clipfrac")[1].max() > 0


def test_corrupted_numbers_are_found(recorded: tuple[str, Run]) -> None:
    _, run = recorded
    log, found = run.metrics(), compared(run)
    assert set(differing(compared(run, corrupted(log, found)))) == set(found)
    assert findings(run, log) == []
    assert any("actor/pg_loss" in finding.message for finding in findings(run, corrupted(log, ["actor/pg_loss"])))
