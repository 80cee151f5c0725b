"""One pass: what is read, what is missing, and when a generation batch is taken for finished."""

from __future__ import annotations

import tracemalloc
from collections.abc import Collection, Iterator

import numpy as np
import pytest

from rl_doctor.analyzer.engine import analyze
from rl_doctor.analyzer.needs import lacking
from rl_doctor.analyzer.registry import metrics
from rl_doctor.errors import InputError, UsageError
from rl_doctor.schema import RunConfig, RunInfo
from rl_doctor.store.batch import Batch
from tests.unit.analyzer.memory import MemoryRun, Row, batch, log
from tests.unit.analyzer.rows import CONFIG, random_rows

PASS = {"logprob": [-1.0], "old_logprob": [-1.0]}


def row(step: int, rollout: int, uid: str, reward: float = 0.0, **more: object) -> Row:
    return {"step": step, "rollout_step": rollout, "uid": uid, "reward": reward, **more}


def test_only_what_the_metrics_need_is_read() -> None:
    run = MemoryRun(random_rows(0), CONFIG)
    analyze(run, ["policy.ratio_mean"])
    assert run.asked == {"logprob", "old_logprob", "response_mask", "is_padding"}


def test_sequence_metrics_touch_no_token_column() -> None:
    run = MemoryRun(random_rows(0), CONFIG)
    analyze(run, ["reward.mean", "group.count"])
    assert run.asked == {"reward", "group", "rollout_step", "uid", "epoch", "minibatch", "sequence", "is_padding"}


def test_of_alternatives_what_is_there_is_read() -> None:
    rows = [{name: value for name, value in one.items() if name not in ("old_value", "token_reward")} for one in random_rows(0)]
    run = MemoryRun(rows, CONFIG)
    assert "advantage.fit_gae_mean" in analyze(run, ["advantage.fit_gae_mean"]).series
    assert {"value", "reward"} <= run.asked
    needs = metrics()["advantage.fit_gae_mean"].needs
    assert lacking(needs, {"advantage"}, RunConfig(gamma=1.0)) == ("config.lam", "old_value", "token_reward")


def test_missing_columns_and_configuration_are_named() -> None:
    run = MemoryRun([{"step": 1, "reward": 1.0, "logprob": [-1.0]}])
    found = analyze(
        run, ["policy.clip_frac", "group.count", "advantage.fit_rloo_max", "reward.component.fmt.mean", "reward.mean"]
    )
    assert found.missing == {
        "policy.clip_frac": ("advantage", "config.clip_high", "config.clip_low", "old_logprob"),
        "group.count": ("group",),
        "advantage.fit_rloo_max": ("advantage", "group"),
        "reward.component.fmt.mean": ("reward/<name>",),
    }
    assert list(found.series) == ["reward.mean"]


@pytest.mark.parametrize("absent", ["epoch", "minibatch"])
def test_first_and_later_are_not_guessed(absent: str) -> None:
    rows = [{name: value for name, value in one.items() if name != absent} for one in random_rows(0)]
    found = analyze(MemoryRun(rows, CONFIG), ["policy.first_zero_frac", "policy.later_zero_frac", "ref.kl_first_k3"])
    assert set(found.missing.values()) == {(absent,)}


def test_without_rollout_step_the_first_mini_batch_is_told_by_epoch_and_minibatch() -> None:
    rows = [{"step": step, "epoch": 0, "minibatch": step % 2, **PASS} for step in range(4)]
    found = analyze(MemoryRun(rows), ["policy.first_zero_frac", "policy.later_zero_frac"]).series
    assert found["policy.first_zero_frac"].counts.tolist() == [1, 0, 1, 0]
    assert found["policy.later_zero_frac"].counts.tolist() == [0, 1, 0, 1]


def test_a_step_after_the_first_of_the_generation_batch_is_later_whatever_its_minibatch() -> None:
    rows = [{"step": step, "rollout_step": 0, "epoch": 0, "minibatch": 0, **PASS} for step in range(2)]
    found = analyze(MemoryRun(rows), ["policy.first_zero_frac", "policy.later_zero_frac"]).series
    assert found["policy.first_zero_frac"].counts.tolist() == [1, 0]
    assert found["policy.later_zero_frac"].counts.tolist() == [0, 1]


def test_a_prefix_chooses_all_that_start_with_it() -> None:
    found = analyze(MemoryRun(random_rows(0), CONFIG), ["reward.component.", "reward.mean"]).series
    assert "reward.component.fmt.std" in found
    assert {name.split(".")[0] for name in found} == {"reward"}


def test_an_unknown_name_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match=r"policy\.nonsense"):
        analyze(MemoryRun([]), ["policy.nonsense"])


def test_no_rows() -> None:
    found = analyze(MemoryRun([]))
    assert not any(len(series) for series in found.series.values())
    assert len(found.series) + len(found.missing) == len(metrics())


def test_each_uid_counts_once_in_its_first_pass() -> None:
    rows = [
        row(1, 0, "a", 1.0, epoch=0),
        row(1, 0, "b", 0.0, epoch=0),
        row(2, 0, "a", 5.0, epoch=1),
        row(2, 0, "b", 5.0, epoch=1),
    ]
    series = analyze(MemoryRun(rows), ["reward.mean", "update.passes_mean"]).series
    assert series["reward.mean"].steps.tolist() == [1]
    assert series["reward.mean"].values.tolist() == [0.5]
    assert series["update.passes_mean"].values.tolist() == [2.0]


def test_rows_without_a_uid_count_in_the_first_epoch() -> None:
    rows = [row(1, 0, None, float(epoch), epoch=epoch) for epoch in (0, 0, 1)]
    series = analyze(MemoryRun(rows), ["reward.mean"]).series["reward.mean"]
    assert (series.values.tolist(), series.counts.tolist()) == ([0.0], [2])


def test_generation_batches_that_start_at_one_step_are_merged() -> None:
    rows = [row(3, 1, "a", 1.0), row(3, 2, "b", 2.0), row(4, 2, "c", 6.0)]
    series = analyze(MemoryRun(rows), ["reward.mean"]).series["reward.mean"]
    assert (series.steps.tolist(), series.values.tolist(), series.counts.tolist()) == ([3], [3.0], [3])


def test_a_generation_batch_that_comes_back_is_counted_and_kept() -> None:
    rows = [row(1, 1, "a", 1.0), row(2, 2, "b", 2.0), row(3, 3, "c", 3.0), row(4, 1, "d", 4.0), row(5, 5, "e", 5.0)]
    found = analyze(MemoryRun(rows), ["reward.mean"])
    assert found.reopened_rollouts == 1
    assert found.series["reward.mean"].steps.tolist() == [1, 2, 3, 4, 5]
    assert found.series["reward.mean"].values.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_rows_of_a_null_rollout_step_belong_to_their_step() -> None:
    rows = [row(1, None, "a", 1.0), row(2, None, "b", 2.0)]
    series = analyze(MemoryRun(rows), ["reward.mean"]).series["reward.mean"]
    assert (series.steps.tolist(), series.values.tolist()) == ([1, 2], [1.0, 2.0])


def test_steps_out_of_order_are_refused() -> None:
    class Backwards(MemoryRun):
        def batches(self, columns: Collection[str]) -> Iterator[Batch]:
            for step in (2, 1):
                yield batch([{"step": step, "reward": 1.0}], columns=columns)

    with pytest.raises(InputError, match="step 1 comes after step 2"):
        analyze(Backwards([{"step": 1, "reward": 1.0}]), ["reward.mean"])


class Long:
    """A run that is made while it is read."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.info = RunInfo(config=CONFIG)
        self.columns = {"step", "rollout_step", "uid", "reward", "group", "logprob", "old_logprob"}

    def metrics(self) -> object:
        return log({})

    def batches(self, _: Collection[str]) -> Iterator[Batch]:
        for step in range(self.steps):
            names = np.array([f"{step}-{i}" for i in range(200)], object)
            tokens = np.zeros(20_000, np.float32)
            yield Batch(
                step,
                {
                    "step": np.full(200, step), "rollout_step": np.full(200, step), "uid": names, "group": names,
                    "reward": np.zeros(200), "logprob": tokens, "old_logprob": tokens,
                },
                np.arange(0, 20_001, 100),
                self.info,
            )  # fmt: skip


def peak(steps: int) -> int:
    tracemalloc.start()
    analyze(Long(steps), ["reward.mean", "group.count", "policy.ratio_p99", "policy.kl_old_k3"])  # type: ignore[arg-type]
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most


def test_memory_does_not_grow_with_the_run() -> None:
    peak(2)
    assert peak(60) < 1.3 * peak(6)
