"""Scalars from the trainer's own log."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rl_doctor.analyzer.engine import analyze
from rl_doctor.analyzer.logged import Logged
from rl_doctor.schema import RunConfig, RunInfo
from rl_doctor.store.metric_log import MetricLog
from tests.unit.analyzer.memory import MemoryRun, log

NATIVE = {
    "optim.grad_norm": [
        "grad_norm",
        "train/grad_norm",
        "actor/grad_norm",
        "policy/grad_norm",
        "actor_grad_norm",
        "optim/grad_norm",
    ],
    "optim.learning_rate": [
        "learning_rate",
        "train/learning_rate",
        "actor/lr",
        "actor_lr",
        "lr",
    ],
    "reward.mean": ["reward", "train/reward", "critic/rewards/mean", "critic_rewards_mean"],
    "policy.entropy": ["entropy", "actor/entropy"],
    "ref.kl": ["kl", "train/kl", "actor/kl_loss"],
    "length.truncated_frac": ["completions/clipped_ratio"],
    "group.zero_std_frac": ["frac_reward_zero_std"],
}


@pytest.mark.parametrize(("metric", "name"), [(metric, name) for metric, names in NATIVE.items() for name in [metric, *names]])
def test_each_trainers_name_is_known(metric: str, name: str) -> None:
    run = MemoryRun([], logged=log({name: {2: 0.5, 1: 0.25}, "other": {1: 7.0}}))
    series = analyze(run, [metric]).series[metric]
    assert (series.steps.tolist(), series.values.tolist(), series.counts.tolist()) == ([1, 2], [0.25, 0.5], [1, 1])


def test_validation_scores_are_averaged_over_the_data_sources_that_are_measured_together() -> None:
    scores = {"a": {5: 0.25, 10: 0.5}, "b": {5: 0.75, 10: 0.5}, "c": {5: 0.0}}
    run = MemoryRun([], logged=log({**{f"val-core/{name}/acc/mean@4": each for name, each in scores.items()}, "val": {5: 9.0}}))
    found = analyze(run, ["val.mean_at_n", "val.source."]).series
    assert (found["val.mean_at_n"].steps.tolist(), found["val.mean_at_n"].values.tolist()) == ([5, 10], [0.5, 0.5])
    assert {name: series.values.tolist() for name, series in found.items() if name != "val.mean_at_n"} == {
        "val.source.a": [0.25, 0.5],
        "val.source.b": [0.75, 0.5],
        "val.source.c": [0.0],
    }
    assert analyze(run, ["val.best_at_n"]).missing == {"val.best_at_n": ("val.best_at_n",)}


def test_what_an_evaluation_logs_under_plain_names_is_no_metric_of_the_training() -> None:
    evaluated = MetricLog.of(
        [(3, "reward", 0.5, "eval"), (3, "eval_entropy", 0.5, "eval"), (3, "kl", 0.5, "eval"), (3, "reward", 0.1, "train")]
    )
    found = analyze(MemoryRun([], logged=evaluated), ["val.mean_at_n", "reward.mean", "policy.entropy", "ref.kl"]).series
    assert {name: series.values.tolist() for name, series in found.items()} == {"val.mean_at_n": [0.5], "reward.mean": [0.1]}


def test_what_is_0_in_every_row_was_not_measured() -> None:
    run = MemoryRun([], logged=log({"entropy": {1: 0.0, 2: 0.0}, "reward": {1: 0.0, 2: 0.0}}))
    found = analyze(run, ["policy.entropy", "reward.mean"])
    assert list(found.series) == ["reward.mean"]
    assert found.missing == {"policy.entropy": ("policy.entropy",)}


def test_reward_components_of_a_log() -> None:
    run = MemoryRun([], logged=log({"rewards/fmt/mean": {1: 0.5}, "train/rewards/task/std": {1: 0.1}, "rewards/other": {1: 1.0}}))
    found = analyze(run, ["reward.component."]).series
    assert {name: series.values.tolist() for name, series in found.items()} == {
        "reward.component.fmt.mean": [0.5],
        "reward.component.other.mean": [1.0],
        "reward.component.task.std": [0.1],
    }


def test_scalars_exist_beside_tokens_and_on_their_own_steps() -> None:
    rows = [{"step": step, "logprob": [-1.0], "old_logprob": [-1.0]} for step in (1, 2, 3)]
    run = MemoryRun(rows, RunConfig(max_grad_norm=1.0), logged=log({"actor/grad_norm": {2: 4.0}, "actor/lr": {1: 1e-6}}))
    found = analyze(run)
    assert found.series["policy.ratio_mean"].steps.tolist() == [1, 2, 3]
    assert found.series["optim.grad_norm"].steps.tolist() == [2]
    assert found.series["optim.clip_coef"].values[0] == pytest.approx(1 / (4 + 1e-6))
    assert found.series["optim.learning_rate"].values.tolist() == [1e-6]


def test_columns_of_the_run_come_before_the_log() -> None:
    rows = [{"step": 1, "grad_norm": value} for value in (2.0, 4.0, math.nan)]
    run = MemoryRun(rows, logged=log({"grad_norm": {1: 9.0}}))
    found = analyze(run, ["optim.grad_norm", "optim.grad_norm_max"]).series
    assert [series.values.tolist() for series in found.values()] == [[3.0], [4.0]]


def test_nan_is_a_null_in_a_row_but_a_value_in_a_log() -> None:
    in_row = analyze(MemoryRun([{"step": 1, "grad_norm": math.nan}]), ["optim.grad_norm"]).series["optim.grad_norm"]
    in_log = analyze(MemoryRun([], logged=log({"grad_norm": {1: math.nan}})), ["optim.grad_norm"]).series["optim.grad_norm"]
    assert (in_row.counts.tolist(), in_log.counts.tolist()) == ([0], [1])
    assert np.isnan(in_log.values).all()


def test_a_metric_that_cannot_be_recomputed_is_taken_from_the_log_under_its_canonical_name() -> None:
    run = MemoryRun(
        [], logged=log({"policy.entropy": {3: 1.5, 1: 2.0}, "reward.component.fmt.mean": {1: 0.1}, "entropy": {1: 9.0}})
    )
    found = analyze(run, ["policy.entropy", "reward.component.fmt.mean", "reward.mean"])
    assert found.series["policy.entropy"].values.tolist() == [2.0, 1.5]
    assert found.series["reward.component.fmt.mean"].values.tolist() == [0.1]
    assert found.missing == {"reward.mean": ("reward.mean",)}


def test_a_metric_that_can_be_recomputed_is() -> None:
    run = MemoryRun([{"step": 1, "entropy": [0.5]}], logged=log({"policy.entropy": {1: 99.0}}))
    assert analyze(run, ["policy.entropy"]).series["policy.entropy"].values.tolist() == [0.5]


def test_nothing_logged() -> None:
    found = analyze(MemoryRun([]), ["optim.grad_norm", "optim.clip_coef"])
    assert found.missing == {"optim.grad_norm": ("grad_norm",), "optim.clip_coef": ("config.max_grad_norm", "grad_norm")}


@pytest.mark.parametrize(
    ("kl_in_reward", "words"), [(None, "does not say which"), (True, "is that of the experience"), (False, None)]
)
def test_which_kl_of_openrlhf_it_is_follows_from_the_configuration(kl_in_reward: bool | None, words: str | None) -> None:
    info = RunInfo(trainer="openrlhf", algorithm="ppo", config=RunConfig(kl_in_reward=kl_in_reward))
    log = Logged(MetricLog.of([(step, "kl", 0.1 * step, "train") for step in range(1, 4)]), info)
    assert log.series("ref.kl", "nat") is not None
    told = [note for note in log.notes if note.startswith("kl ")]
    assert len(told) == (0 if words is None else 1)
    assert words is None or words in told[0]
