"""What is recomputed from a recorded OpenRLHF run equals what OpenRLHF logged, key by key and step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rl_doctor import check
from rl_doctor.analyzer import reconcile
from rl_doctor.analyzer.dialects.openrlhf import OPENRLHF
from rl_doctor.analyzer.engine import analyze
from rl_doctor.store.metric_log import MetricLog
from rl_doctor.store.run import Run
from tests.trainers.definitions import recomputable
from tests.trainers.openrlhf.conftest import Train
from tests.trainers.openrlhf.test_harmless import CASES as HARMLESS

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(600)]

EXACT = 1e-6
"""Relative to the mean absolute summand, which is at most about 1 for every key here, or to the number itself."""
NOT_FROM_TOKENS = {
    "actor_grad_norm", "actor_lr", "critic_grad_norm", "critic_lr", "timing/make_experience", "timing/ppo_train",
    "timing/broadcast", "vowels",
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    **HARMLESS,
    "corrected": {
        "args": {
            "actor.loss_agg_mode": "seq-mean-token-mean", "actor.dual_clip": 1.2, "algo.kl.use_loss": True,
            "algo.kl.estimator": "k2", "algo.advantage.is_correction_level": "token", "algo.advantage.estimator": "rloo",
        }
    },
    "rejected": {
        "args": {
            "algo.advantage.is_correction_level": "seq", "algo.advantage.is_correction_gating": "binary_kl",
            "algo.advantage.is_correction_threshold": [0.0, 0.02], "algo.advantage.estimator": "dr_grpo",
        }
    },
    "gspo": {"args": {"actor.policy_loss_type": "gspo", "actor.eps_clip_low_high": [0.05, 0.06], "actor.entropy_coef": 0}},
    "dynamic": {
        "args": {
            "train.dynamic_batch_enable": True, "algo.advantage.estimator": "reinforce_baseline", "ds.zero_stage": 1,
            "reward.overlong_buffer_len": 12, "actor.entropy_coef": 0,
        }
    },
    "uneven": {"args": {"train.micro_batch_size": 3, "train.batch_size": 6, "algo.advantage.estimator": "flash_reinforce"}},
    "critic_two_ranks": {
        "ranks": 2, "args": {"algo.advantage.estimator": "gae", "algo.advantage.lambd": 0.9, "algo.kl.estimator": "k3"},
    },
}  # fmt: skip
UNDERIVABLE = {
    "uneven": {"group_reward_std", "return"},  # some sequences are trained on less often than others
}
"""Keys that are left alone."""


@pytest.fixture(scope="module", params=CASES)
def recorded(request: pytest.FixtureRequest, train: Train) -> tuple[str, Run]:
    return request.param, train(**CASES[request.param]).run


def comparisons(run: Run, log: MetricLog | None = None) -> dict[str, reconcile.Comparison]:
    log = run.metrics() if log is None else log
    plan = reconcile.plan(run.info, run.columns, log)
    apart = None if run.critic is None else reconcile.plan_critic(plan, run.critic.info, run.critic.columns)
    analysis = analyze(run, [], plan.metrics, None, apart.metrics if apart else ())
    found = reconcile.compare(plan, analysis.series, analysis.partial_steps)
    if apart:
        found += reconcile.compare(apart, analysis.critic.series, analysis.critic.partial_steps)
    return {item.name: item for item in found}


def test_every_logged_key_is_recomputed(recorded: tuple[str, Run]) -> None:
    name, run = recorded
    log, found = run.metrics(), comparisons(run)
    assert set(found) == recomputable(OPENRLHF, run.info, log.names()) - UNDERIVABLE.get(name, set())
    assert set(log.names()) - set(found) - NOT_FROM_TOKENS == UNDERIVABLE.get(name, set())
    for item in found.values():
        difference = np.abs(item.logged - item.recomputed)
        # A return is a reward divided by its group's deviation.
        bound = EXACT * np.maximum(10.0 if item.name == "return" else 1.0, np.abs(item.logged))
        assert (difference <= bound).all(), (item.name, item.logged, item.recomputed)
        assert (difference <= item.tolerance).all(), item.name
        steps, values = log.series(item.name)
        np.testing.assert_array_equal(item.steps, steps[np.isfinite(values)], err_msg=item.name)


def test_the_update_does_something(recorded: tuple[str, Run]) -> None:
    """The keys would be easy to match if nothing moved."""
    name, run = recorded
    found = comparisons(run)
    assert np.abs(found["ppo_kl"].logged).max() > 1e-3
    if name != "gspo":
        assert found["ppo_clip_ratio"].logged.max() > 0.01


def test_a_healthy_recording_has_no_errors(recorded: tuple[str, Run]) -> None:
    """But where the engine's log-probabilities are recorded: they are invented here, and that is found."""
    name, run = recorded
    report = check(run)
    findings = [finding for result in report.results for finding in result.findings]
    invented = ["RLD102"] if name in ("corrected", "rejected") else []
    assert [finding.code for finding in findings if finding.severity != "info"] == invented
    assert report.exit_code() == len(invented)


@pytest.mark.parametrize(
    ("key", "wrong", "told"),
    [
        ("ppo_kl", lambda values: -values, "opposite sign"),
        ("policy_loss", lambda values: 4 * values, ""),
        ("kl", lambda values: 1.5 * values, ""),
        ("response_length", lambda values: values + 1, ""),
    ],
)
def test_a_corrupted_log_is_told(train: Train, key: str, wrong: Any, told: str) -> None:
    run = train(**CASES["group_norm"]).run
    report = check(_Corrupted(run, key, wrong))
    found = [result for result in report.results if result.code == "RLD801"]
    messages = [f"{finding.message}: {finding.cause}" for result in found for finding in result.findings]
    assert any(message.startswith(key) and told in message for message in messages), messages


class _Corrupted:
    """A run whose log has other numbers under one name."""

    def __init__(self, run: Run, key: str, wrong: Any) -> None:
        self._run, self._key, self._wrong = run, key, wrong

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    def metrics(self) -> MetricLog:
        points = self._run.metrics().points
        steps, values = points[self._key, "train"]
        return MetricLog({**points, (self._key, "train"): (steps, self._wrong(values))})
