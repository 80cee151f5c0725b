"""Runs of real trainers, each in a process of its own and each made once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rl_doctor import Run, open_run
from tests.trainers.warm import Warm

IMPORTS = ("torch", "datasets", "trl.trainer.grpo_config", "trl.trainer.grpo_trainer", "trl.trainer.rloo_config",
           "trl.trainer.rloo_trainer")  # fmt: skip
ENVIRONMENT = {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}


@dataclass(frozen=True)
class Trained:
    """What a training printed, and the folder that it recorded into."""

    folder: Path
    weights: str
    rng: str
    log: list[dict[str, float | None]]
    left: list[str]
    reason: str | None
    dropped: int | None
    step: int
    saved: list[str]
    stop: str | None
    said: str

    @property
    def run(self) -> Run:
        return open_run(self.folder)

    def logged(self) -> list[dict[str, float | None]]:
        """What was logged, without durations."""
        timed = ("time", "runtime", "per_second")
        return [{name: value for name, value in row.items() if not name.endswith(timed)} for row in self.log]

    def columns(self, *names: str) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64]]:
        """Columns of the whole run, and the lengths of its sequences."""
        batches = list(self.run.batches([*names, "step"]))
        lengths = np.concatenate([np.diff(batch.splits) for batch in batches])
        return {name: np.concatenate([batch.columns[name] for batch in batches]) for name in [*names, "step"]}, lengths


Train = Callable[..., Trained]


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    made = Warm(IMPORTS, os.environ | ENVIRONMENT)
    yield made
    made.close()


@pytest.fixture(scope="session")
def train(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Train:
    """Train with TRL; the same options are trained once only."""
    made: dict[str, Trained] = {}

    def run(*, record: bool | str = True, ranks: int = 1, **options: Any) -> Trained:
        key = json.dumps([record, ranks, options], sort_keys=True)
        if key not in made:
            folder = tmp_path_factory.mktemp("run") / "recorded"
            options |= {"record": str(folder) if record is True else record or None}
            result, _, said = warm.run("tests.trainers.trl.train", options, ranks)
            made[key] = Trained(folder=folder, said=said, **result)
        return made[key]

    return run
