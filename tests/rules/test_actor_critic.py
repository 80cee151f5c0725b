"""Rules on baselines, value functions and parts of the batch."""

from collections.abc import Sequence

import numpy as np
import pytest

from rl_doctor.report.model import Finding
from rl_doctor.rules.registry import rules
from rl_doctor.rules.runner import run_rules
from rl_doctor.schema import RunConfig, RunInfo
from tests.rules.scalars import CONFIG, Floats, autoregressive, result, severity, with_config
from tests.rules.scalars_reward import HEALTHY, Run, run, view_of

SEEDS = range(20)
CODES = ("RLD109", "RLD412", "RLD420")


def _found(code: str, made: Run, config: RunConfig = CONFIG, trainer: str | None = None) -> Sequence[Finding]:
    (only,) = run_rules([rules()[code]], view_of(made, config, RunInfo(config=config, trainer=trainer)))
    assert only.outcome != "crashed", only
    return only.findings


@pytest.mark.parametrize("kind", HEALTHY)
@pytest.mark.parametrize("code", CODES)
def test_healthy_runs_pass(code: str, kind: str) -> None:
    for seed in SEEDS:
        assert not _found(code, HEALTHY[kind](np.random.default_rng(seed))), seed


@pytest.mark.parametrize("code", CODES)
def test_runs_that_log_nothing_of_it_are_skipped(code: str) -> None:
    assert result(code, {"reward.mean": np.ones(40)}).outcome == "skipped"


def _raw(seed: int, n: int = 40, scale: float = 1.0) -> dict[str, Floats]:
    rng = np.random.default_rng(seed)
    top = scale * np.where(rng.random(n) < 0.9, 1.0, 0.5)
    return {
        "reward.mean": 0.4 * scale + 0.03 * scale * autoregressive(rng, n), "reward.max": top, "reward.min": np.zeros(n),
        "adv.max": top / (1 + 1e-6), "adv.min": np.zeros(n), "adv.mean": np.full(n, 0.4 * scale),
    }  # fmt: skip


@pytest.mark.parametrize("n", [8, 24, 400])
@pytest.mark.parametrize(
    ("estimator", "trainer", "expected"),
    [
        ("grpo", None, "error"), ("gae", None, "error"), (None, "verl", "error"), (None, None, "warning"),
        ("reinforce", None, "info"), ("reinforce", "verl", "info"),
    ],
)  # fmt: skip
def test_advantages_that_are_the_rewards(n: int, estimator: str | None, trainer: str | None, expected: str) -> None:
    for seed in SEEDS:
        (found,) = _found("RLD412", run(_raw(seed, n, 10.0 ** (seed % 3))), with_config(adv_estimator=estimator), trainer)
        assert found.severity == expected
        assert ("by design" in found.cause) == (expected == "info")


def test_groups_of_one_are_named() -> None:
    (found,) = _found("RLD412", run({**_raw(0), "group.singleton_frac": np.ones(40)}))
    assert "group of its own" in found.cause


def test_what_only_looks_like_a_missing_baseline() -> None:
    values = _raw(0)
    assert severity("RLD412", {**values, "adv.min": np.full(40, -0.6)}) is None
    assert severity("RLD412", {**values, **{name: np.zeros(40) for name in values}}) is None
    centred = {"reward.mean": np.zeros(40), "reward.min": np.full(40, -2.0), "adv.min": np.full(40, -2.0)}
    assert severity("RLD412", {**values, **centred}) is None
    assert result("RLD412", {name: part[:4] for name, part in values.items()}).reason == "length"


def _critic(rng: np.random.Generator, n: int, explained: float) -> dict[str, Floats]:
    return {
        "value.explained_var": explained + 0.05 * autoregressive(rng, n, 0.5),
        "reward.mean": 0.3 + 0.2 * np.linspace(0, 1, n) + 0.02 * autoregressive(rng, n, 0.5),
        "reward.std": 0.45 * np.exp(0.05 * autoregressive(rng, n)), "reward.min": np.zeros(n), "reward.max": np.ones(n),
    }  # fmt: skip


@pytest.mark.parametrize("n", [45, 60, 400])
@pytest.mark.parametrize(("explained", "expected"), [(-0.05, "warning"), (-0.9, "error"), (0.3, None)])
def test_explained_variance_that_never_rises(n: int, explained: float, expected: str | None) -> None:
    if expected == "error" and n < 60:
        expected = "warning"
    for seed in SEEDS:
        assert severity("RLD420", _critic(np.random.default_rng(seed), n, explained)) == expected


def test_warm_up_solved_tasks_and_rewards_that_never_differ_are_no_alarm() -> None:
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        values = _critic(rng, 60, 0.4)
        values["value.explained_var"][:20] = -1.5
        assert severity("RLD420", values) is None
        solved = _critic(rng, 60, -0.1)
        solved["value.explained_var"][:30] += 0.6
        solved["reward.mean"] = 0.5 + 0.47 * np.minimum(np.arange(60) / 30, 1)
        assert severity("RLD420", solved) == "info"
        flat = _critic(rng, 60, 0.0) | {"reward.std": np.zeros(60)}
        assert result("RLD420", flat).outcome == "skipped"
        assert result("RLD420", {name: part[:10] for name, part in values.items()}).reason == "length"


@pytest.mark.parametrize(("factor", "expected"), [(8.0, "warning"), (300.0, "error"), (1.5, None)])
def test_value_loss_that_grows(factor: float, expected: str | None) -> None:
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        loss = 0.1 * np.geomspace(1, factor, 120) * np.exp(0.1 * autoregressive(rng, 120, 0.5))
        still = {"reward.mean": 0.4 + 0.02 * autoregressive(rng, 120, 0.5), "reward.std": np.full(120, 0.4)}
        assert severity("RLD420", {"value.loss": loss, **still}) == expected
        rising = {"reward.mean": np.linspace(0, 0.8, 120) + 0.02 * autoregressive(rng, 120, 0.5)}
        assert severity("RLD420", {"value.loss": loss, **rising}) == ("warning" if factor == 300 else None)


def test_values_that_are_clipped() -> None:
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        share = 0.6 + 0.05 * autoregressive(rng, 40, 0.5)
        assert severity("RLD420", {"value.clip_frac": share}) == "warning"
        assert severity("RLD420", {"value.clip_frac": share - 0.5}) is None
    assert result("RLD420", {"value.clip_frac": np.full(4, 0.9)}).reason == "length"


def _prefixed(rng: np.random.Generator, n: int, rho: float) -> dict[str, Floats]:
    return {
        "part.prefix.policy.kl_old_k1": -0.8 + 0.04 * autoregressive(rng, n, rho),
        "part.prefix.policy.clip_frac": 0.17 + 0.01 * autoregressive(rng, n, rho),
        "part.continuation.policy.kl_old_k1": 1e-4 * autoregressive(rng, n, rho),
        "part.continuation.policy.clip_frac": 0.002 * np.exp(0.2 * autoregressive(rng, n, rho)),
        "reward.mean": 0.3 + 0.2 * np.linspace(0, 1, n) + 0.02 * autoregressive(rng, n, rho),
    }


@pytest.mark.parametrize("n", [8, 30, 400])
def test_part_whose_old_logprobs_come_from_another_policy(n: int) -> None:
    for seed in SEEDS:
        values = _prefixed(np.random.default_rng(seed), n, 0.5)
        values["reward.mean"] = np.linspace(0.2, 0.7, n) + 0.01 * autoregressive(np.random.default_rng(seed), n)
        (found,) = _found("RLD109", run(values))
        assert found.severity == "warning"
        assert "by design" in found.cause
        assert found.evidence[0].where == {"part": "prefix"}
        if n >= 24:
            values["reward.mean"] = 0.3 + 0.02 * autoregressive(np.random.default_rng(seed), n)
            assert [item.severity for item in _found("RLD109", run(values))] == ["error"]


def test_one_part_beside_the_whole_and_parts_that_drift_alike() -> None:
    values = _prefixed(np.random.default_rng(0), 40, 0.5)
    whole = {name: part for name, part in values.items() if not name.startswith("part.continuation")}
    assert _found("RLD109", run({**whole, "policy.kl_old_k1": np.full(40, 1e-4)}))
    assert not _found("RLD109", run(whole))
    alike = {**values, "part.continuation.policy.kl_old_k1": values["part.prefix.policy.kl_old_k1"] * 0.8}
    assert not _found("RLD109", run(alike))
    grows = {**values, "part.prefix.policy.kl_old_k1": np.linspace(0, 0.8, 40)}
    assert not _found("RLD109", run(grows))
    assert result("RLD109", {name: part[:3] for name, part in values.items()}).reason == "length"
