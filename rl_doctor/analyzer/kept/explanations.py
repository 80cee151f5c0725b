"""Explanations of logged numbers as a sheet: what the second pass over tokens found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import numpy as np

from rl_doctor.analyzer.comparison import Comparison, Explanation, Untried
from rl_doctor.analyzer.kept.keys import digest
from rl_doctor.analyzer.kept.sheet import Sheet
from rl_doctor.store.metric_log import MetricLog


def key_of(comparisons: Sequence[Comparison], limits: Mapping[str, float], log: MetricLog, *others: Any) -> str:
    """Digest of all that explanations depend on.

    Args:
        comparisons: what is to be explained.
        limits: of the rule that will find it to differ.
        log: what was logged.
        others: the rest.
    """
    numbers = blake2b(digest_size=12)
    for item in comparisons:
        for array in (item.steps, item.logged, item.recomputed, item.tolerance):
            numbers.update(array.tobytes())
    for points in log.points.values():
        for array in points:
            numbers.update(array.tobytes())
    return digest([item.name for item in comparisons], list(log.points), numbers.hexdigest(), dict(limits), *others)


def drawn(key: str, comparisons: Sequence[Comparison]) -> Sheet:
    """The sheet of comparisons that were looked into."""
    sheet = Sheet({"key": key})
    items = []
    for at, item in enumerate(comparisons):
        told = []
        for number, one in enumerate(item.explanations):
            sheet.arrays[f"{at}/{number}"] = np.concatenate([one.values, one.tolerance])
            told.append([one.name, one.sentence, one.approximate])
        if item.looked is not None:
            sheet.arrays[f"{at}/looked"] = item.looked
        items.append({"explanations": told, "untried": [[one.name, list(one.columns)] for one in item.untried]})
    sheet.document["items"] = items
    return sheet


def restored(sheet: Sheet, comparisons: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """The comparisons with what the sheet says of them."""
    found = []
    for at, (item, told) in enumerate(zip(comparisons, sheet.document["items"], strict=True)):
        explanations = []
        for number, (name, sentence, approximate) in enumerate(told["explanations"]):
            values, tolerance = np.split(sheet.arrays[f"{at}/{number}"], 2)
            explanations.append(Explanation(name, sentence, values, tolerance, approximate))
        untried = tuple(Untried(name, tuple(columns)) for name, columns in told["untried"])
        looked = sheet.arrays.get(f"{at}/looked")
        found.append(replace(item, explanations=tuple(explanations), untried=untried, looked=looked))
    return tuple(found)
