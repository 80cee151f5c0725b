"""What is recomputed from a recorded TRL run equals what TRL logged, key by key and row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rl_doctor.analyzer import reconcile
from rl_doctor.analyzer.dialects.trl import TRL
from rl_doctor.analyzer.engine import analyze
from rl_doctor.store.run import Run
from tests.trainers.definitions import recomputable
from tests.trainers.trl.conftest import Train

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(600)]

EXACT = 1e-6
"""Relative to the mean absolute summand, which is at most about 1 for every key here, or to the number itself."""
LEFT = {
    "grad_norm", "learning_rate", "epoch", "step_time", "num_tokens", "train_runtime", "train_samples_per_second",
    "train_steps_per_second", "train_loss", "total_flos", "entropy_coef",
}  # fmt: skip
"""What TRL logs that is not of tokens or rewards."""
TWICE = {"num_iterations": 2, "steps_per_generation": 4, "gradient_accumulation_steps": 2}
CASES: dict[str, dict[str, Any]] = {
    "grpo": {"args": TWICE},
    "grpo_every_third_step": {"args": {**TWICE, "logging_steps": 3, "max_steps": 8, "loss_type": "bnpo"}},
    "grpo_generations_across_steps": {
        "args": {**TWICE, "gradient_accumulation_steps": 3, "loss_type": "grpo", "max_steps": 8}
    },
    "grpo_generations_within_a_step": {"args": {"steps_per_generation": 2, "gradient_accumulation_steps": 4}},
    "sequence_ratio": {
        "args": {**TWICE, "importance_sampling_level": "sequence", "loss_type": "luspo", "epsilon": 0.01, "epsilon_high": 0.02}
    },
    "dr_grpo_masked_truncation": {
        "args": {**TWICE, "loss_type": "dr_grpo", "delta": 1.1, "mask_truncated_completions": True, "scale_rewards": "batch"}
    },
    "cispo_plain_kl": {"args": {**TWICE, "loss_type": "cispo", "epsilon_high": 1.05, "use_bias_correction_kl": False}},
    "sapo_entropy_bonus": {"args": {**TWICE, "loss_type": "sapo", "entropy_coef": 0.01, "scale_rewards": "none"}},
    "vespo_off_policy": {"args": {**TWICE, "loss_type": "vespo", "off_policy_mask_threshold": 0.001}},
    "without_reference": {"args": {**TWICE, "beta": 0.0}},
    "rloo": {"algorithm": "rloo", "args": {**TWICE, "logging_steps": 2}},
    "rloo_normalised": {
        "algorithm": "rloo", "args": {**TWICE, "normalize_advantages": True, "reward_clip_range": [-1.0, -0.2], "beta": 0.2}
    },
    "two_ranks": {"ranks": 2, "args": {**TWICE, "logging_steps": 3, "max_steps": 8, "per_device_train_batch_size": 2}},
    "two_ranks_rloo": {"ranks": 2, "algorithm": "rloo", "args": {**TWICE, "per_device_train_batch_size": 2}},
}  # fmt: skip
Recorded = tuple[str, Run]


@pytest.fixture(scope="module", params=CASES)
def recorded(request: pytest.FixtureRequest, train: Train) -> Recorded:
    return request.param, train(**CASES[request.param]).run


def test_every_logged_key_is_recomputed(recorded: Recorded) -> None:
    name, run = recorded
    log = run.metrics()
    plan = reconcile.plan(run.info, run.columns, log)
    found = {item.name: item for item in reconcile.compare(plan, analyze(run, [], plan.metrics).series)}
    assert set(found) == recomputable(TRL, run.info, log.names())
    assert set(log.names()) - set(found) <= LEFT, name
    for item in found.values():
        difference = np.abs(item.logged - item.recomputed)
        # RLOO's ratio is that of whole sequences: float32 sums of about 12 log-probabilities of -5.6 are subtracted.
        summand = 12 * 5.6 if run.info.algorithm == "rloo" and item.name == "loss" else 1.0
        bound = EXACT * np.maximum(summand, np.abs(item.logged))
        assert (difference <= bound).all(), (item.name, item.logged, item.recomputed)
        assert (difference <= item.tolerance).all(), item.name
        steps, values = log.series(item.name)
        np.testing.assert_array_equal(item.steps, steps[np.isfinite(values)], err_msg=item.name)


def test_the_update_does_something(recorded: Recorded) -> None:
    """The keys would be easy to match if nothing moved."""
    name, run = recorded
    log = run.metrics()
    key = "cispo_clip_ratio" if "cispo" in name else "clip_ratio/region_mean"
    if "sapo" not in name and "within" not in name and "vespo" not in name:
        assert log.series(key)[1].max() > 0
    if "without" not in name:
        assert np.abs(log.series("kl")[1]).max() > 1e-3


def test_advantages_follow_from_the_rewards(recorded: Recorded) -> None:
    _, run = recorded
    native = run.info.config.native or {}
    generations: dict[int, dict[str, tuple[str, float, float]]] = {}
    for batch in run.batches(["uid", "group", "rollout_step", "reward", "advantage", "response_mask"]):
        for row in range(batch.n_sequences):
            tokens = slice(batch.splits[row], batch.splits[row + 1])
            used = set(batch.columns["advantage"][tokens][batch.columns["response_mask"][tokens]].tolist())
            assert len(used) <= 1
            uid, group, reward = (batch.columns[name][row] for name in ("uid", "group", "reward"))
            rows = generations.setdefault(int(batch.columns["rollout_step"][row]), {})
            rows[uid] = (group, float(reward), used.pop() if used else np.nan)
    whole = [rows for rows in generations.values() if len(rows) == native["generation_batch_size"]]
    assert whole
    for rows in whole:
        groups, rewards, actual = (np.array(column) for column in zip(*rows.values(), strict=True))
        expected = advantages(rewards, groups, native, run.info.algorithm or "")
        trained = ~np.isnan(actual)
        np.testing.assert_allclose(actual[trained], expected[trained], rtol=EXACT, atol=EXACT)


def test_the_configured_estimator_reproduces_the_advantages(recorded: Recorded) -> None:
    """The metric that users see, in its largest deviation over the run."""
    _, run = recorded
    fit = analyze(run, ["advantage.fit_configured_max"]).series["advantage.fit_configured_max"].measured()
    assert len(fit)
    assert fit.values.max() <= EXACT


def advantages(rewards: Any, groups: Any, native: Any, algorithm: str) -> Any:
    """TRL's advantages, group by group in plain Python."""
    result = np.empty(len(rewards))
    for name in set(groups.tolist()):
        rows = groups == name
        mine = rewards[rows]
        if algorithm == "rloo":
            result[rows] = [reward - (mine.sum() - reward) / (len(mine) - 1) for reward in mine]
            continue
        deviation = rewards.std(ddof=1) if native["scale_rewards"] == "batch" else mine.std(ddof=1)
        result[rows] = (mine - mine.mean()) / (1.0 if native["scale_rewards"] == "none" else deviation + 1e-4)
    if algorithm == "rloo" and native["normalize_advantages"]:
        result = (result - result.mean()) / (result.std(ddof=1) + 1e-4)
    return result
