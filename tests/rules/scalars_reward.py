"""Scalar runs of other lengths and with more of what trainers log: held-out scores, components, extremes, a critic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.rules.view import View
from rl_doctor.schema import RunConfig, RunInfo
from tests.rules.scalars import CONFIG, Floats, autoregressive, healthy, series

Run = dict[str, Series]
Make = Callable[[np.random.Generator], Run]

LENGTHS: Final = (24, 30, 40, 60, 120, 400)
CORRELATIONS: Final = (0.0, 0.5, 0.9)


def every(name: str, values: Floats, stride: int = 1, first: int = 1) -> Series:
    """A series measured every ``stride`` steps."""
    made = series(name, values)
    return Series(name, "1", first + stride * np.arange(len(values)), made.values, made.counts)


def run(values: Mapping[str, Floats], stride: int = 1) -> Run:
    """Series by name, all at the same steps."""
    return {name: every(name, part, stride) for name, part in values.items()}


def view_of(values: Run, config: RunConfig = CONFIG, info: RunInfo | None = None) -> View:
    """A view of a run whose series have their own steps."""
    return View(info or RunInfo(config=config), values)


def learning(rng: np.random.Generator, n: int, rho: float, stride: int = 1, evaluations: int = 20) -> Run:
    """A healthy run with a held-out score, three components, extremes and a critic.

    The course is that of 400 steps, whatever the number of rows; noise is autocorrelated from row to row.
    """
    time = np.linspace(0, 400, n)
    learned = 1 - np.exp(-time / 150)

    def wander(scale: float) -> Floats:
        return scale * autoregressive(rng, n, rho)

    values = healthy(rng, rho, n) | {
        "reward.mean": 0.3 + 0.35 * learned + wander(0.02),
        "policy.entropy": (0.7 + 0.5 * np.exp(-time / 200)) * np.exp(wander(0.03)),
        "ref.kl_k3": 0.02 * (1 - np.exp(-(time + 1) / 80)) * np.exp(wander(0.15)),
        "length.mean": 300 * (1 + 0.2 * learned) * np.exp(wander(0.05)),
        "reward.component.correct.mean": 0.25 + 0.3 * learned + wander(0.02),
        "reward.component.format.mean": 0.1 * np.clip(0.5 + 0.45 * learned + wander(0.02), 0, 1),
        "reward.component.length_penalty.mean": -0.05 - 0.03 * learned + wander(0.004),
        "reward.min": np.zeros(n), "reward.max": np.ones(n),
        "adv.max": 2.2 + wander(0.2), "adv.min": -1.8 + wander(0.2), "adv.mean": wander(0.01),
        "length.min": np.full(n, 40.0), "length.max": np.full(n, 1024.0),
        "value.loss": 0.08 * (0.5 + 0.5 * np.exp(-time / 60)) * np.exp(wander(0.2)),
        "value.explained_var": np.clip(0.5 - 0.8 * np.exp(-time / 40) + wander(0.08), -2, 1),
        "value.clip_frac": np.clip(0.03 + wander(0.02), 0, 1),
        "part.prefix.policy.kl_old_k1": 2e-4 + wander(1e-4), "part.answer.policy.kl_old_k1": 2e-4 + wander(1e-4),
    }  # fmt: skip
    made = run(values, stride)
    score = 0.35 + 0.3 * (1 - np.exp(-np.linspace(0, 400, evaluations) / 150)) + 0.02 * autoregressive(rng, evaluations, rho)
    return made | held_out(score, n * stride)


def held_out(score: Floats, steps: int) -> Run:
    """Evaluations at equal distances over ``steps`` steps, the first before training."""
    return {"val.mean_at_n": every("val.mean_at_n", score, max(steps // len(score), 1), 0)}


def _kinds() -> Iterator[tuple[str, Make]]:
    for n in LENGTHS:
        for rho in CORRELATIONS:
            yield f"{n} rows, rho {rho}", partial(learning, n=n, rho=rho, stride=max(400 // n, 1), evaluations=max(n // 10, 4))
    for evaluations in (5, 8, 12, 20, 40):
        yield f"{evaluations} evaluations that wander", partial(_wandering, evaluations=evaluations)
        yield f"{evaluations} evaluations at the ceiling", partial(_at_ceiling, evaluations=evaluations)
        yield f"{evaluations} evaluations after an early dip", partial(_dipping, evaluations=evaluations)
        yield f"{evaluations} evaluations on another scale", partial(_rescaled, evaluations=evaluations)


def _wandering(rng: np.random.Generator, evaluations: int) -> Run:
    score = 0.5 + 0.1 * np.linspace(0, 1, evaluations) + 0.025 * autoregressive(rng, evaluations, 0.9)
    return learning(rng, 60, 0.5, 7) | held_out(score, 420)


def _at_ceiling(rng: np.random.Generator, evaluations: int) -> Run:
    score = np.minimum(0.95 - 0.3 * np.exp(-np.arange(evaluations) / 1.5) + 0.01 * autoregressive(rng, evaluations), 1.0)
    return learning(rng, 120, 0.5, 3) | held_out(score, 360)


def _dipping(rng: np.random.Generator, evaluations: int) -> Run:
    place = np.linspace(0, 1, evaluations)
    dip = 0.15 * np.exp(-(((place - 0.15) / 0.08) ** 2))
    return learning(rng, 120, 0.5, 3) | held_out(0.5 + 0.1 * place - dip + 0.015 * autoregressive(rng, evaluations), 360)


def _rescaled(rng: np.random.Generator, evaluations: int) -> Run:
    score = 60 + 8 * np.linspace(0, 1, evaluations) + 1.5 * autoregressive(rng, evaluations)
    return learning(rng, 120, 0.5, 3) | held_out(score, 360)


HEALTHY: Final[Mapping[str, Make]] = dict(_kinds())


def over_optimised(rng: np.random.Generator, evaluations: int, n: int = 120, rho: float = 0.5, rises: bool = True) -> Run:
    """The reward rises to the end; the held-out score rises for the first half and then loses most of its level."""
    place = np.linspace(0, 1, evaluations)
    score = 0.4 + 0.2 * np.minimum(place / 0.45, 1) - 0.35 * np.maximum((place - 0.5) / 0.5, 0)
    made = learning(rng, n, rho, 3)
    if not rises:
        made["reward.mean"] = every("reward.mean", 0.6 + 0.02 * autoregressive(rng, n, rho), 3)
    return made | held_out(score + 0.02 * autoregressive(rng, evaluations, rho), 3 * n)


def bought(rng: np.random.Generator, n: int, rho: float, task: str = "accuracy", shape: str = "format") -> Run:
    """A component falls from .16 to .06 while another rises from .48 to .86, and with it the whole."""
    place = np.linspace(0, 1, n)
    lost = 0.16 - 0.1 * place + 0.008 * autoregressive(rng, n, rho)
    gained = 0.48 + 0.38 * place + 0.02 * autoregressive(rng, n, rho)
    made = {name: part for name, part in learning(rng, n, rho).items() if not name.startswith(("reward.", "val."))}
    return made | run({
        f"reward.component.{task}.mean": lost, f"reward.component.{shape}.mean": gained, "reward.mean": lost + gained,
    })  # fmt: skip
