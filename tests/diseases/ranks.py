"""Faults of ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.diseases.catalogue import injected
from tests.simulation.inject import on_four_ranks, onset
from tests.simulation.run import SimulatedRun

Random = np.random.Generator


@injected("rank-stops", "broken-groups", "advantage-mismatch", "advantage-without-difference", anywhere=False, cause="rank-lost")
def rank_that_stops(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """One of four workers dies in mid-run; its parts of groups are missing from then on."""
    rows = len(run.arrays["step"])
    ranked = on_four_ranks(run).arrays
    kept = (ranked["rank"] != 1) | (run.arrays["step"] < onset(run))
    tokens = np.repeat(kept, np.diff(run.splits))
    arrays = {name: values[kept if len(values) == rows else tokens] for name, values in ranked.items()}
    splits = np.concatenate([[0], np.cumsum(np.diff(run.splits)[kept])]).astype(np.int64)
    return replace(run, arrays=arrays, splits=splits)
