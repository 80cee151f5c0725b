"""The names in logs of real runs by others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rl_doctor import open_run
from rl_doctor.analyzer.logged import Logged
from tests.unit.analyzer.dialects.logs import meanings

RUNS = Path(__file__).parents[5] / "shared" / "runs"
FORK = {
    "group_reward_all_zero_rate", "group_reward_at_least_one_positive_rate", "group_reward_positive_responses_per_group_max",
    "group_reward_positive_responses_per_group_mean", "group_reward_sum_per_group_mean", "num_turns_max", "num_turns_min",
    "response_length_non_aborted_clip_ratio", "response_length_non_aborted_max", "response_length_non_aborted_mean",
    "response_length_non_aborted_min",
}  # fmt: skip
ASSISTANT = {f"assistant_response_length_{statistic}" for statistic in ("max", "mean", "min")}

EXPECTED = {
    "trl-grpo-no-signal/trainer_state.json": ("trl", "grpo", set()),
    "trl-healthy-one-kl-spike/trainer_state.json": ("trl", "grpo", set()),
    "trl-healthy-slow/trainer_state.json": ("trl", "grpo", set()),
    "trl-short-inconclusive/trainer_state.json": ("trl", "grpo", set()),
    "trl-short-inconclusive/stdout.log": ("trl", "grpo", set()),
    "trl-string-values/stdout.log": ("trl", "grpo", {"tools/call_frequency", "tools/failure_frequency"}),
    "custom-healthy/metrics.jsonl": (None, None, {"accuracy", "format_rate", "truncated_count"}),
    "custom-healthy-saturating/step_logs.json": (None, None, set()),
    "verl-all-zero-reward/training_metrics.csv": ("verl", None, FORK | ASSISTANT | {"group_size_mean"}),
    "verl-healthy-truncation-easing/training_metrics.csv": ("verl", None, FORK | ASSISTANT | {"group_size_mean"}),
    "verl-healthy-plateau/metrics.csv": (
        "verl",
        None,
        {
            *FORK, "group_size_mean", "val-aux_num_turns_max", "val-aux_num_turns_mean", "val-aux_num_turns_min",
            "val-aux_textcraft_reward_mean@1",
        },
    ),
    "verl-console-short/output.log": (
        "verl", None, {"reward/all_correct_ratio", "reward/format_error_ratio", "reward/wrong_answer_ratio"}
    ),
}  # fmt: skip

pytestmark = pytest.mark.skipif(not RUNS.is_dir(), reason="the collection of public logs is not beside the checkout")


def opened(name: str) -> Logged:
    run = open_run(RUNS / name)
    return Logged(run.metrics(), run.info)


@pytest.mark.parametrize("name", EXPECTED)
def test_who_wrote_it_and_what_is_left_over(name: str) -> None:
    trainer, algorithm, unknown = EXPECTED[name]
    found = opened(name)
    assert (found.info.trainer, found.info.algorithm) == (trainer, algorithm)
    assert set(found.unknown) == unknown


def test_parts_of_the_batch_are_told_apart() -> None:
    found = meanings(opened("verl-stale-prefix/training_metrics.csv"))
    assert max(found["part.prefix.policy.kl_old_k1"]) < -0.25
    assert max(map(abs, found["part.continuation.policy.kl_old_k1"])) < 0.1
    assert np.median(found["part.prefix.policy.clip_frac"]) > 0.1


def test_a_console_that_rounds_has_no_learning_rate() -> None:
    found = opened("verl-console-short/output.log")
    assert not {"optim.learning_rate", "policy.kl_old_k1"} & meanings(found).keys()
    assert found.info.config.kl_coef == 0.001
    assert meanings(found)["val.mean_at_n"] == [0.0]


def test_the_deviation_across_prompts_is_no_signal() -> None:
    found = meanings(opened("trl-grpo-no-signal/trainer_state.json"))
    assert max(found["group.std_mean"]) < 0.05 < min(found["reward.component.reward_func.std"])
    assert "reward.std" in meanings(opened("trl-string-values/stdout.log"))
