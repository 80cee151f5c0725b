"""Runs of real trainers, each in a process of its own and each made once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rl_doctor import Run, open_run

ROOT = Path(__file__).parents[3]
TIMEOUT = 550


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
def train(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Train with TRL; the same options are trained once only."""
    made: dict[str, Trained] = {}

    def run(*, record: bool | str = True, ranks: int = 1, **options: Any) -> Trained:
        key = json.dumps([record, ranks, options], sort_keys=True)
        if key not in made:
            folder = tmp_path_factory.mktemp("run") / "recorded"
            made[key] = _train(folder, options | {"record": str(folder) if record is True else record or None}, ranks)
        return made[key]

    return run


def result_of(command: list[str]) -> dict[str, Any]:
    """What a command printed after RESULT."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    found: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return found


def _train(folder: Path, options: Mapping[str, Any], ranks: int) -> Trained:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)] if ranks > 1 else []
    command = [sys.executable, *launcher, "-m", "tests.trainers.trl.train", json.dumps(options)]
    environment = os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return Trained(folder=folder, said=done.stderr, **json.loads(line.removeprefix("RESULT ")))
