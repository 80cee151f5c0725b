"""What the trainer itself logged: one series per native name and split."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.frozen import frozen

Record = tuple[int, str, float, str]
"""Step, name, value, split."""
Points = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Steps, strictly increasing, and the value at each."""

EVALUATION: Final = ("eval_", "eval/", "val-", "val/", "val_", "validation/", "test/")
"""What the names of values that were measured on held-out prompts start with."""
_NOTHING: Final[Points] = (np.empty(0, np.int64), np.empty(0))


@frozen(eq=False)
class MetricLog:
    """Logged values under their native names.

    Attributes:
        points: (name, split) -> steps int64 ``[n]``, strictly increasing, and values float64 ``[n]``; the split is "train" or
            "eval".
        without_number: native names under which something was logged, and never a number: they still tell what was trained.
    """

    points: Mapping[tuple[str, str], Points] = field(default_factory=dict)
    without_number: frozenset[str] = frozenset()

    @classmethod
    def of(cls, records: Iterable[Record]) -> MetricLog:
        """From records in any order; of a name logged twice at a step the last counts."""
        columns: dict[tuple[str, str], tuple[list[int], list[float]]] = {}
        for step, name, value, split in records:
            column = columns.get((name, split))
            if column is None:
                column = columns[name, split] = ([], [])
            column[0].append(step)
            column[1].append(value)
        return cls({key: ordered(steps, values) for key, (steps, values) in columns.items()})

    def joined(self, later: MetricLog) -> MetricLog:
        """With what was logged later, which counts where both have a step."""
        points = dict(self.points)
        for key, (steps, values) in later.points.items():
            before = points.get(key, _NOTHING)
            points[key] = ordered(np.concatenate([before[0], steps]), np.concatenate([before[1], values]))
        return MetricLog(points, self.without_number | later.without_number)

    def __len__(self) -> int:
        return sum(len(steps) for steps, _ in self.points.values())

    def names(self, split: str = "train") -> tuple[str, ...]:
        """Native names that were logged in a split, in alphabetical order."""
        return tuple(sorted(name for name, own in self.points if own == split))

    def series(self, name: str, split: str = "train") -> Points:
        """Steps and values of one native name; empty where it was not logged."""
        return self.points.get((name, split), _NOTHING)

    def steps(self) -> NDArray[np.int64]:
        """Every step at which something was logged, in increasing order."""
        axes = {steps.tobytes(): steps for steps, _ in self.points.values()}  # most metrics are logged at the same steps
        if len(axes) < 2:
            return next(iter(axes.values()), _NOTHING[0])
        return np.unique(np.concatenate(list(axes.values())), return_index=True)[0]  # without, numpy.ma is imported

    def until(self, step: int) -> MetricLog:
        """What was logged at steps up to ``step``."""
        cut = {key: int(np.searchsorted(steps, step, side="right")) for key, (steps, _) in self.points.items()}
        points = {key: (self.points[key][0][:size], self.points[key][1][:size]) for key, size in cut.items() if size}
        return MetricLog(points, self.without_number)

    def records(self) -> Iterator[Record]:
        """Every value, by increasing step."""
        rows = [
            (step, name, value, split)
            for (name, split), (steps, values) in self.points.items()
            for step, value in zip(steps.tolist(), values.tolist(), strict=True)
        ]
        rows.sort(key=lambda row: row[0])
        yield from rows


def ordered(steps: Sequence[int] | NDArray[np.int64], values: Sequence[float] | NDArray[np.float64]) -> Points:
    """Points by increasing step; of values at the same step the last counts.

    Args:
        steps: ``[n]``, in the order of logging.
        values: ``[n]``.
    """
    at, numbers = np.asarray(steps, np.int64), np.asarray(values, np.float64)
    if at.size < 2 or bool((at[1:] > at[:-1]).all()):
        return at, numbers
    order = np.argsort(at, kind="stable")
    at, numbers = at[order], numbers[order]
    last = np.append(at[1:] != at[:-1], True)
    return at[last], numbers[last]


def split_of(name: str) -> str:
    """The split that a native name tells: "eval" or "train"."""
    return "eval" if name.startswith(EVALUATION) else "train"
