"""Healthy runs recorded from a real trainer, as hosts for diseases."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from tests.simulation.inject import in_memory
from tests.simulation.run import SimulatedRun

_DEMO = Path(str(files("rl_doctor.demo")))
RECORDED = tuple(name for name in ("healthy.parquet",) if (_DEMO / name).exists())
"""Names of the recorded healthy runs that ship with the package."""


@cache
def load(name: str) -> SimulatedRun:
    """A recorded run in memory; copy it before changing it."""
    from rl_doctor.store.run import open_run

    run: Any = open_run(_DEMO / name)
    return in_memory(run)
