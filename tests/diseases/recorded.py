"""Healthy runs recorded from a real trainer, as hosts for diseases."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from tests.simulation.inject import in_memory
from tests.simulation.run import SimulatedRun

_DEMO = Path(str(files("rl_doctor.demo")))
_DATA = Path(__file__).resolve().parents[1] / "data"
RECORDED: Final = {
    "single_turn": _DEMO / "healthy.parquet",
    "agentic": _DATA / "agentic.parquet",
    "minibatches": _DATA / "minibatches.parquet",
    "rloo": _DATA / "rloo.parquet",
    "verl": _DATA / "verl.parquet",
}
"""Recorded healthy runs by kind. `tools/record_demo.py` and `tools/record_verl.py` record them."""


@cache
def load(name: str) -> SimulatedRun:
    """A recorded run in memory; copy it before changing it."""
    from rl_doctor.store.run import open_run

    run: Any = open_run(RECORDED[name])
    return in_memory(run)
