"""Reads single rows of a run: one sequence, the passes over it, its group, or the rows of one step; the rest is not decoded.

A row is found by the sequence columns of its step, which are few; only then are the tokens of the row groups decoded that hold
what was found, each up to the last row that is wanted. A generation batch is trained on in neighbouring steps: from a
step of it the steps before and after are looked through until one has no row of that batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.schema import MISSING_INT
from rl_doctor.store.part import PartFragment
from rl_doctor.store.plan import Fragment, Segment
from rl_doctor.store.presence import chunks_of
from rl_doctor.store.rows import Rows, concatenate
from rl_doctor.store.run import Run
from rl_doctor.store.run_file import ListFragment

ROW_KEYS: Final = ("sequence", "uid", "group", "rollout_step", "epoch", "minibatch", "stored_length", "tokens_dropped")
"""Columns that every answer has where the run has them, beside ``step`` and ``sequence``, which it always has."""

Choice = Callable[[Rows], NDArray[np.bool_]]
"""Which rows are wanted, bool ``[n_sequences]``, by the columns of ``ROW_KEYS``."""


def rows_of_step(run: Run, step: int, columns: Collection[str] = ()) -> Rows | None:
    """The sequence rows of a step, in the order of reading; None where the step has none.

    Args:
        run: an opened run.
        step: the step.
        columns: canonical columns beside those of ``ROW_KEYS``; those that the run does not have are left out.

    Raises:
        InputError: a file cannot be read.
        ChangedError: its tokens were taken out meanwhile; open the run again.
    """
    return _chosen(run, [step], columns, lambda rows: np.ones(rows.n_sequences, np.bool_))


def sequence_of(run: Run, number: int, columns: Collection[str] = (), step: int | None = None) -> Rows | None:
    """The row with that number; None where there is none.

    Where the run has no column ``sequence``, rows are numbered from 0 in the order of the file.

    Args:
        run: an opened run.
        number: number of the sequence in the run.
        columns: as in ``rows_of_step``.
        step: the step that it is in, where it is known: no other is looked through then.

    Raises:
        InputError, ChangedError: as in ``rows_of_step``.
    """
    for one in run.steps if step is None else [step]:
        if step is None and not any(_may_hold(run, *stretch, number) for stretch in run.stretches(one)):
            continue
        found = _chosen(run, [one], columns, lambda rows: rows.columns["sequence"] == number)
        if found is not None:
            return found
    return None


def passes_of(run: Run, row: Rows, columns: Collection[str] = ()) -> Rows:
    """All passes over a sequence, in the order of training: the rows with its uid; without a uid the row alone.

    Args:
        run: an opened run.
        row: one row, as ``sequence_of`` gives it.
        columns: as in ``rows_of_step``.

    Raises:
        InputError, ChangedError: as in ``rows_of_step``.
    """
    step, number = (int(row.columns[name][0]) for name in ("step", "sequence"))
    uid = _value(row, "uid")

    def same(rows: Rows) -> NDArray[np.bool_]:
        return rows.columns["sequence"] == number if uid is None else _equal(rows.columns["uid"], uid)

    batch = None if uid is None else _batch_of(row)
    found = _chosen(run, _steps_of_batch(run, step, batch), columns, _both(same, _of_batch(batch)))
    return row if found is None else _in_order(found)


def group_of(run: Run, row: Rows, columns: Collection[str] = ()) -> Rows:
    """The rows of a sequence's group in its generation batch, each uid once, in its first pass; without a group the row alone.

    Args:
        run: an opened run.
        row: one row, as ``sequence_of`` gives it.
        columns: as in ``rows_of_step``.

    Raises:
        InputError, ChangedError: as in ``rows_of_step``.
    """
    step, number, group = (_value(row, name) for name in ("step", "sequence", "group"))
    if group is None:
        return sequence_of(run, int(number), columns, int(step)) or row
    batch = _batch_of(row)
    steps = _steps_of_batch(run, int(step), batch)
    wanted = _both(lambda rows: _equal(rows.columns["group"], group), _of_batch(batch))
    members = _chosen(run, steps, (), wanted)
    if members is None:
        return row
    first = _first_passes(_in_order(members))
    numbers, at = first.columns["sequence"], sorted(set(first.columns["step"].tolist()))
    found = _chosen(run, at, columns, lambda rows: np.isin(rows.columns["sequence"], numbers))
    return row if found is None else _in_order(found)


def members_of(run: Run, step: int, group: str, columns: Collection[str] = ()) -> Rows | None:
    """The rows of the group of that identity in a step, with the rest of its generation batch; see ``group_of``.

    Raises:
        InputError, ChangedError: as in ``rows_of_step``.
    """
    if "group" not in run.columns:
        return None
    found = _chosen(run, [step], (), lambda rows: _equal(rows.columns["group"], group))
    return None if found is None else group_of(run, found.slice(0, 1), columns)


def _chosen(run: Run, steps: Sequence[int], columns: Collection[str], wanted: Choice) -> Rows | None:
    found = [rows for step in steps for rows in _of_step(run, step, columns, wanted)]
    return concatenate(found) if found else None


def _of_step(run: Run, step: int, columns: Collection[str], wanted: Choice) -> Iterator[Rows]:
    """The wanted rows of a step by stretch."""
    keys = [name for name in ROW_KEYS if name in run.columns]
    names = sorted(run.columns.intersection(columns).union(keys))
    for fragment, segment in run.stretches(step):
        at = segment.start
        index: list[int] = []
        for rows in fragment.read(keys, segment.start, segment.stop):
            chosen = wanted(_numbered(rows, fragment, step, at))
            index += (np.flatnonzero(chosen) + at).tolist()
            at += rows.n_sequences
        if index:
            yield from _read(fragment, segment, names, np.array(index, np.int64))


def _read(fragment: Fragment, segment: Segment, names: Sequence[str], index: NDArray[np.int64]) -> Iterator[Rows]:
    """The rows ``index``, increasing, of a fragment."""
    at = segment.start
    for rows in fragment.read(names, segment.start, int(index[-1]) + 1):
        own = index[(index >= at) & (index < at + rows.n_sequences)] - at
        if own.size:
            yield _numbered(rows, fragment, segment.step, at).take(own)
        at += rows.n_sequences


def _numbered(rows: Rows, fragment: Fragment, step: int, at: int) -> Rows:
    """The rows, of which the first is row ``at`` of the fragment, with their step and, where they have none, numbers."""
    first = at + (fragment.first_row if isinstance(fragment, ListFragment) else 0)
    numbers = np.arange(first, first + rows.n_sequences, dtype=np.int64)
    return Rows({"sequence": numbers, **rows.columns, "step": np.full(rows.n_sequences, step, np.int64)}, rows.splits)


def _may_hold(run: Run, fragment: Fragment, segment: Segment, number: int) -> bool:
    """Whether it is left open, without looking at the rows, that a stretch holds the sequence of that number."""
    if "sequence" not in run.columns:
        first = fragment.first_row if isinstance(fragment, ListFragment) else 0
        return first + segment.start <= number < first + segment.stop
    if isinstance(fragment, PartFragment):
        for chunk in chunks_of(fragment.part.open("sequences").file.metadata, fragment.group, "sequence"):
            told = chunk.statistics
            if told is not None and told.has_min_max and not told.min <= number <= told.max:
                return False
    return True


def _steps_of_batch(run: Run, step: int, batch: int | None) -> list[int]:
    """The steps around ``step`` that have rows of the generation batch; the step alone where it is not known."""
    if batch is None:
        return [step]
    steps, wanted = run.steps, _of_batch(batch)
    at = steps.index(step)
    found = [step]
    for others in (reversed(steps[:at]), steps[at + 1 :]):
        for other in others:
            if _chosen(run, [other], (), wanted) is None:
                break
            found.append(other)
    return sorted(found)


def _of_batch(batch: int | None) -> Choice:
    if batch is None:
        return lambda rows: np.ones(rows.n_sequences, np.bool_)
    return lambda rows: _equal(rows.columns["rollout_step"], batch)


def _batch_of(row: Rows) -> int | None:
    """The generation batch of a row; None where that is not known, and its step counts as one."""
    batch = _value(row, "rollout_step")
    return None if batch is None or batch == MISSING_INT["int64"] else int(batch)


def _both(one: Choice, other: Choice) -> Choice:
    return lambda rows: one(rows) & other(rows)


def _equal(values: NDArray[Any], value: Any) -> NDArray[np.bool_]:
    return np.asarray(values == value, np.bool_)


def _value(row: Rows, name: str) -> Any:
    values = row.columns.get(name)
    return None if values is None else values[0]


def _in_order(rows: Rows) -> Rows:
    """Rows in the order in which they were trained on."""
    keys = [rows.columns[name] for name in ("sequence", "minibatch", "epoch", "step") if name in rows.columns]
    return rows.take(np.lexsort(keys).astype(np.int64))


def _first_passes(rows: Rows) -> Rows:
    """The first row of each uid, and the rows without one, in the order given."""
    uids = rows.columns.get("uid")
    if uids is None:
        return rows
    first: dict[Any, int] = {}
    for index, uid in enumerate(uids.tolist()):
        first.setdefault(("row", index) if uid is None else uid, index)
    return rows.take(np.array(sorted(first.values()), np.int64))
