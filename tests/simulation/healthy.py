"""Healthy kinds of run, each a function of the seed. No rule may warn of any of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from tests.simulation.run import SimulatedRun
from tests.simulation.settings import Settings, Source
from tests.simulation.world import simulate

_STAGES: Final = (Source("easy"), Source("middle"), Source("hard"))
_KINDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "on_policy": {},
    "two_epochs": {"epochs": 2, "minibatches": 2, "step_size": 10.0},
    "two_epochs_counted_by_update": {"epochs": 2, "minibatches": 1, "step_size": 10.0, "count_updates": True, "steps": 25},
    "agentic": {"tools": True},
    "low_entropy": {"sharpness": 8.0, "step_size": 8.0},
    "rising_fast": {"step_size": 70.0, "difficulty": 0.12},
    "saturating": {"step_size": 50.0, "difficulty": -0.02},
    "few_samples": {"prompts": 2, "group_size": 4, "steps": 12},
    "async_corrected": {"lag": 3, "correction": True},
    "bfloat16": {"bfloat16": True, "trainer_noise": 0.01, "engine_noise": 0.03, "epochs": 1, "minibatches": 2, "step_size": 10.0},
    "partial_and_aborted": {"partial": 0.25, "aborted": 0.04, "correction": True},
    "sparse_reward": {"reward": "sparse", "difficulty": 0.1, "group_size": 8, "prompts": 6},
    "dense_rloo": {"reward": "dense", "estimator": "rloo", "kl_coef": 0.0},
    "dr_grpo_without_kl": {"estimator": "dr_grpo", "kl_coef": 0.0, "step_size": 60.0},
    "critic": {"estimator": "gae", "kl_in_reward": True, "kl_coef": 0.02, "group_size": 2, "prompts": 24, "steps": 20},
    "curriculum": {"sources": _STAGES, "staged": True, "prompt_kinds": 12, "reward": "sparse"},
    "gspo": {"algorithm": "gspo", "clip_low": 3e-4, "clip_high": 4e-4, "minibatches": 4, "step_size": 5.0},
    "warm_up_and_decay": {"warm_up": 10, "decay": True, "step_size": 40.0},
    "tempered": {"temperature": 0.7},
    "clip_higher": {"clip_high": 0.28, "minibatches": 4, "step_size": 8.0, "kl_coef": 0.0},
}
_REMEMBERED: Final = 4
"""Runs of a kind that are kept: most diseases are put into the same ones."""
_LONG: Final[Mapping[str, Any]] = {"steps": 400, "prompts": 6, "group_size": 4, "step_size": 10.0, "kl_coef": 0.01}


def _kind(knobs: Mapping[str, Any]) -> Callable[[int], SimulatedRun]:
    remembered = lru_cache(_REMEMBERED)(lambda seed: simulate(Settings(seed=seed, **knobs)))
    return lambda seed: remembered(seed).copy()


KINDS: Final[Mapping[str, Callable[[int], SimulatedRun]]] = MappingProxyType(
    {name: _kind(knobs) for name, knobs in _KINDS.items()}
)
"""Kinds cheap enough to be made for many seeds."""

LONG: Final = _kind(_LONG)
"""A single long run of 400 steps."""
