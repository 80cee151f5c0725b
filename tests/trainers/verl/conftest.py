"""Runs of verl's workers, each in a process of its own and each made once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.trained import Recorded, once
from tests.trainers.warm import Warm, free_port

ROOT = Path(__file__).parents[3]
IMPORTS = (
    "torch", "torch.distributed.tensor", "torch.distributed.fsdp", "transformers.models.qwen2.modeling_qwen2", "peft", "datasets",
    "tensordict", "ray", "fastapi", "hydra", "transfer_queue", "accelerate",
)  # fmt: skip
"""What verl imports; verl itself reads its plugins from the environment when it is imported."""
PLATFORM = "tests.trainers.verl.cpu_platform"
PLUGIN = "rl_doctor.collectors.verl"
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "VERL_PLATFORM": "cpu",
    "VERL_ENGINE_DEVICE": "cuda",  # the engines that are registered for accelerators
    "VERL_USE_EXTERNAL_PLUGINS": "none",
    "VERL_USE_EXTERNAL_MODULES": f"{PLATFORM},{PLUGIN}",
    "PYTHONPATH": str(ROOT),
    "HYDRA_FULL_ERROR": "1",
}


@dataclass(frozen=True)
class Trained(Recorded):
    """What a training printed, logged and recorded."""

    weights: str
    rng: str
    fields: list[str]
    log: dict[int, dict[str, float]]

    def logged(self) -> dict[int, dict[str, float]]:
        """What was logged, without durations and memory."""
        timed = ("perf/", "timing", "actor/perf/", "critic/perf/", "actor/mfu", "critic/mfu")
        return {
            step: {name: value for name, value in row.items() if not name.startswith(timed)} for step, row in self.log.items()
        }


Train = Callable[..., Trained]


def environment(**changes: str | None) -> dict[str, str]:
    """The environment of a process that uses verl on the CPU."""
    given: Mapping[str, str | None] = ENVIRONMENT | {"MASTER_PORT": free_port()} | changes
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RL_DOCTOR", "VERL"))}
    return kept | {name: value for name, value in given.items() if value is not None}


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    made = Warm(IMPORTS, environment())
    yield made
    made.close()


@pytest.fixture(scope="session")
def train(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Train:
    """Train with verl."""

    def log(folder: Path) -> Path:
        return folder.with_name("log.jsonl")

    def made(folder: Path, result: Mapping[str, Any], out: str, err: str) -> Trained:
        rows = [json.loads(row) for row in log(folder).read_text().splitlines()]
        logged = {row["step"]: row["data"] for row in rows}
        return Trained(folder=folder, said=out + err, log=logged, **result)

    return once(warm, "tests.trainers.verl.train", tmp_path_factory, made, lambda folder: {"log": str(log(folder))})
