"""Rows of a generation batch: which were aborted, and by group, which is by its identity, never by position."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import Bools, Floats, known
from rl_doctor.analyzer.formulas.segments import segment_sums
from rl_doctor.frozen import frozen
from rl_doctor.store.batch import Batch
from rl_doctor.store.codes import codes


@frozen(eq=False)
class Groups:
    """The finite values of a sequence column, group after group, in increasing order within a group.

    Attributes:
        rows: int64 ``[n]``, the row of the batch that each value stands in.
        values: float64 ``[n]``.
        splits: int64 ``[groups + 1]``.
        sizes: int64 ``[groups]``, number of rows per group.
        centred: float64 ``[n]``, each value minus the mean of its group; exactly 0 where all values of a group are equal.
        squares: float64 ``[groups]``, sum of ``centred`` squared.
    """

    rows: NDArray[np.int64]
    values: Floats
    splits: NDArray[np.int64]
    sizes: NDArray[np.int64]
    centred: Floats
    squares: Floats

    @property
    def low(self) -> Floats:
        """Smallest value per group."""
        return self.values[self.splits[:-1]]

    @property
    def high(self) -> Floats:
        """Largest value per group."""
        return self.values[self.splits[1:] - 1]

    def spread(self, of_groups: NDArray[np.float64]) -> Floats:
        """A value per group ``[groups]`` at each row of it ``[n]``."""
        return np.repeat(of_groups, self.sizes)


def groups(batch: Batch, name: str) -> Groups:
    """The rows with a group and a finite value in column ``name``, grouped; computed once per batch."""
    key = ("groups", name)
    if key not in batch.scratch:
        batch.scratch[key] = _group(batch.columns["group"], batch.columns[name].astype(np.float64))
    found: Groups = batch.scratch[key]
    return found


def _group(names: NDArray[np.object_], values: Floats) -> Groups:
    rows = np.flatnonzero(known(names) & np.isfinite(values))
    code = codes(names[rows])
    order = np.lexsort((values[rows], code))
    rows, code = rows[order], code[order]
    starts = np.flatnonzero(np.r_[True, code[1:] != code[:-1]]) if len(rows) else np.empty(0, np.int64)
    splits = np.append(starts, len(rows))
    ordered, sizes = values[rows], np.diff(splits)
    means = np.clip(segment_sums(ordered, splits) / sizes, ordered[splits[:-1]], ordered[splits[1:] - 1])
    centred = ordered - np.repeat(means, sizes)
    return Groups(rows, ordered, splits, sizes, centred, segment_sums(centred * centred, splits))


def aborted(batch: Batch) -> Bools:
    """Rows of length 0 or with finish_reason abort; whether their tokens are trained on does not matter."""
    length, reason = batch.get("response_length"), batch.get("finish_reason")
    found = np.zeros(batch.n_sequences, np.bool_)
    if length is not None:
        found |= length == 0
    if reason is not None:
        found |= np.equal(reason, "abort").astype(np.bool_)
    return found
