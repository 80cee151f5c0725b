"""Several runs in one file, told apart by a column: their rows must not be taken for those of one run that was restarted."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.errors import InputError
from rl_doctor.store.step_axis import plain_name, step_names

RUN_KEYS: Final = frozenset({"run", "run_name", "run_id", "experiment", "experiment_name", "exp_name"})
"""Plain names of columns that tell runs apart, whatever else the table holds."""
LABEL: Final = "run"
"""Under this the label of a row is added where it stands outside of its record."""
_MAY_TELL: Final = RUN_KEYS | {
    "exp", "experiment_id", "trial", "trial_id", "seed", "random_seed", "name", "algo", "algorithm", "method", "variant", "arm",
    "condition", "setting", "agent", "baseline", "model", "model_name", "policy_name",
}  # fmt: skip
"""Plain names of columns that tell runs apart if the steps start over with each of their values."""
_EXPLAINED: Final = 0.1
"""Share of the repeated steps that may be left within the runs."""
_OVERLAP: Final = 0.5
"""Share of the rows of all runs but the longest that repeat a step: of a run that goes on under another label few do."""
_DIFFER: Final = 0.1
"""Share of the repeated steps beyond which other values stand there than before: else the same is told twice."""
_LEAST: Final = 2
"""Steps that each run has, in the mean: a column with another value in every row tells no runs."""
_LONGEST: Final = 200
"""Characters of a label; a longer text is another thing."""
_MOST: Final = 8
"""Runs that a message lists."""

Labels = Mapping[str, Sequence[tuple[NDArray[np.int64], Sequence[Any]]]]
"""Column -> rows and what stands in them."""
Points = tuple[NDArray[np.int64], NDArray[np.float64]]


@lru_cache(4096)
def may_tell(name: str) -> bool:
    """Whether a column of that name may tell runs apart."""
    return plain_name(name) in _MAY_TELL


def rows_of_run(
    labels: Labels, points: Mapping[str, Points], steps: NDArray[np.float64], file: Path, wanted: str | None
) -> NDArray[np.bool_] | None:
    """The rows of the run that is wanted; None for all.

    Args:
        labels: texts of the columns that may tell runs apart.
        points: numbers of all columns.
        steps: the step of each row, NaN where it has none.
        file: for messages.
        wanted: what the run is called, or None.

    Raises:
        InputError: a column tells several runs apart and none is named, or the one that is named is not there.
    """
    columns = {name: _coded(name, labels, points, len(steps)) for name in dict.fromkeys((*labels, *points)) if may_tell(name)}
    values = {name: texts for name, (texts, _) in columns.items()}
    if wanted is not None:
        for texts, codes in columns.values():
            if wanted in texts:
                return np.asarray(codes == texts.index(wanted))
        told = next((values[name] for name in columns if len(values[name]) > 1), None)
        if told is None:
            raise InputError(f"{file}: no column tells runs apart; give it without #{wanted}")
        one_run(file, told, wanted)
    axes = {*columns, *step_names(points)}
    measured = [found for name, found in points.items() if name not in axes and plain_name(name) != "epoch"]
    for name, (texts, codes) in columns.items():
        if len(texts) > 1 and _tells(codes, measured, steps):
            one_run(file, texts, None, name)
    return None


def _coded(name: str, labels: Labels, points: Mapping[str, Points], rows: int) -> tuple[list[str], NDArray[np.int64]]:
    """The texts that stand in a column, and for each row which of them; -1 for none."""
    known: dict[str, int] = {}
    codes = np.full(rows, -1)
    told = [*labels.get(name, ())]
    if name in points:
        at, numbers = points[name]
        told.append((at, [f"{number:.0f}" if number.is_integer() else str(number) for number in numbers.tolist()]))
    for at, texts in told:
        codes[at] = [known.setdefault(text, len(known)) if 0 < len(text) <= _LONGEST else -1 for text in texts]
    return list(known), codes


def _tells(codes: NDArray[np.int64], measured: Collection[Points], steps: NDArray[np.float64]) -> bool:
    """Whether the same steps come again with each label, and hardly ever under the same one."""
    known = ~np.isnan(steps) & (codes >= 0)
    repeated = inside = others = differ = 0
    for at, values in measured:
        kept = known[at]
        own, told = at[kept], values[kept]
        if own.size:
            pairs = np.unique(np.stack([codes[own].astype(np.float64), steps[own]]), axis=1)
            counts = np.bincount(codes[own])
            if own.size < _LEAST * np.count_nonzero(counts):
                continue
            repeated += own.size - len(np.unique(steps[own]))
            inside += own.size - pairs.shape[1]
            others += own.size - int(counts.max())
            order = np.argsort(steps[own], kind="stable")
            again = steps[own][order][1:] == steps[own][order][:-1]
            differ += int((again & (told[order][1:] != told[order][:-1])).sum())
    return differ > _DIFFER * repeated and inside <= _EXPLAINED * repeated and repeated >= _OVERLAP * others


def one_run(path: Path, runs: Collection[str], wanted: str | None, column: str | None = None) -> str | None:
    """The run that is wanted, or the only one.

    Args:
        path: the file.
        runs: what the runs are called.
        wanted: the one to read, or None.
        column: the column that tells them apart, for the message.

    Raises:
        InputError: there are several, or not the one that is wanted.
    """
    if wanted in runs or not runs:
        return wanted
    if wanted is None and len(runs) == 1:
        return next(iter(runs))
    names = sorted(runs)
    shown = ", ".join(names[:_MOST]) + (f" and {len(names) - _MOST} more" if len(names) > _MOST else "")
    what = "several runs" if wanted is None else f"no run {wanted!r} among its runs"
    by = f", told apart by {column!r}: the steps start over with each" if column is not None else ""
    raise InputError(f"{path}: {what} ({shown}){by}; give one of them as {path.name}#{names[0]}")
