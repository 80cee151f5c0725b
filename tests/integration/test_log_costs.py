"""What a long log costs: reading it, and checking it from the command line, in CPU time and memory."""

from __future__ import annotations

import compileall
import csv
import json
import os
import sqlite3
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rl_doctor
from rl_doctor.collectors.importers.tfrecords import checksums
from tests.integration.test_start_up import FLOOR, FLOOR_SECONDS, TRIES, cpu_seconds
from tests.property.log_files import field, varint

pytestmark = pytest.mark.timed

STEPS: Final = 10_000
CHECK_SECONDS: Final = 1.0
BEYOND: Final[Mapping[str, float]] = {
    "trl-console": 1.3,
    "wandb": 1.2,
    "tensorboard": 1.2,
    "minimind": 1.15,
    "verl-console": 1.15,
    "verl-console-lines": 1.15,
}
"""Forms that keep the second of a check, but not beside busy neighbours, and what holds them instead."""
READ_SECONDS: Final[Mapping[str, float]] = {
    "csv": 0.35, "jsonl": 0.4, "parquet": 0.25, "trl-console": 0.55, "verl-console": 0.35, "verl-console-ray": 0.42,
    "verl-console-lines": 0.4, "tensorboard": 0.45, "wandb": 0.6, "trackio": 0.45, "trainer-state": 0.45, "minimind": 0.5,
}  # fmt: skip
"""CPU time of reading a log of each form, a quarter above what was measured; what a check does beside reading takes 0.5 s,
start-up included."""
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


def _rows(columns: Columns) -> Iterator[tuple[int, dict[str, float]]]:
    """Steps, and what was logged at each."""
    for row in zip(*columns.values(), strict=True):
        yield int(row[0]), dict(zip(NAMES, row[1:], strict=True))


def _trl_console(path: Path, columns: Columns) -> None:
    with path.open("w") as file:
        for step, row in _rows(columns):
            bar = f"\r {100 * step // STEPS}%|###       | {step}/{STEPS} [00:01<00:10, 1.0it/s]"
            del row[NAMES[-1]]  # the epoch is a metric as well
            file.write(f"{bar}\n{row | {'epoch': round(step / STEPS, 4)}}\n")


def _verl_console(path: Path, columns: Columns) -> None:
    with path.open("w") as file:
        for step, row in _rows(columns):
            file.write(f"step:{step} - " + " - ".join(f"{name}:{value}" for name, value in row.items()) + "\n")


def _verl_console_ray(path: Path, columns: Columns) -> None:
    with path.open("w") as file:
        for step, row in _rows(columns):
            pairs = " - ".join(f"{name}:np.float64({value})" for name, value in row.items())
            file.write(f"\x1b[36m(TaskRunner pid=71234)\x1b[0m step:{step} - {pairs}\n")


def _verl_console_lines(path: Path, columns: Columns) -> None:
    with path.open("w") as file:
        for step, row in _rows(columns):
            file.write(f"step:{step}\n" + "".join(f"  - {name}:{value}\n" for name, value in row.items()))


def _tensorboard(path: Path, columns: Columns) -> None:
    events = [struct.pack("<Bd", 0x09, 1.7e9) + field(3, b"brain.Event:2")]
    for step, row in _rows(columns):
        for name, value in row.items():
            scalar = field(5, field(1, field(1, name.encode()) + struct.pack("<Bf", 2 << 3 | 5, value)))
            events.append(struct.pack("<Bd", 0x09, 1.7e9 + step) + b"\x10" + varint(step) + scalar)
    lengths = np.array([len(event) for event in events])
    heads = lengths.astype("<u8").tobytes()
    of_lengths = checksums(np.frombuffer(heads, np.uint8), 8 * np.arange(len(events)), np.full(len(events), 8)).tolist()
    of_events = checksums(np.frombuffer(b"".join(events), np.uint8), np.cumsum(lengths) - lengths, lengths).tolist()
    with path.open("wb") as file:
        for event, before, after in zip(events, of_lengths, of_events, strict=True):
            file.write(struct.pack("<QI", len(event), before) + event + struct.pack("<I", after))


def _wandb(path: Path, columns: Columns) -> None:
    data = bytearray(b":W&B" + struct.pack("<HB", 0xBEE1, 0))
    for step, row in _rows(columns):
        named = {**row, "_step": step, "_timestamp": 1.7e9 + step}
        items = (field(2, name.encode()) + field(16, json.dumps(value).encode()) for name, value in named.items())
        rest, kind = field(2, b"".join(field(1, item) for item in items)), 1
        while rest:
            left = (1 << 15) - len(data) % (1 << 15)
            if left < 8:
                data += bytes(left)
                continue
            part, rest = rest[: left - 7], rest[left - 7 :]
            kind = (2 if kind == 1 else 3) if rest else (1 if kind == 1 else 4)
            data += struct.pack("<IHB", zlib.crc32(bytes([kind]) + part), len(part), kind) + part
    path.write_bytes(data)


def _trackio(path: Path, columns: Columns) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute(
            "CREATE TABLE metrics (id INTEGER PRIMARY KEY, timestamp TEXT, run_name TEXT, step INTEGER, metrics TEXT)"
        )
        database.executemany(
            "INSERT INTO metrics (timestamp, run_name, step, metrics) VALUES ('', 'run', ?, ?)",
            [(step, json.dumps(row)) for step, row in _rows(columns)],
        )
        database.commit()


def _trainer_state(path: Path, columns: Columns) -> None:
    history = [{**row, NAMES[-1]: 0.5, "step": step} for step, row in _rows(columns)]
    path.write_text(json.dumps({"global_step": STEPS, "is_world_process_zero": True, "log_history": history}, indent=2))


def _minimind(path: Path, columns: Columns) -> None:
    known = ["Reward", "KL_ref", "Adv Std", "Adv Mean", "Actor Loss", "Avg Response Len", "Learning Rate"]
    called = [*known, *(f"Part {one} {two}" for one in "ABCDEF" for two in "VWXYZ")][: len(NAMES)]
    with path.open("w") as file:
        for step, row in _rows(columns):
            pairs = ", ".join(f"{name}: {value:.4f}" for name, value in zip(called, row.values(), strict=True))
            file.write(f"Epoch:[1/1]({step}/{STEPS}), {pairs}\n")


WRITERS: Final[Mapping[str, Callable[[Path, Columns], None]]] = {
    "csv": _csv,
    "jsonl": _jsonl,
    "parquet": _parquet,
    "trl-console": _trl_console,
    "verl-console": _verl_console,
    "verl-console-ray": _verl_console_ray,
    "verl-console-lines": _verl_console_lines,
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "trackio": _trackio,
    "trainer-state": _trainer_state,
    "minimind": _minimind,
}


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
def test_reading_takes_a_part_of_a_second(logs: Mapping[str, Path], form: str) -> None:
    path = logs[form]
    script = READING.replace("{values}", str(STEPS * len(NAMES)))

    def read() -> float:
        command = [sys.executable, "-c", script, str(path.with_name(f"small-{form}")), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=_environment())
        return float(done.stdout)

    _assert_within(READ_SECONDS[form], read)


@pytest.mark.parametrize("form", WRITERS)
def test_checking_takes_a_second(logs: Mapping[str, Path], form: str) -> None:
    budget = BEYOND.get(form, CHECK_SECONDS)
    _assert_within(budget, lambda: cpu_seconds("-m", "rl_doctor", "check", "--fail-on", "never", str(logs[form])))


@pytest.mark.parametrize("form", WRITERS)
def test_checking_takes_little_memory(logs: Mapping[str, Path], form: str) -> None:
    peak = _peak("check", "--fail-on", "never", str(logs[form]))
    # How much of a library's file is mapped beside the pages that are used is the system's choice.
    assert peak <= CHECK_MEBIBYTES or peak - _peak() <= CHECK_MEBIBYTES - FLOOR_MEBIBYTES


def _peak(*arguments: str) -> float:
    command = [sys.executable, "-c", PEAK, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=_environment())
    return int(done.stderr.split()[-1]) / 1024
