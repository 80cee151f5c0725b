"""What a long log costs: reading it, and checking it from the command line, in CPU time and memory."""

from __future__ import annotations

import compileall
import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rl_doctor
from tests.integration.test_start_up import FLOOR, FLOOR_SECONDS, TRIES, cpu_seconds

STEPS: Final = 10_000
READ_SECONDS: Final = 0.25
CHECK_SECONDS: Final = 1.0
CHECK_MEBIBYTES: Final = 150.0
FLOOR_MEBIBYTES: Final = 62.0
"""Memory of a process that imports the core's dependencies only, where the system maps no more of their files than is used."""
NAMES: Final = (
    "actor/pg_loss", "actor/entropy", "actor/ppo_kl", "actor/pg_clipfrac", "actor/pg_clipfrac_lower", "actor/grad_norm",
    "actor/lr", "actor/kl_loss", "critic/score/mean", "critic/score/max", "critic/score/min", "critic/rewards/mean",
    "critic/rewards/max", "critic/rewards/min", "critic/advantages/mean", "critic/advantages/max", "critic/advantages/min",
    "critic/returns/mean", "critic/returns/max", "critic/returns/min", "response_length/mean", "response_length/max",
    "response_length/min", "response_length/clip_ratio", "prompt_length/mean", "prompt_length/max", "timing_s/step",
    "timing_s/gen", "perf/mfu/actor", "perf/throughput",
)  # fmt: skip
Columns = Mapping[str, list[float]]
READING: Final = """
import json, sys, time
from rl_doctor import open_run
small, path = sys.argv[1:]
open_run(small)
best = float("inf")
for _ in range(3):
    started = time.process_time()
    assert len(open_run(path).metrics()) == {values}
    best = min(best, time.process_time() - started)
print(best)
"""
"""Reads after everything was imported; what importing costs is in the budget of the check."""
PEAK: Final = """
import re, sys
from pathlib import Path
if sys.argv[1:]:
    from rl_doctor.cli.main import main
    try:
        main(sys.argv[1:])
    except SystemExit:
        pass
else:
    import numpy, pyarrow.parquet
sys.stderr.write(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""
"""What ``getrusage`` tells of a child begins with what its parent had."""


def _columns() -> Columns:
    """A run that goes about its business."""
    rng = np.random.default_rng(0)
    time = np.arange(1, STEPS + 1)
    columns: dict[str, list[float]] = {"step": [float(step) for step in time]}
    for name in NAMES:
        level = rng.uniform(0.2, 0.8)
        columns[name] = (level * (1 + 0.1 * time / STEPS) + 0.01 * rng.standard_normal(STEPS)).tolist()
    return columns


def _csv(path: Path, columns: Columns) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def _jsonl(path: Path, columns: Columns) -> None:
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _parquet(path: Path, columns: Columns) -> None:
    pq.write_table(pa.table(dict(columns)), path)


WRITERS: Final[Mapping[str, Callable[[Path, Columns], None]]] = {"csv": _csv, "jsonl": _jsonl, "parquet": _parquet}


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    compileall.compile_dir(Path(rl_doctor.__file__).parent, quiet=2)
    folder, columns = tmp_path_factory.mktemp("costs"), _columns()
    for name, write in WRITERS.items():
        write(folder / name, columns)
        write(folder / f"small-{name}", {key: values[:10] for key, values in columns.items()})
    return {name: folder / name for name in WRITERS}


def _environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("COV")}
    return kept | {"OPENBLAS_NUM_THREADS": "1"}


def _assert_within(budget: float, measure: Callable[[], float]) -> None:
    """The measure keeps its budget: in seconds, or on a slower machine in proportion to importing the dependencies beside it."""
    least = floor = float("inf")
    for _ in range(TRIES):
        floor = min(floor, cpu_seconds("-c", FLOOR))
        least = min(least, measure())
        if least <= budget:
            return
    assert least / floor <= budget / FLOOR_SECONDS, f"{least:.3f} s; importing numpy and pyarrow.parquet takes {floor:.3f} s"


@pytest.mark.parametrize("form", WRITERS)
def test_reading_takes_a_quarter_of_a_second(logs: Mapping[str, Path], form: str) -> None:
    path = logs[form]
    script = READING.replace("{values}", str(STEPS * len(NAMES)))

    def read() -> float:
        command = [sys.executable, "-c", script, str(path.with_name(f"small-{form}")), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=_environment())
        return float(done.stdout)

    _assert_within(READ_SECONDS, read)


@pytest.mark.parametrize("form", WRITERS)
def test_checking_takes_a_second(logs: Mapping[str, Path], form: str) -> None:
    _assert_within(CHECK_SECONDS, lambda: cpu_seconds("-m", "rl_doctor", "check", "--fail-on", "never", str(logs[form])))


@pytest.mark.parametrize("form", WRITERS)
def test_checking_takes_little_memory(logs: Mapping[str, Path], form: str) -> None:
    peak = _peak("check", "--fail-on", "never", str(logs[form]))
    # How much of a library's file is mapped beside the pages that are used is the system's choice.
    assert peak <= CHECK_MEBIBYTES or peak - _peak() <= CHECK_MEBIBYTES - FLOOR_MEBIBYTES


def _peak(*arguments: str) -> float:
    command = [sys.executable, "-c", PEAK, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=_environment())
    return int(done.stderr.split()[-1]) / 1024
