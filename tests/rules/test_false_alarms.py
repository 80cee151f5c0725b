"""Runs without any trend: no rule alarms on more than 1% of them, beyond chance. The whole table: benchmarks/false_alarms.py."""

from collections import Counter

import numpy as np
import pytest

from rl_doctor.rules.registry import rules
from rl_doctor.rules.runner import run_rules
from rl_doctor.schema import RunConfig
from tests.rules.scalars import Floats, alarms, autoregressive, view

RUNS = 100
MOST = 4
"""In 100 runs, a true rate of 1% gives more than 4 alarms of one rule in 3 of 1000 cases."""
LEVELS = {
    "policy.entropy": 0.5, "ref.kl": 0.01, "policy.kl_old_k3": 1e-3, "policy.clip_frac": 0.01, "optim.grad_norm": 0.4,
    "length.mean": 300.0, "reward.std": 0.4, "mismatch.abs": 0.01,
}  # fmt: skip


def _run(seed: int, n: int, rho: float, tail: float | None) -> dict[str, Floats]:
    rng = np.random.default_rng(seed)
    noise = {name: autoregressive(rng, n, rho, tail).clip(-6, 6) for name in (*LEVELS, "reward.mean", "ref.kl_k1")}
    run = {name: level * np.exp(0.2 * noise[name]) for name, level in LEVELS.items()}
    return run | {"reward.mean": 0.5 + 0.05 * noise["reward.mean"], "ref.kl_k1": 0.01 * noise["ref.kl_k1"]}


@pytest.mark.parametrize("decimals", [3, 12])
@pytest.mark.parametrize(("n", "rho", "tail"), [(24, 0.9, None), (50, 0.95, 3.0), (100, 0.0, 3.0), (100, 0.95, None)])
def test_noise_alarms_in_less_than_one_run_of_a_hundred(n: int, rho: float, tail: float | None, decimals: int) -> None:
    found: Counter[str] = Counter()
    for seed in range(RUNS):
        run = {name: np.round(values, decimals) for name, values in _run(seed, n, rho, tail).items()}
        results = run_rules(rules().values(), view(run, RunConfig()))
        found.update(alarms({result.code: result for result in results}))
    assert {code: count for code, count in found.items() if count > MOST} == {}


def test_a_log_that_is_too_short_is_inconclusive() -> None:
    trends = ("RLD204", "RLD301", "RLD302", "RLD603")
    results = {result.code: result for result in run_rules(rules().values(), view(_run(0, 20, 0.5, None), RunConfig()))}
    assert not alarms(results)
    assert {results[code].reason for code in trends} == {"length"}
