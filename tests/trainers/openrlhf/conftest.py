"""Runs of OpenRLHF's trainers, each in a process of its own and each made once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.openrlhf.cpu import environment
from tests.trainers.trained import Recorded, once
from tests.trainers.warm import Warm

IMPORTS = ("torch", "transformers.models.qwen2.modeling_qwen2", "deepspeed", "ray", "peft", "datasets", "accelerate")
"""What OpenRLHF imports; a recorder comes before OpenRLHF itself."""


@dataclass(frozen=True)
class Trained(Recorded):
    """What a training printed and recorded."""

    log: list[dict[str, float]]
    weights: str = ""
    rng: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


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
    """Train with OpenRLHF."""

    def made(folder: Path, result: Mapping[str, Any], out: str, err: str) -> Trained:
        return Trained(folder=folder, said=out + err, **result)

    return once(warm, "tests.trainers.openrlhf.train", tmp_path_factory, made)
