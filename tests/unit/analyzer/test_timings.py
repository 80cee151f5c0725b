"""Names of clocks: what they measure, and what is none."""

from __future__ import annotations

import pytest

from rl_doctor.analyzer.engine import analyze
from rl_doctor.analyzer.timings import clock
from tests.unit.analyzer.memory import MemoryRun, log

KNOWN = {
    "time.generation": (
        "timing_s/gen", "timing_s/generate_sequences", "timing/train/generation", "generation_time", "timeperf/rollout",
        "perf/rollout_time", "time/step_generate", "time/generate_completions", "profiling/time taken: grpotrainer.generate",
    ),
    "time.update": (
        "timing_s/update_actor", "timing/train/policy_training", "timeperf/train_step", "perf/actor_train_time", "time/training",
    ),
    "time.wait": ("perf/train_wait_time", "time/wait_for_batch", "timing_s/wait_for_samples"),
    "time.step": ("timing_s/step", "timing/train/total_step_time", "perf/step_time", "step_time", "time/step"),
}  # fmt: skip
NONE = (
    "timing_per_token_ms/gen", "timing_s/update_critic", "timing_s/old_log_prob", "perf/throughput", "perf/mfu/actor",
    "rollout/reward", "policy/training", "train/loss", "timing_s/agent_loop/generate_sequences/max", "runtime", "reward_time",
)  # fmt: skip


@pytest.mark.parametrize(("metric", "name"), [(metric, name) for metric, names in KNOWN.items() for name in names])
def test_a_clock_is_known_by_its_name(metric: str, name: str) -> None:
    assert clock(name.replace(" ", "_")) == metric


@pytest.mark.parametrize("name", NONE)
def test_what_is_no_clock_is_none(name: str) -> None:
    assert clock(name) is None


def test_a_log_has_its_clocks_whatever_its_trainer() -> None:
    run = MemoryRun([], logged=log({"timing_s/gen": {1: 60.0, 2: 61.0}, "actor/grad_norm": {1: 0.1, 2: 0.2}}))
    assert analyze(run, ["time.generation"]).series["time.generation"].values.tolist() == [60.0, 61.0]
