"""What the names of a log tell of the run, and what they do not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rl_doctor import open_run
from rl_doctor.analyzer.dialects.recognise import identify
from rl_doctor.analyzer.logged import Logged
from rl_doctor.schema import RunConfig, RunInfo
from rl_doctor.store.metric_log import MetricLog
from tests.unit.analyzer.dialects.logs import LOGS, STEPS, log, meanings, read, varied


def test_what_the_description_tells_is_left_alone() -> None:
    told = RunInfo(trainer="custom", algorithm="ppo", config=RunConfig(kl_coef=0.5))
    found = identify(told, log({**varied(LOGS["VERL"].names()), "actor/kl_coef": 0.001}))
    assert (found.trainer, found.algorithm, found.config.kl_coef) == ("custom", "ppo", 0.5)


def test_the_names_tell_what_they_mean_where_the_trainer_is_none_that_is_known() -> None:
    values = {**varied(LOGS["AREAL"].names()), "ppo_actor/update/approx_kl/avg": -0.25}
    for trainer in ("AReaL", "a-real", "my own fork", None):
        found = read(values, RunInfo(trainer=trainer))
        assert found.info.trainer == ("areal" if trainer is None else trainer)
        assert meanings(found)["policy.kl_old_k1"][0] == 0.25
    assert read(varied(LOGS["NEMO_RL"].names()), RunInfo(trainer="NeMo_RL")).info.algorithm == "grpo"


def test_nothing_is_told_by_nothing() -> None:
    assert identify(RunInfo(), MetricLog()) == RunInfo()
    assert identify(RunInfo(), log({"reward": 0.5, "step_time": 1.0})).trainer is None


def test_two_trainers_that_fit_alike_are_none() -> None:
    skyrl, nemo = ["policy/policy_entropy", "policy/policy_kl"], ["train/probs_ratio", "train/gen_kl_error"]
    assert read(varied([*skyrl, *nemo])).info.trainer is None
    assert read(varied([*skyrl, *nemo[:1]])).info.trainer == "skyrl"


def test_constants_are_settings() -> None:
    verl = varied(LOGS["VERL"].names())
    assert read({**verl, "actor/kl_coef": 0.001}).info.config.kl_coef == 0.001
    assert read({**verl, "actor/kl_coef": np.linspace(0.1, 0.2, STEPS)}).info.config.kl_coef is None
    assert read({**verl, "group_size_min": 8.0, "group_size_max": 8.0}).info.config.group_size == 8
    assert read({**verl, "group_size_min": 7.0, "group_size_max": 8.0}).info.config.group_size is None
    config = read({**varied(LOGS["AREAL"].names()), "ppo_actor/eps_clip/avg": 0.2}).info.config
    assert (config.clip_low, config.clip_high) == (0.2, None)  # eps_clip_higher, which is not logged, may be another


def test_settings_are_not_listed_as_unknown() -> None:
    found = read({**varied(LOGS["VERL"].names()), "actor/kl_coef": 0.001, "group_size_min": 8.0, "group_size_max": 8.0})
    assert not {"actor/kl_coef", "group_size_min", "group_size_max"} & set(found.unknown)


@pytest.mark.parametrize("name", ["TRL_SFT", "PLAIN_SFT", "TRL_DPO", "TRL_KTO", "TRL_REWARD", "OPENRLHF_DPO"])
def test_training_without_a_reward_has_no_metric_of_one(name: str) -> None:
    found = meanings(read(varied(LOGS[name].names())))
    assert not [metric for metric in found if metric.startswith(("reward.", "policy.", "ref.", "adv.", "group.", "length."))]


def test_supervised_training_by_a_trainer_of_reinforcement_learning() -> None:
    found = read({"train/loss": 0.1, "train/lr": 0.2, "val/loss": 0.3, "train/time(s)": 1.0}, RunInfo(trainer="verl"))
    assert found.info.algorithm == "sft"
    assert meanings(found).keys() == {"sft.loss", "optim.learning_rate", "val.loss"}
    assert read({"actor/pg_loss": 0.1, "loss": 0.1}, RunInfo(trainer="verl")).info.algorithm is None


def test_a_classifier_with_a_reward_is_no_supervised_training() -> None:
    assert read({"loss": 0.1, "grad_norm": 0.2, "mean_reward": 0.5}).info.algorithm is None


def test_a_recording_that_logs_a_loss_alone_is_no_supervised_training() -> None:
    logged = log({"loss": 0.1, "grad_norm": 0.2})
    assert identify(RunInfo(), logged).algorithm == "sft"
    assert identify(RunInfo(), logged, rows=True).algorithm is None


def test_held_out_scores_of_every_kind() -> None:
    base = {"reward": 0.5, "loss": 0.1}
    for name in (
        "eval/accuracy",
        "eval_accuracy",
        "val/acc",
        "test_acc",
        "validation/exact_match",
        "eval/gsm8k/pass@1",
        "heldout_reward",
    ):
        assert meanings(read({**base, name: 0.25}))["val.mean_at_n"] == [0.25] * STEPS, name
    for name in (
        "eval_reward_std",
        "eval/response_length",
        "eval_runtime",
        "val/loss",
        "test_entropy",
        "evaluations",
        "value_accuracy",
    ):
        assert "val.mean_at_n" not in meanings(read({**base, name: 0.25})), name


def test_a_share_that_is_right_comes_before_a_reward() -> None:
    found = read({"reward": 0.5, "eval/reward": 0.75, "eval/accuracy": 0.25})
    assert meanings(found)["val.mean_at_n"] == [0.25] * STEPS
    assert "eval/reward" in found.unknown
    parts = {"eval_rewards/format/mean": 1.0, "eval_rewards/task_reward/mean": 1.0}
    assert meanings(read({"reward": 0.5, "eval_reward": 0.75, **parts}))["val.mean_at_n"] == [0.75] * STEPS


def test_names_of_a_policy_that_hold_no_number_are_no_supervised_training(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    rows = [{"step": step, "reward": "high", "kl": "n/a", "loss": 0.5, "grad_norm": 1.0 + step} for step in range(9)]
    file.write_text("\n".join(map(json.dumps, rows)))
    run = open_run(file)
    assert Logged(run.metrics(), run.info).info.algorithm is None
    assert "no numbers, left out: kl, reward" in run.facts.notes
