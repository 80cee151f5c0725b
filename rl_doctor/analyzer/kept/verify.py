"""Holds kept states against what a reading gives, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.fold import Fold
from rl_doctor.analyzer.recorded import Folded
from rl_doctor.analyzer.registry import Metric
from rl_doctor.analyzer.stack import Stack


def differences(kept: Fold, read: Fold, metrics: Sequence[Metric]) -> Iterator[str]:
    """Where the two differ, in the order of metrics.

    Args:
        kept: as it was restored.
        read: of the same metrics at least, from the beginning; it may have gone on for longer.
        metrics: those to look at.
    """
    if kept.last == read.last:
        with np.errstate(all="ignore"):
            yield from _whole(kept.folded(), read.folded(), metrics)
        return
    for name, points in sorted(kept.settled.points.items()):
        size = len(points)
        ours = read.settled.points[name].arrays() if name in read.settled.points else ()
        yield from _series(name, points.arrays(), [array[:size] for array in ours])
    for item in metrics:
        stack = kept.settled.histograms.get(item.name)
        if stack is not None:
            other = read.settled.histograms.get(item.name, Stack())
            if any(step not in other or stack[step].to_row() != other[step].to_row() for step in stack):
                yield f"{item.name}: its histograms"


def _whole(kept: Folded, read: Folded, metrics: Sequence[Metric]) -> Iterator[str]:
    for item in metrics:
        names = (kept.names(item), read.names(item))
        if names[0] != names[1]:
            yield f"{item.name}: the names that it was told apart by"
            continue
        for name in names[0]:
            pair = [one.series(item, name) for one in (kept, read)]
            yield from _series(name, *((one.steps, one.values, one.counts) for one in pair))
    ours, theirs = kept.tops(metrics), read.tops(metrics)
    yield from (f"{name}: the sequences that it names" for name in ours if repr(ours[name]) != repr(theirs.get(name)))
    stacks, others = kept.histograms(metrics), read.histograms(metrics)
    for name, stack in stacks.items():
        if any(one != two or stack[one].to_row() != others[name][two].to_row() for one, two in zip_longest(stack, others[name])):
            yield f"{name}: its histograms"


def _series(name: str, kept: Sequence[NDArray[np.generic]], read: Sequence[NDArray[np.generic]]) -> Iterator[str]:
    if len(read) != len(kept) or len(kept[0]) != len(read[0]):
        yield f"{name}: the steps at which it is known"
        return
    for ours, theirs in zip(kept, read, strict=True):
        if ours.tobytes() != theirs.tobytes():
            at = int(np.flatnonzero(ours.view(np.int64) != theirs.view(np.int64))[0])
            yield f"{name} at step {int(kept[0][at])}: {kept[1][at]:.17g} is kept, {read[1][at]:.17g} is read"
            return
