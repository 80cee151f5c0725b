"""Signs that compare the steps of what was found with those before: what rose, fell, jumped or stayed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, Literal

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.causes.registry import Look, Role, Sign
from rl_doctor.causes.scene import Scene

Course = Literal["rises", "falls", "stays", "jumps"]
_LEAST: Final = 3
_MOST: Final = 30
"""Steps on either side that are compared: at least, and at most."""
_Z: Final = 4.0
_AT_ONCE: Final = 0.6
"""Share of a change up to the end of the run that the first steps must make to be a jump."""
_LINE: Final = 10
"""Points before a jump from which on a trend is told from a level: what goes on with its trend does not jump."""
_MATERIAL: Final = 0.1
"""Change below which a metric stays where it is, as a share of its level before."""


def _first_known(scene: Scene, names: Iterable[str]) -> str | None:
    return next((name for name in names if scene.view.get(name) is not None), None)


def _noise(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """Robust standard deviation around the trend, from differences of neighbours."""
    if values.size < 2:
        return math.inf
    steps = np.abs(np.diff(values))
    return float(1.4826 * np.median(steps) / math.sqrt(2.0)) or float(np.mean(steps) / math.sqrt(2.0))


def _sides(found: Series, first: int, *, at_once: bool) -> tuple[Series, Series]:
    """The points before a step, and those from it on: right after it, or at the end."""
    split = int(np.searchsorted(found.steps, first))
    before = slice(max(split - _MOST, 0), split)
    number = min(_MOST, max((len(found) - split) // 3, _LEAST))
    after = slice(split, split + _LEAST + 2) if at_once else slice(max(len(found) - number, split), None)
    parts = [
        Series(found.metric, found.unit, found.steps[part], found.values[part], found.counts[part]) for part in (before, after)
    ]
    return parts[0], parts[1]


def _ahead(before: Series, after: Series, noise: float) -> tuple[float, float]:
    """Where the line through the points before leads in the middle of those after, and the standard error of a difference."""
    x = before.steps.astype(np.float64)
    middle, there = float(x.mean()), float(np.median(after.steps))
    slope, level = np.polyfit(x - middle, before.values, 1)
    far = there - middle
    lever = far * far / float(np.sum((x - middle) ** 2))
    return float(level + slope * far), noise * math.sqrt(1.0 / len(before) + lever + 2.0 / len(after))


def changes(
    course: Course, names: tuple[str, ...], words: str, told: str, *, role: Role = "typical", optional_missing: str = ""
) -> Sign:  # fmt: skip
    """A sign that is there where the first known metric of ``names`` takes a course from the first step of the findings on.

    Args:
        course: "rises" and "falls": the end against what was before, beyond noise and by a tenth; "jumps": the first steps
            against the line through what was before, up or down, by most of what the end differs; "stays": the end within
            noise, or within a tenth, of what was before.
        names: metrics, the preferred one first.
        words: the sign without numbers.
        told: what it is a change of: "the entropy"; the name of the metric where empty.
        role: of the sign.
        optional_missing: column that is named where none of the metrics is known and none says why.
    """

    def look(scene: Scene) -> Look:
        name = _first_known(scene, names)
        if name is None or scene.first_step is None:
            missing = scene.missing(*names[:1]) or ((optional_missing,) if optional_missing else ())
            return Look(None, words, None, missing)
        found = scene.view.series(name)
        before, after = _sides(found, scene.first_step, at_once=course == "jumps")
        if len(before) < _LEAST or len(after) < 1:
            return Look(None, f"{words} (no {_LEAST} steps lie before step {scene.first_step} to hold it against)")
        start, end = float(np.median(before.values)), float(np.median(after.values))
        noise = max(_noise(before.values), 1e-12)
        error = noise * math.sqrt(2.0 / len(before) + 2.0 / len(after))
        if course == "jumps" and len(before) >= _LINE:
            start, error = _ahead(before, after, noise)
        size = max(abs(start), abs(end)) * _MATERIAL
        change = end - start
        clear = abs(change) > max(_Z * error, size)
        if course == "jumps":
            last = float(np.median(found.values[-len(after) :]))
            clear = clear and abs(change) >= _AT_ONCE * abs(last - start)
        there = {"rises": clear and change > 0, "falls": clear and change < 0, "jumps": clear, "stays": not clear}[course]
        return Look(bool(there), f"{told or name} goes from {start:.3g} to {end:.3g}", int(after.steps[0]))

    return Sign(words, role, names, look)
