"""Names whose meaning is plain although no trainer that is known writes them, and the algorithm that names tell."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rl_doctor import open_run
from rl_doctor.analyzer.logged import Logged
from rl_doctor.api import check, failed
from rl_doctor.errors import InputError
from tests.unit.analyzer.dialects.logs import STEPS, meanings, read, varied

RAMP = np.linspace(0.1, 0.4, STEPS)


@pytest.mark.parametrize(
    ("native", "metric"),
    [
        ("avg_entropy", "policy.entropy"),
        ("avg_clip_fraction", "policy.clip_frac"),
        ("avg_kl", "ref.kl"),
        ("average_value_loss", "value.loss"),
        ("train/avg_grad_norm", "optim.grad_norm"),
        ("avg_policy_loss", "policy.loss_pg"),
        ("env/all/reward/total", "reward.mean"),
        ("reward_format_reward_func", "reward.component.format.mean"),
        ("eval_rewards/format/mean", "val.mean_at_n"),
        ("eval_rewards/format_reward", "val.mean_at_n"),
    ],
)
def test_a_plain_name_is_used(native: str, metric: str) -> None:
    found = read({native: RAMP})
    assert metric in meanings(found)
    np.testing.assert_allclose(meanings(found)[metric], RAMP)


@pytest.mark.parametrize(
    "native", ["avg_max_reward", "avg_reward_std", "avg_min_reward", "avg_exact_kl", "eval_rewards/format/std"]
)
def test_the_average_of_what_is_no_mean_is_left_alone(native: str) -> None:
    assert native in read({native: RAMP}).unknown


def test_each_part_of_an_evaluation_stands_by_itself() -> None:
    found = meanings(
        read({"eval_rewards/format/mean": RAMP, "eval_rewards/answer/mean": 3 * RAMP, "eval_rewards/answer/std": RAMP})
    )
    np.testing.assert_allclose(found["val.mean_at_n"], 2 * RAMP)
    np.testing.assert_allclose(found["val.source.answer"], 3 * RAMP)
    better = meanings(read({"eval_rewards/format/mean": RAMP, "eval_reward": 5 * RAMP}))
    np.testing.assert_allclose(better["val.mean_at_n"], 5 * RAMP)


def test_the_sums_of_ppo_are_no_means() -> None:
    names = ["objective/kl", "objective/entropy", "objective/scores", "objective/rlhf_reward", "policy/approxkl_avg"]
    names += ["policy/clipfrac_avg", "policy/entropy_avg", "val/ratio", "loss/policy_avg", "loss/value_avg"]
    found = read({**varied(names), "objective/entropy": -100 * RAMP, "policy/entropy_avg": RAMP})
    known = meanings(found)
    np.testing.assert_allclose(known["policy.entropy_sequence"], -100 * RAMP)
    np.testing.assert_allclose(known["policy.entropy"], RAMP)
    assert {"ref.kl_sequence", "reward.score_mean", "reward.mean", "policy.kl_old_k2", "policy.clip_frac"} <= known.keys()
    assert {"policy.ratio_mean", "policy.loss_pg", "value.loss"} <= known.keys()
    assert found.unknown == ()
    assert "ref.kl" not in known


@pytest.mark.parametrize(
    "beside", ["avg_exact_kl", "my_kl_estimate", "clip_low_hits", "reward/answer/raw", "rollout/seen", "critic/x", "dpo_margins"]
)
def test_a_loss_beside_names_of_a_policy_is_not_supervised(beside: str) -> None:
    assert read(varied(["loss", beside])).info.algorithm is None


@pytest.mark.parametrize("beside", ["accuracy", "grad_clip_coef", "perplexity", "entropy", "clip_grad_norm", "policyholder_age"])
def test_a_loss_beside_other_names_is(beside: str) -> None:
    assert read(varied(["loss", beside])).info.algorithm == "sft"


@pytest.mark.parametrize("odds", ["odds_ratio_loss", "log_odds_ratio"])
def test_an_odds_ratio_tells_orpo(odds: str) -> None:
    pairs = ["rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies"]
    assert read(varied(["loss", "sft_loss", odds, *pairs])).info.algorithm == "orpo"
    assert read(varied(["loss", odds])).info.algorithm == "orpo"
    assert read(varied(["loss", *pairs])).info.algorithm == "dpo"


def test_the_accuracy_of_llama_factory_is_that_of_preferences(tmp_path: Path) -> None:
    rows = [
        {"current_steps": step, "total_steps": 90, "loss": 0.7 - step / 99, "accuracy": step / 9, "percentage": step}
        for step in range(9)
    ]
    (tmp_path / "trainer_log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = open_run(tmp_path / "trainer_log.jsonl")
    found = Logged(run.metrics(), run.info)
    assert found.info.algorithm is None
    assert found.series("pref.accuracy", "1") is not None
    for row in rows:
        del row["accuracy"]
    (tmp_path / "trainer_log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = open_run(tmp_path / "trainer_log.jsonl")
    assert Logged(run.metrics(), run.info).info.algorithm == "sft"


def test_a_family_that_is_no_family_of_rewards_is_left_out() -> None:
    found = read({f"rewards/sample{index}/mean": 0.5 for index in range(600)})
    assert found.family("reward.component.") == ()
    assert len(found.unknown) == 600
    assert "599 more of its kind" in "; ".join(found.notes)
    assert len(read({f"rewards/part{index}/mean": 0.5 for index in range(300)}).family("reward.component.")) == 300


def test_an_address_keeps_its_slashes(tmp_path: Path) -> None:
    assert failed(Path("wandb://team/project/run"), InputError("x")).run.path == "wandb://team/project/run"
    assert failed(Path("https://host/a/b/runs/c"), InputError("x")).run.path == "https://host/a/b/runs/c"
    assert failed(Path("logs/a.json"), InputError("x")).run.path == "logs/a.json"
    (tmp_path / "a.csv").write_text("step,reward\n1,0.5\n2,0.25\n3,0.5\n")
    assert check(open_run(tmp_path / "a.csv")).run.path == str(tmp_path / "a.csv")
