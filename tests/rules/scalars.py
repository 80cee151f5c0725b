"""Runs of which only scalars were logged: 400 steps, healthy or with a fault from 60% on (entropy: from 50% on)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Result
from rl_doctor.rules.registry import rules
from rl_doctor.rules.runner import run_rules
from rl_doctor.rules.view import View
from rl_doctor.schema import RunConfig, RunInfo

Floats = NDArray[np.float64]
STEPS: Final = 400
ONSET: Final = 240
CONFIG: Final = RunConfig(clip_low=0.2, clip_high=0.2, kl_coef=0.001, kl_in_reward=False, adv_estimator="grpo", group_size=8)


def autoregressive(rng: np.random.Generator, n: int, rho: float = 0.0, tail: float | None = None) -> Floats:
    """AR(1) noise with standard deviation 1 (about, for heavy tails)."""
    shocks = rng.standard_normal(n + 100) if tail is None else rng.standard_t(tail, n + 100)
    values = np.zeros(n + 100)
    for index in range(1, n + 100):
        values[index] = rho * values[index - 1] + shocks[index]
    return values[100:] * np.sqrt(1 - rho**2)


def series(name: str, values: Floats, first: int = 1, count: int = 1) -> Series:
    """A series at consecutive steps."""
    return Series(name, "1", np.arange(first, first + len(values)), np.asarray(values, np.float64), np.full(len(values), count))


def view(values: Mapping[str, Floats], config: RunConfig = CONFIG, missing: Mapping[str, tuple[str, ...]] | None = None) -> View:
    """A view of a run that has these metrics."""
    return View(RunInfo(config=config), {name: series(name, part) for name, part in values.items()}, missing or {})


def healthy(
    rng: np.random.Generator,
    rho: float = 0.5,
    n: int = STEPS,
    tail: float | None = None,
    entropy: tuple[float, float] = (1.2, 0.7),
) -> dict[str, Floats]:
    """A run that learns: reward rises and flattens, entropy falls, the KL to the reference grows and slows down."""
    time = np.arange(n)

    def wander(scale: float) -> Floats:
        return scale * autoregressive(rng, n, rho, tail)

    def spread(scale: float) -> Floats:
        return np.exp(np.clip(wander(scale), -6 * scale, 6 * scale))

    learned = 1 - np.exp(-time / 150)
    return {
        "reward.mean": 0.3 + 0.35 * learned + wander(0.02),
        "reward.std": 0.45 * spread(0.05),
        "policy.entropy": (entropy[1] + (entropy[0] - entropy[1]) * np.exp(-time / 200)) * spread(0.03),
        "ref.kl_k3": 0.02 * (1 - np.exp(-(time + 1) / 80)) * spread(0.15),
        "policy.kl_old_k3": 2e-4 * spread(0.2),
        "policy.clip_frac": 0.01 * spread(0.3),
        "policy.ratio_mean": 1 + 1e-4 * autoregressive(rng, n),
        "optim.grad_norm": 0.4 * spread(0.25),
        "optim.learning_rate": np.full(n, 1e-6),
        "length.mean": 300 * (1 + 0.2 * learned) * spread(0.05),
        "length.limit_frac": np.clip(0.03 + wander(0.01), 0, 1),
        "group.zero_std_frac": np.clip(0.3 + wander(0.04), 0, 1),
        "mismatch.abs": 0.01 * spread(0.05),
    }


def _converged(rng: np.random.Generator) -> dict[str, Floats]:
    run = healthy(rng)
    done = np.minimum(np.arange(STEPS) / 120, 1.0)
    run["reward.mean"] = 0.4 + 0.55 * done + 0.01 * autoregressive(rng, STEPS, 0.5)
    run["reward.std"] = (0.45 - 0.3 * done) * np.exp(0.05 * autoregressive(rng, STEPS))
    run["optim.grad_norm"] = (0.4 - 0.3 * done) * np.exp(0.2 * autoregressive(rng, STEPS))
    run["policy.entropy"] = (0.9 - 0.55 * done) * np.exp(0.03 * autoregressive(rng, STEPS))
    return run


def _settles(rng: np.random.Generator) -> dict[str, Floats]:
    run = healthy(rng)
    run["ref.kl_k3"] = 0.6 * (1 - np.exp(-np.arange(STEPS) / 80)) * np.exp(0.05 * autoregressive(rng, STEPS, 0.5))
    return run


HEALTHY: Final[Mapping[str, Callable[[np.random.Generator], dict[str, Floats]]]] = {
    "healthy": healthy,
    "entropy .45 to .28": lambda rng: healthy(rng, entropy=(0.45, 0.23)),
    "autocorrelated": lambda rng: healthy(rng, rho=0.9),
    "autocorrelated, heavy tails": lambda rng: healthy(rng, rho=0.9, tail=3.0),
    "heavy tails": lambda rng: healthy(rng, rho=0.0, tail=3.0),
    "converged": _converged,
    "kl settles at .6": _settles,
    "coarse": lambda rng: {
        name: part if name == "optim.learning_rate" else np.round(part, 3) for name, part in healthy(rng, rho=0.9).items()
    },
    "a row per ten steps": lambda rng: healthy(rng, n=40),
}


def _with(change: Callable[[dict[str, Floats], np.random.Generator], None]) -> Callable[[np.random.Generator], dict[str, Floats]]:
    def make(rng: np.random.Generator) -> dict[str, Floats]:
        run = healthy(rng)
        change(run, rng)
        return run

    return make


def _spike(run: dict[str, Floats], _: np.random.Generator) -> None:
    run["ref.kl_k3"][ONSET : ONSET + 5] *= 25


def _runaway(run: dict[str, Floats], _: np.random.Generator) -> None:
    run["ref.kl_k3"][ONSET:] *= np.geomspace(1, 50, STEPS - ONSET)


def _zero(run: dict[str, Floats], _: np.random.Generator) -> None:
    run["ref.kl_k3"][:] = 0.0


def _falls(run: dict[str, Floats], _: np.random.Generator) -> None:
    run["ref.kl_k3"][ONSET:] = 0.0


def collapse(start: float) -> Callable[[dict[str, Floats], np.random.Generator], None]:
    """Entropy that falls to 3% of its start from half of the run on, while the reward stops rising."""

    def change(run: dict[str, Floats], rng: np.random.Generator) -> None:
        time = np.arange(STEPS)
        fall = np.where(time < STEPS // 2, 1.0, 0.03 + 0.97 * np.exp(-(time - STEPS // 2) / 20))
        run["policy.entropy"] = start * fall * np.exp(0.05 * autoregressive(rng, STEPS, 0.5))
        run["reward.mean"] = 0.4 - 0.15 * np.clip((time - 200) / 100, 0, 1) + 0.02 * autoregressive(rng, STEPS, 0.5)

    return change


def _jump(run: dict[str, Floats], _: np.random.Generator) -> None:
    run["reward.mean"][ONSET:] += 0.6


def _jump_scaled(run: dict[str, Floats], _: np.random.Generator) -> None:
    _jump(run, _)
    run["reward.mean"] *= 50
    run["reward.std"] *= 50


def _clipped(run: dict[str, Floats], rng: np.random.Generator) -> None:
    run["policy.clip_frac"][ONSET:] = 0.45 * np.exp(0.05 * autoregressive(rng, STEPS - ONSET))
    run["policy.kl_old_k3"][ONSET:] = 0.05


def _component(run: dict[str, Floats], rng: np.random.Generator) -> None:
    run["reward.component.correct.mean"] = run["reward.mean"] - 0.1
    run["reward.component.format.mean"] = 0.1 * np.exp(0.05 * autoregressive(rng, STEPS))
    run["reward.component.format.mean"][ONSET:] *= 500
    run["reward.mean"] = run["reward.component.correct.mean"] + run["reward.component.format.mean"]


def _nan(run: dict[str, Floats], _: np.random.Generator) -> None:
    run["optim.grad_norm"][ONSET:] = np.nan


def _drifting(run: dict[str, Floats], _: np.random.Generator) -> None:
    run["policy.ratio_mean"][:] = 1.0
    run["policy.kl_old_k3"][:] = 0.0
    run["policy.clip_frac"][:] = 0.0
    run["mismatch.abs"][ONSET:] *= np.linspace(1, 20, STEPS - ONSET)


def _lagging(run: dict[str, Floats], rng: np.random.Generator) -> None:
    run["policy.clip_frac"] = 0.17 * np.exp(0.1 * autoregressive(rng, STEPS))
    run["policy.kl_old_k3"] = 0.02 * np.exp(0.1 * autoregressive(rng, STEPS))
    run["stale.mean"] = np.full(STEPS, 3.0)


FAULTS: Final[Mapping[str, tuple[Callable[[np.random.Generator], dict[str, Floats]], str, frozenset[str]]]] = {
    "kl spike that recovers": (_with(_spike), "RLD203", frozenset({"info"})),
    "kl runaway": (_with(_runaway), "RLD204", frozenset({"error", "warning"})),
    "kl 0 all run": (_with(_zero), "RLD205", frozenset({"error"})),
    "kl falls to 0": (_with(_falls), "RLD205", frozenset({"error"})),
    "entropy collapse, high start": (_with(collapse(2.5)), "RLD301", frozenset({"error"})),
    "entropy collapse, low start": (_with(collapse(0.3)), "RLD301", frozenset({"error"})),
    "reward level jump": (_with(_jump), "RLD401", frozenset({"warning"})),
    "reward level jump, rewards x 50": (_with(_jump_scaled), "RLD401", frozenset({"warning"})),
    "clip fraction .45": (_with(_clipped), "RLD201", frozenset({"error"})),
    "component x 500": (_with(_component), "RLD404", frozenset({"error"})),
    "nan gradient": (_with(_nan), "RLD601", frozenset({"error"})),
    "ratio 1, sampler drifts": (_with(_drifting), "RLD202", frozenset({"warning"})),
    "stale, clip .17": (_with(_lagging), "RLD201", frozenset({"warning"})),
}
"""Name -> (run, code that must fire, severities that are right)."""

COMPANIONS: Final[Mapping[str, frozenset[str]]] = {
    "component x 500": frozenset({"RLD401"}),
    "clip fraction .45": frozenset({"RLD204"}),
}
"""Further codes that may report a warning or worse on a fault, since it is theirs as well."""


def judge(found: View) -> dict[str, Result]:
    """Results of the rules of families 2xx to 6xx, by code."""
    chosen = [rule for code, rule in rules().items() if code[3] in "23456"]
    return {result.code: result for result in run_rules(chosen, found)}


def result(
    code: str, values: Mapping[str, Floats], config: RunConfig = CONFIG, missing: Mapping[str, tuple[str, ...]] | None = None
) -> Result:
    """The result of one rule."""
    return run_rules([rules()[code]], view(values, config, missing))[0]


def severity(code: str, values: Mapping[str, Floats], config: RunConfig = CONFIG) -> str | None:
    """The severity of the one finding of a rule; None where it passed or was skipped."""
    made = result(code, values, config)
    assert made.outcome != "crashed", made
    if not made.findings:
        return None
    (found,) = made.findings
    assert found.evidence
    assert found.cause
    return found.severity


def alarms(results: Mapping[str, Result]) -> set[str]:
    """Codes with a finding of warning or worse, and of rules that crashed."""
    loud = {code for code, result in results.items() if any(item.severity != "info" for item in result.findings)}
    return loud | {code for code, result in results.items() if result.outcome == "crashed"}


def with_config(**changes: object) -> RunConfig:
    """The configuration of these runs with some fields changed."""
    return replace(CONFIG, **changes)  # type: ignore[arg-type]
