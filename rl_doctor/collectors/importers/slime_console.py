"""slime's log lines (and Miles's): ``step N: {...}`` by optimizer step, ``rollout N: {...}`` and others by generation batch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rl_doctor.collectors.importers.console import lines, seen
from rl_doctor.collectors.importers.literal import closing, record
from rl_doctor.collectors.importers.numbers import as_count
from rl_doctor.collectors.importers.patterns import when_used
from rl_doctor.collectors.importers.registry import Fit, Imported, Sample, importer
from rl_doctor.collectors.importers.rows import Row, assemble
from rl_doctor.schema import RunInfo

_LINE: Final = when_used(r"(?<![\w/-])((?:[a-z]+-)?step|rollout|eval|perf|passrate|multi_turn) (\d+): \{(?='[a-z][a-z_]*/)")
_SIGNED: Final = when_used(r"(?<![\w/-])(?:step \d+: \{'train/|rollout \d+: \{'rollout/|perf \d+: \{'(?:perf|rollout)/)")
_AXES: Final = frozenset({"train/step", "rollout/step", "eval/step"})


def _recognises(sample: Sample) -> Fit:
    return Fit.SIGNATURE if _SIGNED.search(seen(sample)) else Fit.NO


@importer("slime-console", "console output of slime", _recognises, marks=(": {'train/", ": {'rollout/", ": {'perf/"))
def read(path: Path) -> Imported:
    """Read every line of metrics; what is counted by generation batch is put at the first optimizer step of its batch."""
    per_rollout, note = _steps_per_rollout(path)
    rows = _rows(path, per_rollout)
    found = assemble(sorted(rows, key=_step) if per_rollout > 1 else rows, path)
    return Imported(found.log, RunInfo(trainer="slime"), (*note, *found.notes))


def _step(row: Row) -> int:
    return row.step or 0


def _lines(path: Path) -> Iterator[tuple[str, re.Match[str]]]:
    for line in lines(path):
        if ": {'" in line and (found := _LINE.search(line)):
            yield line, found


def _rows(path: Path, per_rollout: int) -> Iterator[Row]:
    trained = False
    for line, found in _lines(path):
        start = found.end() - 1
        end = closing(line, start)
        if end < 0:
            continue
        values = record(line[start : end + 1])
        step = as_count(found[2])
        if found[1].endswith("step"):
            trained = True
        else:  # an evaluation follows the training on its batch, except for the one before the first step
            step = step * per_rollout + (per_rollout - 1 if found[1] == "eval" and trained else 0)
        yield Row(step, {name: value for name, value in values.items() if name not in _AXES})


def _steps_per_rollout(path: Path) -> tuple[int, tuple[str, ...]]:
    """How many optimizer steps a generation batch has: the first step after the line of a batch tells it."""
    batch: int | None = None
    firsts: dict[int, int] = {}
    last_step = last_batch = -1
    for _, found in _lines(path):
        count = as_count(found[2])
        if found[1] == "step":
            last_step = max(last_step, count)
            if batch is not None:
                firsts.setdefault(batch, count)
                batch = None
        elif found[1] == "rollout":
            batch, last_batch = count, max(last_batch, count)
    ratios = {step / at for at, step in firsts.items() if at > 0}
    if not ratios and last_batch == 0 and last_step > 0:
        ratios = {float(last_step + 1)}
    if not ratios or ratios == {1.0}:
        return 1, ()
    ratio = min(ratios)
    if len(ratios) > 1 or ratio < 1 or ratio != int(ratio):
        return 1, (
            "'step N' counts optimizer steps and 'rollout N' generation batches, at no fixed ratio: each keeps its own count",
        )
    return int(ratio), (
        f"a generation batch has {int(ratio):,} optimizer steps: what lines 'rollout N' tell stands at step N x {int(ratio):,}",
    )
