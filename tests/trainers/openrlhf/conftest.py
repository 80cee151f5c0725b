"""Runs of OpenRLHF's trainers, each in a process of its own and each made once."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rl_doctor import Run, open_run
from tests.trainers.openrlhf.cpu import ROOT, environment

TIMEOUT = 550


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


def result_of(command: list[str], variables: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """What a command printed after RESULT, and all that it said."""
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=variables, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return json.loads(line.removeprefix("RESULT ")), done.stdout + done.stderr


def free_port() -> str:
    """A port that nobody listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


@pytest.fixture(scope="session")
def variables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that trains."""
    return environment(tmp_path_factory.mktemp("modules"))


@pytest.fixture(scope="session")
def train(tmp_path_factory: pytest.TempPathFactory, variables: dict[str, str]) -> Train:
    """Train with OpenRLHF; the same options are trained once only."""
    made: dict[str, Trained] = {}

    def run(*, record: bool | str = True, ranks: int = 1, **options: Any) -> Trained:
        key = json.dumps([record, ranks, options], sort_keys=True)
        if key not in made:
            folder = tmp_path_factory.mktemp("run") / "recorded"
            target = str(folder) if record is True else record or None
            launcher = ["torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks), "-m"] if ranks > 1 else []
            command = ["-m", *launcher, "tests.trainers.openrlhf.train", json.dumps(options | {"record": target})]
            result, said = result_of(command, variables | ({"MASTER_PORT": free_port()} if ranks == 1 else {}))
            made[key] = Trained(folder=folder, said=said, **result)
        return made[key]

    return run
