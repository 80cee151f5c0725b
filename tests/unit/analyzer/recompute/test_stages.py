"""Rows by the values that tell micro-batches apart."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from rl_doctor.analyzer.recompute.stages import MICROBATCH_OF_RANK, keyed_rows
from rl_doctor.schema import MISSING_INT
from rl_doctor.store.batch import Batch

WIDTHS = {
    "few": (2, 3, 1, 4, 5),
    "more than 16 bits tell apart": (9, 60, 60, 60, 9),
    "more than 64 bits tell apart": (2, MISSING_INT["int32"], 3, MISSING_INT["int64"], 2),
}


@pytest.mark.parametrize("widths", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize("rows", [0, 1, 500])
def test_each_combination_comes_once_in_order_with_its_rows(widths: tuple[int, ...], rows: int) -> None:
    random = np.random.default_rng(0)
    columns: dict[str, NDArray[np.int64]] = {}
    for name, width in zip(MICROBATCH_OF_RANK, widths, strict=True):
        values = random.integers(0, abs(width) if width > 0 else 3, rows) - 1
        columns[name] = np.where(values == 0, width, values) if width < 0 else values
    found = keyed_rows(Batch(1, columns, np.zeros(rows + 1, np.int64)), MICROBATCH_OF_RANK)
    expected: dict[tuple[int, ...], list[int]] = {}
    for row in range(rows):
        expected.setdefault(tuple(int(columns[name][row]) for name in MICROBATCH_OF_RANK), []).append(row)
    assert [(key, at.tolist()) for key, at in found] == sorted(expected.items())


def test_a_column_that_is_not_there_counts_as_zero() -> None:
    found = keyed_rows(Batch(1, {"rank": np.array([1, 0, 1])}, np.zeros(4, np.int64)), MICROBATCH_OF_RANK)
    assert [(key, at.tolist()) for key, at in found] == [((0, 0, 0, 0, 0), [1]), ((1, 0, 0, 0, 0), [0, 2])]
