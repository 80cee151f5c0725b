"""What the table of a trainer says of the keys of a log."""

from __future__ import annotations

from collections.abc import Iterable

from rl_doctor.analyzer.dialects.registry import Trainer, bounds_of, pattern, spelled
from rl_doctor.schema import RunInfo


def recomputable(known: Trainer, info: RunInfo, names: Iterable[str]) -> set[str]:
    """Those of the ``names`` that the table defines as exact or derived for a run of this version and algorithm."""
    bounds = bounds_of(info.trainer_version)
    usable = [item for item in known.names if bounds.within(item) and (not item.algorithms or info.algorithm in item.algorithms)]
    found = set()
    for name in names:
        exact = [item for item in usable if item.native == name]
        meant = exact or [item for item in usable if item.family and pattern(item.native).fullmatch(spelled(name))]
        if meant and meant[0].definition is not None and meant[0].definition.proof:
            found.add(name)
    return found
