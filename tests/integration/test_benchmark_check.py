"""The benchmark of the scan runs, and its contenders agree, on a run that is over in seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "check.py"


def test_the_contenders_compute_the_same(tmp_path: Path) -> None:
    pytest.importorskip("polars")
    chosen = "core;check;floor;pandas;duckdb;polars"
    command = [sys.executable, str(SCRIPT), "0.03", "--repeats", "1", "--only", chosen, "--keep", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].startswith("run folder of 3")
    measured = [line.split()[0] for line in lines if line.startswith("  ") and "CPU s" not in line]
    assert measured == [*chosen.split(";"), "core", "check", "floor"]
