"""Runs of verl's workers, each in a process of its own and each made once."""

from __future__ import annotations

import json
import os
import socket
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
class Trained:
    """What a training printed and logged, and the folder that it recorded into."""

    folder: Path
    weights: str
    rng: str
    fields: list[str]
    log: dict[int, dict[str, float]]
    said: str

    @property
    def run(self) -> Run:
        return open_run(self.folder)

    def logged(self) -> dict[int, dict[str, float]]:
        """What was logged, without durations and memory."""
        timed = ("perf/", "timing", "actor/perf/", "critic/perf/", "actor/mfu", "critic/mfu")
        return {
            step: {name: value for name, value in row.items() if not name.startswith(timed)} for step, row in self.log.items()
        }

    def columns(self, *names: str, critic: bool = False) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64]]:
        """Columns of the whole run, and the lengths of its sequences."""
        run = open_run(self.folder / "critic") if critic else self.run
        batches = list(run.batches([*names, "step"]))
        lengths = np.concatenate([np.diff(batch.splits) for batch in batches])
        return {name: np.concatenate([batch.columns[name] for batch in batches]) for name in [*names, "step"]}, lengths


Train = Callable[..., Trained]


def free_port() -> str:
    """A port that nobody listens on."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return str(listening.getsockname()[1])


def environment(**changes: str | None) -> dict[str, str]:
    """The environment of a process that uses verl on the CPU."""
    given: Mapping[str, str | None] = ENVIRONMENT | {"MASTER_PORT": free_port()} | changes
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RL_DOCTOR", "VERL"))}
    return kept | {name: value for name, value in given.items() if value is not None}


@pytest.fixture(scope="session")
def train(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Train with verl; the same options are trained once only."""
    made: dict[str, Trained] = {}

    def run(*, record: bool | str = True, ranks: int = 1, **options: Any) -> Trained:
        key = json.dumps([record, ranks, options], sort_keys=True)
        if key not in made:
            folder = tmp_path_factory.mktemp("run")
            recorded = str(folder / "recorded") if record is True else record or None
            made[key] = _train(folder, options | {"record": recorded, "log": str(folder / "log.jsonl")}, ranks)
        return made[key]

    return run


def _train(folder: Path, options: Mapping[str, Any], ranks: int) -> Trained:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)] if ranks > 1 else []
    command = [sys.executable, *launcher, "-m", "tests.trainers.verl.train", json.dumps(options)]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    rows = [json.loads(row) for row in Path(options["log"]).read_text().splitlines()]
    log = {row["step"]: row["data"] for row in rows}
    return Trained(
        folder=folder / "recorded", said=done.stdout + done.stderr, log=log, **json.loads(line.removeprefix("RESULT "))
    )
