"""Logprobs that lie on the grid of a half-precision type, looked for at one token of each row."""

from __future__ import annotations

from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import first_tokens
from rl_doctor.analyzer.registry import Reduction, metric, reduction
from rl_doctor.analyzer.states import Sum, Sums, mean
from rl_doctor.schema import LOGPROBS
from rl_doctor.store.batch import Batch

_TYPES: Final = {"bfloat16": 0xFFFF, "float16": 0x1FFF}
"""Type -> the lower bits of a float32 that it has not."""


def _counted(column: str) -> Reduction:
    @reduction(zero=Sums(), needs=(column,))
    def counts(batch: Batch) -> Sums:
        values = first_tokens(batch, column).astype(np.float32)
        values = values[np.isfinite(values) & (values != 0.0)]
        bits = values.view(np.uint32)
        return Sums(tuple(Sum.counted(int(np.count_nonzero((bits & lower) == 0)), values.size) for lower in _TYPES.values()))

    return counts


for _column in LOGPROBS:
    _of = _counted(_column)
    for _part, _type in enumerate(_TYPES):
        metric(
            f"data.{_column}_{_type}_frac",
            _of,
            mean,
            part=_part,
            unit="1",
            source="a float32 rounded to half precision ends in zeros",
            formula=f"share_i[{_column} = {_type}({_column})], first trained token of each row, {_column} != 0",
            doc=f"Share of rows whose first trained token has a {_column} that {_type} can hold exactly.",
        )
