"""What starting costs: the modules that are imported, and the CPU time of real processes."""

from __future__ import annotations

import compileall
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import rl_doctor
from tests.integration.bad_input import rows, write

HEAVY = {"torch", "pandas", "streamlit", "plotly", "scipy", "transformers", "pyarrow.dataset"}
TRIES = 20
"""Pairs of processes to measure; the fastest of each counts, as others work on the machine at the same time."""

FLOOR = "import numpy, pyarrow.parquet"
FLOOR_SECONDS = 0.18
"""CPU time of a process that imports the core's dependencies only, on the machine that the budgets were set on."""


def modules_after(code: str) -> set[str]:
    """Modules that a fresh interpreter has after the code."""
    script = (
        f"import sys, json\ntry:\n    {code}\nexcept SystemExit:\n    pass\nsys.stderr.write(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    return set(json.loads(done.stderr))


def command(*arguments: object) -> str:
    return f"from rl_doctor.cli.main import main; main({[str(argument) for argument in arguments]!r})"


def cpu_seconds(*command: str) -> float:
    """CPU time of one run of the command, user and system."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("COV")} | {"OPENBLAS_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *command], stdout=subprocess.DEVNULL, check=True, timeout=120, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def assert_starts_within(budget: float, *arguments: object) -> None:
    """The command keeps its budget: in seconds, or on a slower machine in proportion to importing the dependencies beside it.

    The package is compiled first, as an installer does; compiling it anew at every start would be most of what is measured.
    """
    compileall.compile_dir(Path(rl_doctor.__file__).parent, quiet=2)
    least = floor = float("inf")
    for _ in range(TRIES):
        floor = min(floor, cpu_seconds("-c", FLOOR))
        least = min(least, cpu_seconds("-m", "rl_doctor", *map(str, arguments)))
        if least <= budget:
            return
    assert least / floor <= budget / FLOOR_SECONDS, f"{least:.3f} s; importing numpy and pyarrow.parquet takes {floor:.3f} s"


@pytest.fixture(scope="module")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("start_up") / "small.parquet", rows(12))


def test_the_package_imports_nothing_heavy() -> None:
    loaded = modules_after("import rl_doctor")
    assert not loaded & (HEAVY | {"numpy", "pyarrow", "typer", "rich", "pydantic"})


@pytest.mark.parametrize("arguments", [["--help"], ["check", "--help"], ["--version"]])
def test_help_imports_neither_numpy_nor_pyarrow_nor_rich(arguments: list[str]) -> None:
    loaded = modules_after(command(*arguments))
    assert not loaded & (HEAVY | {"numpy", "pyarrow", "rich"})


def test_a_check_imports_nothing_heavy(small_run: Path) -> None:
    loaded = modules_after(command("check", small_run))
    assert "pyarrow.parquet" in loaded
    assert not loaded & (HEAVY | {"typer", "pydantic"})


@pytest.mark.timed
def test_help_takes_a_third_of_a_second() -> None:
    assert_starts_within(0.35, "--help")


@pytest.mark.timed
def test_a_cold_check_of_a_small_run_takes_less_than_a_second(small_run: Path) -> None:
    assert_starts_within(0.7, "check", small_run)
