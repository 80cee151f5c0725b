"""The dialect's terms equal OpenRLHF's own functions on the same tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rl_doctor.analyzer.formulas.advantage import dr_grpo, grpo, rloo
from rl_doctor.analyzer.formulas.aggregation import aggregated, sequence_mean_token_mean, token_mean
from rl_doctor.analyzer.formulas.returns import discounted_sums, gae_through
from rl_doctor.analyzer.formulas.whitening import whiten_floored
from rl_doctor.analyzer.recompute.openrlhf import keys as openrlhf
from rl_doctor.analyzer.recompute.openrlhf.settings import Settings
from rl_doctor.analyzer.recompute.openrlhf.tokens import estimate
from rl_doctor.schema import RunInfo
from rl_doctor.store.batch import Batch
from rl_doctor.store.info import info_from_json
from tests.trainers.openrlhf.functions import ESTIMATORS, GROUP, LOSSES, ROWS, WIDTH
from tests.trainers.openrlhf.settings import DEFAULTS
from tests.trainers.warm import Warm

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(600)]

EXACT = 1e-6
NAMES = {
    "new": "logprob", "old": "old_logprob", "rollout": "rollout_logprob", "reference": "ref_logprob", "mask": "response_mask",
    "advantage": "advantage", "value": "value", "old_value": "old_value", "return": "return",
}  # fmt: skip
ARGUMENTS = {
    "clip_eps_low": None, "clip_eps_high": None, "dual_clip": "actor.dual_clip", "policy_loss_type": "actor.policy_loss_type",
    "token_level_loss": None, "is_correction_level": "algo.advantage.is_correction_level",
    "is_correction_mode": "algo.advantage.is_correction_mode", "is_correction_gating": "algo.advantage.is_correction_gating",
    "is_correction_threshold": "algo.advantage.is_correction_threshold",
}  # fmt: skip


@pytest.fixture(scope="module")
def theirs(warm: Warm) -> dict[str, Any]:
    return warm.run("tests.trainers.openrlhf.functions", {})[0]


def settings_of(name: str) -> tuple[Settings, RunInfo]:
    own = LOSSES.get(name, {})
    native = {**DEFAULTS, "actor.eps_clip_low_high": [own.get("clip_eps_low", 0.2), own.get("clip_eps_high", 0.2)]}
    native |= {ARGUMENTS[key]: value for key, value in own.items() if ARGUMENTS[key]}
    native["actor.loss_agg_mode"] = "token-mean" if own.get("token_level_loss", True) else "seq-mean-token-mean"
    info = info_from_json({"trainer": "openrlhf", "config": {"native": native, "kl_estimator": "k1"}}, "info")
    settings = Settings.of(info)
    assert settings is not None
    return settings, info


def batch_of(theirs: dict[str, Any], info: RunInfo) -> Batch:
    columns = {ours: np.array(theirs["tensors"][name]).reshape(-1) for name, ours in NAMES.items()}
    columns = {name: values.astype(np.bool_ if "mask" in name else np.float32) for name, values in columns.items()}
    columns |= {
        "batch_num_tokens": np.full(ROWS, 50), "global_batch_size": np.full(ROWS, 8), "step": np.full(ROWS, 1),
        "rank": np.zeros(ROWS, np.int32), "rollout_step": np.full(ROWS, 1), "epoch": np.zeros(ROWS, np.int32),
        "minibatch": np.zeros(ROWS, np.int32), "microbatch": np.zeros(ROWS, np.int32),
    }  # fmt: skip
    return Batch(1, columns, np.arange(ROWS + 1) * WIDTH, info)


@pytest.mark.parametrize("name", LOSSES)
def test_the_policy_loss(theirs: dict[str, Any], name: str) -> None:
    _, info = settings_of(name)
    batch = batch_of(theirs, info)
    expected = theirs["found"][name]
    keys = {item.name: item for item in openrlhf.openrlhf.logged(info, (), set(expected))}
    assert set(expected) == set(keys)
    for key, item in keys.items():
        found = item.entries(item.reduction.partial(batch))
        summand = max(1.0, abs(expected[key]))  # one ratio is e**20, and the loss is its
        assert abs(found.total - expected[key]) <= EXACT * summand, key
        ties = 3.0 / np.sum(theirs["tensors"]["mask"]) if key == "ppo_clip_ratio" else 0.0  # float32 may put them on either side
        assert abs(found.total - expected[key]) <= found.tolerance <= 10 * EXACT * summand + ties, key


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_kl_estimates(theirs: dict[str, Any], kind: str) -> None:
    _, info = settings_of("ppo")
    batch = batch_of(theirs, info)
    mask = batch.columns["response_mask"]
    difference = batch.columns["logprob"].astype(np.float64) - batch.columns["ref_logprob"].astype(np.float64)
    value, size = estimate(kind, difference)
    assert np.abs(value).max() <= 10.0
    assert abs(value[mask].mean() - theirs["found"][kind]["mean"]) <= EXACT * size[mask].mean()


@pytest.mark.parametrize("level", ["token", "row"])
@pytest.mark.parametrize("window", ["own", "window"])
def test_the_aggregation(theirs: dict[str, Any], level: str, window: str) -> None:
    mask = np.array(theirs["tensors"]["mask"], np.bool_)
    values = np.where(mask, np.array(theirs["tensors"]["advantage"]), 0.0)
    counts = mask.sum(axis=1)
    if level == "token":
        factors = token_mean(counts, None if window == "own" else 50.0)
    else:
        factors = sequence_mean_token_mean(counts, None if window == "own" else 8.0, eps=1e-8)
    ranks = 1.0 if window == "own" else 2.0
    expected = theirs["found"][f"aggregated_{level}_{window}"]
    summand = np.abs(values).sum(axis=1) @ factors * ranks
    assert abs(ranks * aggregated(values.sum(axis=1), factors) - expected) <= EXACT * summand


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_the_advantages(theirs: dict[str, Any], kind: str) -> None:
    found = theirs["found"]["advantages"]
    rows, rewards = np.array(found["rows"]), np.array(found["rewards"])
    labels = np.arange(len(rows)) // GROUP
    shaped = {
        "rloo": rloo(rewards, labels), "reinforce_baseline": dr_grpo(rewards, labels), "dr_grpo": dr_grpo(rewards, labels),
        "group_norm": grpo(rewards, labels, eps=1e-9), "flash_reinforce": rewards - rewards.mean(),
    }.get(kind, rewards)  # fmt: skip
    mask = np.array(theirs["tensors"]["mask"], np.bool_)[rows]
    width, splits = mask.shape[1], np.arange(len(rows) + 1) * mask.shape[1]
    token_rewards = np.where(mask, -0.05 * np.array(theirs["tensors"]["reference"])[rows], 0.0)
    last = width - 1 - mask[:, ::-1].argmax(axis=1)
    token_rewards[np.arange(len(rows)), last] += np.clip(shaped, -1.0, 2.0)
    np.testing.assert_allclose(found[kind]["return"], token_rewards.sum(axis=1), rtol=EXACT, atol=EXACT)
    flat = token_rewards.reshape(-1)
    values = np.array(theirs["tensors"]["old_value"])[rows].reshape(-1)
    covered = mask.reshape(-1)
    made = gae_through(flat, values, covered, splits, 1.0, 0.9) if kind == "gae" else discounted_sums(flat, splits, 1.0)
    made = made[covered]
    if kind in ("gae", "reinforce", "reinforce_baseline"):
        made = whiten_floored(made)
    np.testing.assert_allclose(np.array(found[kind]["advantage"]).reshape(-1)[covered], made, rtol=EXACT, atol=EXACT)


def test_the_third_argument_of_their_estimate_is_not_the_estimator(theirs: dict[str, Any]) -> None:
    assert theirs["found"]["third"] is True


@pytest.mark.parametrize("clip", [None, 0.5])
def test_the_value_loss(theirs: dict[str, Any], clip: float | None) -> None:
    _, info = settings_of("ppo")
    info = info_from_json({"trainer": "openrlhf", "config": {"native": info.config.native, "value_clip": clip}}, "info")
    batch = batch_of(theirs, info)
    (item,) = openrlhf.openrlhf.logged(info, (), {"critic_loss"})
    found = item.entries(item.reduction.partial(batch))
    assert abs(found.total - theirs["found"][f"value_{clip}"]) <= EXACT * abs(found.total)
