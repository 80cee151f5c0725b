"""ROLL's keys against the numbers that its own functions gave for the same tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rl_doctor import Run
from rl_doctor.analyzer.dialects.roll import ROLL
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

GOLDEN = golden("roll")
CASES = {case["name"]: case for case in GOLDEN["cases"]}
DEFAULTS: dict[str, Any] = {
    "pg_clip": 0.2, "use_pg_clip_range": False, "pg_clip_low": 0.2, "pg_clip_high": 0.2, "dual_clip_loss": False,
    "use_kl_loss": False, "kl_loss_coef": 0.0, "entropy_loss_coef": 0.0, "loss_agg_mode": "seq-mean-token-mean",
    "rl_loss_coef": 1.0, "importance_sampling": "token", "enable_old_logprobs_recompute": True, "difficulty_loss_weight": False,
    "length_loss_weight": False, "kl_penalty": "kl", "value_clip": None,
}  # fmt: skip
CRITIC = ("critic/loss", "critic/value", "critic/vpred", "critic/clipfrac", "critic/error")
TIES = {"actor/ppo_ratio_clipfrac", "actor/ppo_ratio_low_clipfrac", "actor/ppo_ratio_high_clipfrac", "actor/clipfrac"}
NEVER = (
    "raw_advantages",
    "length/clip",
    "right_response_length",
    "error_response_length",
    "score_distribution/m",
    "critic/kl_coef",
)
BETWEEN = ("group/correct_ratio/std", "group/response_length_diff", "group/advantage_diff", "group/correct_vs")
WEIGHTED = {
    "actor/weighted_pg_loss",
    "actor/total_loss",
    "actor/sample_weights_mean",
    "actor/sample_weights_min",
    "actor/sample_weights_max",
}
"""Not without the weights of the samples."""
DRIVER = "filters at the driver, segments"


def native_of(case: dict[str, Any]) -> dict[str, Any]:
    own = {**DEFAULTS, **case["config"]}
    correction = {"is_weight": own.pop("is_weight", {"enabled": False}), "filters": own.pop("filters", [])}
    if case["pipeline"] == "agentic":
        del own["rl_loss_coef"], own["importance_sampling"]
        own.setdefault("ratio_type", "token")
    return {**own, "train_infer_correction": correction}


def rows_of(case: dict[str, Any], epochs: int = 2) -> list[Row]:
    sequences, passes = GOLDEN["sequences"], GOLDEN["passes"]
    made = GOLDEN["columns"][case["columns"]]
    number = len(sequences)
    rows: list[Row] = []
    for item in passes[: epochs * number]:
        at = item["sequence"]
        row = {**sequences[at], **item, "minibatch": at % 8 // 4, "rank": at // 8, "microbatch": at % 4 // 2}
        row |= {name: made[name][at] for name in ("response_mask", "advantage", "return", "token_reward")}
        row |= {"padded_width": GOLDEN["width"] + 2, "reward": sum(made["token_reward"][at])}
        rows.append(row)
    for row in rows:
        same = [other for other in rows if (other["epoch"], other["minibatch"]) == (row["epoch"], row["minibatch"])]
        row["batch_num_tokens"] = max(1, sum(sum(other["response_mask"]) for other in same))
    if all(row["response_mask"] == row["loss_mask"] for row in rows):
        for row in rows:
            del row["loss_mask"]
    return rows


def run_of(case: dict[str, Any], folder: Path, logged: dict[str, float], epochs: int = 2) -> Run:
    info = {"trainer": "roll", "algorithm": "grpo", "world_size": 2, "config": {"native": native_of(case)}}
    return recorded(folder / f"run{epochs}", info, {1: (rows_of(case, epochs), logged)})


def left_out(name: str, case: dict[str, Any]) -> tuple[str, ...]:
    found = [*NEVER, *BETWEEN, "math/", "actor/valid_sample_ratio"]
    if case["config"].get("length_loss_weight"):
        found += sorted(WEIGHTED)
    if name == DRIVER:  # the filters change the masks after they were recorded here
        found += ["actor/"]
    return tuple(found)


@pytest.mark.parametrize("name", CASES)
def test_every_key_is_what_roll_made_of_the_same_tensors(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    logged = {key: value for key, value in logged_in(GOLDEN, case).items() if key not in CRITIC}
    run = run_of(case, tmp_path, logged)
    found = comparisons(run)
    assert not without_recipe(ROLL, logged)
    left = left_out(name, case)
    assert not {key for key in set(logged) - set(found) if not any(part in key for part in left)}
    assert not unequal(found, ties=TIES)
    assert not findings(run)


def test_the_critics_passes_are_recomputed(tmp_path: Path) -> None:
    case = CASES["gae, kl in reward"]
    logged = {key: value for key, value in logged_in(GOLDEN, case).items() if key in CRITIC}
    found = comparisons(run_of(case, tmp_path, logged, epochs=1))
    assert set(found) == set(CRITIC)
    assert not unequal(found)


def test_the_kl_in_the_reward_is_a_mean_over_samples(tmp_path: Path) -> None:
    case = CASES["defaults"]
    means = []
    for row in GOLDEN["sequences"]:
        kept = [at for at, inside in enumerate(row["loss_mask"]) if inside]
        means.append(sum(row["old_logprob"][at] - row["ref_logprob"][at] for at in kept) / max(len(kept), 1))
    found = comparisons(run_of(case, tmp_path, {"critic/kl": sum(means) / len(means)}))
    assert set(found) == {"critic/kl"}
    assert not unequal(found)


def test_a_changed_number_is_found(tmp_path: Path) -> None:
    case = CASES["defaults"]
    logged = logged_in(GOLDEN, case)
    wrong = {"actor/policykl": -logged["actor/policykl"], "actor/kl_loss": logged["actor/kl_loss"]}
    assert set(findings(run_of(case, tmp_path, wrong))) == {"actor/policykl"}


@pytest.mark.parametrize("name", ["filters at the workers, sequence", "sample masks, difficulty"])
def test_every_number_that_is_wrong_is_found(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    wrong = {key: 1.5 * value + 0.1 for key, value in logged_in(GOLDEN, case).items() if key not in CRITIC}
    run = run_of(case, tmp_path, wrong)
    assert set(findings(run)) == set(comparisons(run))
