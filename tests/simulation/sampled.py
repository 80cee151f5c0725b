"""A simulated run as a recorder would have kept it with ``sampling``, and with the tokens of some steps thinned out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from rl_doctor.collectors.sampling import GroupSampler
from rl_doctor.store.rows import Rows, concatenate, without_tokens
from tests.simulation.run import SimulatedRun


def sampled(run: SimulatedRun, share: float) -> SimulatedRun:
    """The run with the tokens of a share of the groups."""
    sampler = GroupSampler(share, lambda _: None)
    kept = [part for step in _steps(run) for part in sampler.thin([step], 0)]
    return replace(_with(run, kept), info=replace(run.info, sampling=share))


def thinned(run: SimulatedRun, keeps: Callable[[int], bool]) -> SimulatedRun:
    """The run without the tokens of the steps that ``keeps`` is false for."""
    kept = [
        without_tokens(rows, np.full(rows.n_sequences, not keeps(int(rows.columns["step"][0])), np.bool_)) for rows in _steps(run)
    ]
    return _with(run, kept)


def _steps(run: SimulatedRun) -> list[Rows]:
    order = np.argsort(run.arrays["step"], kind="stable")
    whole = Rows(run.arrays, run.splits).take(order)
    bounds = np.flatnonzero(np.diff(whole.columns["step"])) + 1
    return [whole.slice(start, stop) for start, stop in zip([0, *bounds], [*bounds, whole.n_sequences], strict=True)]


def _with(run: SimulatedRun, parts: list[Rows]) -> SimulatedRun:
    rows = concatenate(parts)
    arrays = dict(rows.columns)
    if "stored_length" in arrays:
        arrays["stored_length"] = np.diff(rows.splits).astype(np.int32)
    return replace(run, arrays=arrays, splits=rows.splits)
