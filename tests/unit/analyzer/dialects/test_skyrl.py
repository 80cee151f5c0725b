"""SkyRL's keys against the numbers that its own trainer and workers gave for the same tensors."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest

from rl_doctor import Run
from rl_doctor.analyzer.dialects.skyrl import SKYRL
from tests.unit.analyzer.dialects.golden_runs import (
    Row,
    comparisons,
    findings,
    golden,
    logged_in,
    recorded,
    unequal,
    without_recipe,
)

GOLDEN = golden("skyrl")
CASES = {case["name"]: case for case in GOLDEN["cases"]}
DEFAULTS: dict[str, Any] = {
    "policy_loss_type": "regular", "loss_reduction": "token_mean", "eps_clip_low": 0.2, "eps_clip_high": 0.2,
    "use_kl_loss": True, "use_kl_in_reward": False, "kl_loss_coef": 0.001, "kl_estimator_type": "k3",
    "use_entropy_loss": False, "value_clip": 0.2,
    "advantage_batch_normalize": False, "clip_ratio_c": 3.0, "sapo.tau_pos": 1.0, "sapo.tau_neg": 1.05,
    "cispo.cispo_anchor": "old",
    "dppo.dppo_type": "binary_tv", "off_policy_correction.token_tis_ratio_clip_high": 2.0,
    "off_policy_correction.sequence_tis_ratio_clip_high": 5.0, "off_policy_correction.geo_mask_high": 1.01,
    "off_policy_correction.geo_mask_low": 0.99, "off_policy_correction.product_mask_high": 2.0,
    "off_policy_correction.product_mask_low": 0.5, "gamma": 1.0, "lambd": 1.0,
}  # fmt: skip
NEVER = {
    "policy/loss_metrics/is_ratio_min", "policy/loss_metrics/is_ratio_std", "policy/minibatch_rollout_logprobs_abs_diff_min",
    "policy/policy_lr", "critic/critic_lr", "generate/tokens_per_turn_std", "generate/tokens_per_turn_max",
    "loss/kl_loss_coef",
}  # fmt: skip
LEFT = {
    "kl_cov": {"policy/policy_loss", "policy/final_loss"},  # picks tokens over a micro-batch
    "dual clip, sequence mean, kl k2": {"policy/final_loss"},  # an entropy bonus, of micro-batches of several sizes
    "gae, kl in reward": {"policy/policy_loss", "policy/final_loss"},  # with advantages normalised after they were logged
    "rloo, no rollout logprobs": {"policy/policy_loss", "policy/final_loss"},
}
TIES = {"policy/loss_metrics/clip_ratio", "critic/values_clipfrac"}


def algorithm(case: dict[str, Any]) -> dict[str, Any]:
    return {**DEFAULTS, **case["algorithm"]}


def kl_of(row: Row, kind: str) -> float:
    """The sum over a row's tokens of the KL in the reward, in plain Python."""
    total = 0.0
    for old, ref, kept in zip(row["old_logprob"], row["ref_logprob"], row["response_mask"], strict=True):
        x = min(max(ref - old, -20.0), 20.0)
        total += (old - ref if kind == "k1" else min(math.exp(x) - x - 1.0, 10.0)) if kept else 0.0
    return total


def rows_of(case: dict[str, Any]) -> list[Row]:
    sequences, passes = GOLDEN["sequences"], copy.deepcopy(GOLDEN["passes"])
    number, micro, own = len(sequences), case["microbatch_size"], algorithm(case)
    for sequence, epoch, position, column, value in case.get("set", []):
        passes[epoch * number + sequence][column][position] = value
    made = GOLDEN["advantages"][case["advantages"]]
    rows = []
    for item in passes:
        at = item["sequence"]
        row = {**sequences[at], **item, "minibatch": at // 12, "rank": at % 12 // 6, "microbatch": at % 6 // micro}
        row |= {"advantage": made["advantage"][at], "return": made["return"][at], "padded_width": GOLDEN["width"]}
        row["score"] = row["reward"]
        if own["use_kl_in_reward"]:
            row["reward"] -= own["kl_loss_coef"] * kl_of(row, own["kl_estimator_type"])
        if not case.get("rollout", True):
            del row["rollout_logprob"]
        rows.append(row)
    return rows


def run_of(name: str, folder: Path, **changed: float) -> Run:
    case = CASES[name]
    native = {"trainer": {"algorithm": algorithm(case)}}
    info = {"trainer": "skyrl", "algorithm": "grpo", "world_size": GOLDEN["world_size"], "config": {"native": native}}
    return recorded(folder / "run", info, {1: (rows_of(case), {**logged_in(GOLDEN, case), **changed})})


@pytest.mark.parametrize("name", CASES)
def test_every_key_is_what_skyrl_made_of_the_same_tensors(name: str, tmp_path: Path) -> None:
    run = run_of(name, tmp_path)
    found = comparisons(run)
    names = set(logged_in(GOLDEN, CASES[name]))
    assert not without_recipe(SKYRL, names - {"critic/critic_lr"})
    assert names - set(found) == (NEVER | LEFT.get(name, set())) & names
    assert not unequal(found, ties=TIES)
    assert not findings(run)


def test_a_changed_number_is_found(tmp_path: Path) -> None:
    right = logged_in(GOLDEN, CASES["defaults"])["policy/policy_kl"]
    assert set(findings(run_of("defaults", tmp_path, **{"policy/policy_kl": 1.01 * right}))) == {"policy/policy_kl"}


@pytest.mark.parametrize("name", ["sequence tis, product mask, token mask", "gae, kl in reward"])
def test_every_number_that_is_wrong_is_found(name: str, tmp_path: Path) -> None:
    wrong = {key: 1.5 * value + 0.1 for key, value in logged_in(GOLDEN, CASES[name]).items()}
    run = run_of(name, tmp_path, **wrong)
    assert set(findings(run)) == set(comparisons(run))
