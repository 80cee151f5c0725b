"""Families of healthy runs: the seed draws sizes, task and schedule of each run, as trainings of several users differ."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tests.simulation.run import SimulatedRun
from tests.simulation.settings import Settings, Source
from tests.simulation.world import simulate

Knobs = dict[str, Any]
Random = np.random.Generator
Floats = NDArray[np.float64]
_LENGTHS: Final = ((8, 12, 16, 24, 40, 64), (0.3, 0.3, 0.2, 0.1, 0.06, 0.04))
"""Numbers of generation batches, with their shares: most are short, so that many can be made, some long enough for trends."""
_LONGEST: Final = 500.0
"""Bound of steps times step size, with which few policies move further than ``FARTHEST``."""
FARTHEST: Final = 0.5
"""Nat per token that a policy of a healthy run may be from where it began, at its farthest step: what goes further has found an
answer that is always rewarded, or a circle, and is no healthy run."""
OUTSIDE: Final = 0.25
"""Share of the trained tokens whose probability the updates of a healthy run change by more than a fifth, in five steps."""


def _usual(random: Random) -> Knobs:
    """What differs between any two trainings."""
    steps = int(random.choice(_LENGTHS[0], p=_LENGTHS[1]))
    return {
        "steps": steps,
        "prompts": int(random.integers(4, 9)),
        "group_size": int(random.integers(4, 9)),
        "prompt_kinds": int(random.integers(6, 17)),
        "max_length": int(random.integers(24, 41)),
        "sharpness": float(random.uniform(1.0, 2.2)),
        "ending_offset": float(random.uniform(-0.5, 1.0)),
        "step_size": float(min(np.exp(random.uniform(np.log(6.0), np.log(30.0))), _LONGEST / steps)),
        "engine_noise": float(np.exp(random.uniform(np.log(0.003), np.log(0.03)))),
        "kl_coef": float(random.choice([0.0, 0.001, 0.01])),
        "difficulty": float(random.uniform(-0.02, 0.08)),
        "reward": str(random.choice(["mixed", "dense", "sparse"], p=[0.6, 0.2, 0.2])),
        "temperature": float(random.choice([1.0, 1.0, 0.8, 0.6])),
        "learning_rate": float(random.choice([1e-6, 5e-7, 3e-6])),
        "warm_up": int(random.choice([0, 0, steps // 6])),
        "decay": bool(random.random() < 0.2),
    }


def _split(random: Random, knobs: Knobs) -> Knobs:
    """Several updates per batch, each as much smaller."""
    epochs, minibatches = int(random.integers(1, 3)), int(random.choice([1, 2, 4]))
    size = float(min(knobs["step_size"], 20.0) / (epochs * minibatches) ** 0.75)
    return {"epochs": epochs, "minibatches": minibatches, "step_size": size, "count_updates": bool(random.random() < 0.1)}


def _grpo(random: Random, knobs: Knobs) -> Knobs:
    return _split(random, knobs) | {
        "estimator": str(random.choice(["grpo", "grpo", "dr_grpo"])),
        "ranks": int(random.choice([1, 1, 2, 4])),
        "microbatches": int(random.choice([1, 2])),
    }


def _ppo(random: Random, knobs: Knobs) -> Knobs:
    return _split(random, knobs | {"step_size": 0.5 * knobs["step_size"]}) | {
        "estimator": "gae", "lam": float(random.choice([0.95, 1.0])), "gamma": float(random.choice([1.0, 0.99])),
        "group_size": int(random.choice([1, 2])), "prompts": int(random.integers(24, 49)),
        "kl_in_reward": bool(random.random() < 0.5), "value_rate": float(random.uniform(0.2, 0.6)),
    }  # fmt: skip


def _rloo(random: Random, knobs: Knobs) -> Knobs:
    return _split(random, knobs) | {"estimator": "rloo", "group_size": int(random.choice([2, 4, 8]))}


def _gspo(random: Random, knobs: Knobs) -> Knobs:
    updates = int(random.choice([2, 4]))
    return {
        "algorithm": "gspo", "clip_low": 3e-4, "clip_high": 4e-4, "minibatches": updates,
        "step_size": float(min(knobs["step_size"], 20.0) / updates),
    }  # fmt: skip


def _agentic(random: Random, knobs: Knobs) -> Knobs:
    return _split(random, knobs) | {"tools": True, "epochs": 1}


def _asynchronous(random: Random, knobs: Knobs) -> Knobs:
    parts = random.choice([0.0, 0.25], 2)
    lag = int(random.integers(0 if parts.any() else 1, 4))
    return {
        "lag": lag, "correction": True, "partial": float(parts[0]), "aborted": 0.2 * float(parts[1]),
        "step_size": float(min(knobs["step_size"], 15.0)),
    }  # fmt: skip


def _slow(random: Random, knobs: Knobs) -> Knobs:
    size = float(np.exp(random.uniform(np.log(0.2), np.log(2.0))))
    return {"step_size": size, "learning_rate": float(random.choice([1e-5, 5e-6, 2e-5])), "kl_coef": float(knobs["kl_coef"])}


def _mixed_sources(random: Random, knobs: Knobs) -> Knobs:
    del knobs
    names = ("math", "code", "chat", "logic")[: int(random.integers(2, 5))]
    sources = tuple(Source(name, float(random.uniform(-0.06, 0.06)), float(random.uniform(-1.5, 1.0))) for name in names)
    return {"sources": sources, "staged": bool(random.random() < 0.4), "prompt_kinds": 4 * len(names), "prompts": 8}


def _dynamic(random: Random, knobs: Knobs) -> Knobs:
    return _split(random, knobs) | {"dynamic": True, "clip_high": 0.28, "kl_coef": 0.0, "reward": "sparse"}


def _bfloat16(random: Random, knobs: Knobs) -> Knobs:
    return _split(random, knobs) | {
        "bfloat16": True, "trainer_noise": float(random.uniform(0.003, 0.015)), "engine_noise": float(random.uniform(0.02, 0.05)),
        "microbatches": int(random.choice([1, 2, 4])),
    }  # fmt: skip


def _resumed(random: Random, knobs: Knobs) -> Knobs:
    steps = max(int(knobs["steps"]), 16)
    return _split(random, knobs) | {"steps": steps, "resumed_at": int(random.integers(6, steps - 2))}


def _few_samples(random: Random, knobs: Knobs) -> Knobs:
    return {
        "prompts": int(random.integers(1, 4)), "group_size": int(random.integers(2, 5)),
        "step_size": float(min(knobs["step_size"], 8.0)),
    }  # fmt: skip


def _sparse_reward(random: Random, knobs: Knobs) -> Knobs:
    del knobs
    return {"reward": "sparse", "difficulty": float(random.uniform(0.06, 0.12)), "group_size": 8}


_FAMILIES: Final[Mapping[str, Callable[[Random, Knobs], Knobs]]] = {
    "grpo": _grpo, "ppo": _ppo, "rloo": _rloo, "gspo": _gspo, "agentic": _agentic, "asynchronous": _asynchronous, "slow": _slow,
    "mixed_sources": _mixed_sources, "dynamic": _dynamic, "bfloat16": _bfloat16, "resumed": _resumed,
    "few_samples": _few_samples, "sparse_reward": _sparse_reward,
}  # fmt: skip


def settings(family: str, seed: int) -> Settings:
    """The settings of one run of a family."""
    random = np.random.default_rng([zlib.crc32(family.encode()), seed])
    knobs = _usual(random)
    return Settings(seed=seed, **{**knobs, **_FAMILIES[family](random, knobs)})


def hosting(family: str, seed: int) -> SimulatedRun:
    """A run of a family that is long enough to put a fault into its second half."""
    made = settings(family, seed)
    return _healthy(replace(made, steps=max(made.steps, 32), step_size=min(made.step_size, _LONGEST / 32), count_updates=False))


def _healthy(made: Settings) -> SimulatedRun:
    """The run of these settings; with half the step size as often as its policy goes too far, or too fast."""
    run = simulate(made)
    trained = run.arrays["response_mask"].astype(np.bool_)
    new, old, first = (run.arrays[name][trained].astype(np.float64) for name in ("logprob", "old_logprob", "ref_logprob"))
    distance = _by_step(run, trained, new - first)
    outside = _by_step(run, trained, np.abs(new - old) > np.log(1.2))
    fastest = np.convolve(outside, np.full(5, 0.2), "valid") if len(outside) >= 5 else outside
    if max(distance, default=0.0) <= FARTHEST and max(fastest, default=0.0) <= OUTSIDE:
        return run
    return _healthy(replace(made, step_size=0.5 * made.step_size))


def _by_step(run: SimulatedRun, trained: NDArray[np.bool_], values: NDArray[np.float64] | NDArray[np.bool_]) -> Floats:
    """Mean over the trained tokens of each step."""
    _, index = np.unique(run.token_step[trained], return_inverse=True)
    return np.asarray(np.bincount(index, values) / np.bincount(index), np.float64)


def _family(name: str) -> Callable[[int], SimulatedRun]:
    return lambda seed: _healthy(settings(name, seed))


FAMILIES: Final[Mapping[str, Callable[[int], SimulatedRun]]] = MappingProxyType({name: _family(name) for name in _FAMILIES})
"""Name -> (seed -> a healthy run of that family)."""
