"""Where responses are of which no token is trained."""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np

from rl_doctor.analyzer import slices
from rl_doctor.analyzer.derive import per_sequence_counts, real_rows
from rl_doctor.analyzer.registry import Reduction, metric
from rl_doctor.analyzer.states import Named, mean
from rl_doctor.store.batch import Batch

_OPTIONAL: Final = ("response_length", "is_padding")


def _by(by: str, batch: Batch) -> Named:
    rows = real_rows(batch)
    if (length := batch.get("response_length")) is not None:
        rows = rows & (length != 0)
    empty = rows & (per_sequence_counts(batch) == 0)
    return slices.of_sequences(batch, by, empty[np.newaxis].astype(np.float64), rows.astype(np.int64))


for _slice in ("rank", "source"):
    metric(
        f"mask.empty_by.{_slice}.",
        Reduction(partial(_by, _slice), Named({}), ("response_mask", *slices.SEQUENCE_SLICES[_slice][0]), _OPTIONAL, "token"),
        mean, part=0, unit="1", source="where a fault concentrates tells its cause",
        formula="share_i[Ti empty] of each part", doc=f"Share of rows without a trained token, by {_slice}.",
    )  # fmt: skip
