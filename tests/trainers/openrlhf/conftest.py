"""Runs of OpenRLHF's trainers, each in a process of its own and each made once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rl_doctor import Run, open_run
from tests.trainers.openrlhf.cpu import environment
from tests.trainers.warm import Warm

IMPORTS = ("torch", "transformers.models.qwen2.modeling_qwen2", "deepspeed", "ray", "peft", "datasets", "accelerate")
"""What OpenRLHF imports; a recorder comes before OpenRLHF itself."""


@dataclass(frozen=True)
class Trained:
    """What a training printed, and the folder that it recorded into."""

    folder: Path
    said: str
    log: list[dict[str, float]]
    weights: str = ""
    rng: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def run(self) -> Run:
        return open_run(self.folder)

    def columns(self, *names: str, critic: bool = False) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64]]:
        """Columns of the whole run, and the lengths of its sequences."""
        run = open_run(self.folder / "critic") if critic else self.run
        batches = list(run.batches([*names, "step"]))
        lengths = np.concatenate([np.diff(batch.splits) for batch in batches])
        return {name: np.concatenate([batch.columns[name] for batch in batches]) for name in [*names, "step"]}, lengths


Train = Callable[..., Trained]


@pytest.fixture(scope="session")
def variables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that trains."""
    return environment(tmp_path_factory.mktemp("modules"))


@pytest.fixture(scope="session")
def warm(variables: dict[str, str]) -> Iterator[Warm]:
    made = Warm(IMPORTS, variables)
    yield made
    made.close()


@pytest.fixture(scope="session")
def train(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Train:
    """Train with OpenRLHF; the same options are trained once only."""
    made: dict[str, Trained] = {}

    def run(*, record: bool | str = True, ranks: int = 1, **options: Any) -> Trained:
        key = json.dumps([record, ranks, options], sort_keys=True)
        if key not in made:
            folder = tmp_path_factory.mktemp("run") / "recorded"
            options |= {"record": str(folder) if record is True else record or None}
            result, out, err = warm.run("tests.trainers.openrlhf.train", options, ranks)
            made[key] = Trained(folder=folder, said=out + err, **result)
        return made[key]

    return run
