"""Runs of real trainers, each in a process of its own and each made once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.trained import Recorded, once
from tests.trainers.warm import Warm

IMPORTS = ("torch", "datasets", "trl.trainer.grpo_config", "trl.trainer.grpo_trainer", "trl.trainer.rloo_config",
           "trl.trainer.rloo_trainer")  # fmt: skip
ENVIRONMENT = {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}


@dataclass(frozen=True)
class Trained(Recorded):
    """What a training printed and recorded."""

    weights: str
    rng: str
    log: list[dict[str, float | None]]
    left: list[str]
    reason: str | None
    dropped: int | None
    step: int
    saved: list[str]
    stop: str | None

    def logged(self) -> list[dict[str, float | None]]:
        """What was logged, without durations."""
        timed = ("time", "runtime", "per_second")
        return [{name: value for name, value in row.items() if not name.endswith(timed)} for row in self.log]


Train = Callable[..., Trained]


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    made = Warm(IMPORTS, os.environ | ENVIRONMENT)
    yield made
    made.close()


@pytest.fixture(scope="session")
def train(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Train:
    """Train with TRL."""

    def made(folder: Path, result: Mapping[str, Any], _: str, said: str) -> Trained:
        return Trained(folder=folder, said=said, **result)

    return once(warm, "tests.trainers.trl.train", tmp_path_factory, made)
