"""How many rows each rank has in a step."""

from __future__ import annotations

from typing import Final

import numpy as np

from rl_doctor.analyzer import slices
from rl_doctor.analyzer.derive import real_rows
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Named, Sums
from rl_doctor.store.batch import Batch

_NEEDS: Final = ("rank",)


@reduction(zero=Named({}), needs=_NEEDS, optional=("is_padding",))
def _rows(batch: Batch) -> Named:
    real = real_rows(batch)
    return slices.of_sequences(batch, "rank", real[np.newaxis].astype(np.float64), real.astype(np.int64))


def _number(sums: Sums) -> float:
    return sums[0].value


metric(
    "data.rows_of_rank.", _rows, _number, part=None, unit="rows", source="counting over sequences",
    formula="number of rows of each rank",
    doc="Rows of each rank that are not there only to fill the batch.",
)  # fmt: skip
