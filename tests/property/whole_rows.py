"""Random rows that have every column of the schema."""

from __future__ import annotations

import random
from typing import Any

from rl_doctor.schema import CONTEXT_COLUMNS, SEQUENCE_COLUMNS, TOKEN_COLUMNS
from tests.unit.analyzer.memory import Row
from tests.unit.analyzer.rows import random_rows, single


def filled(seed: int, *, spoiled: bool = True) -> list[Row]:
    """Random rows with every column that there is."""
    rng = random.Random(seed)
    rows = random_rows(seed, rollouts=2, spoiled=spoiled)
    known = (*SEQUENCE_COLUMNS, *TOKEN_COLUMNS, *CONTEXT_COLUMNS)
    for column in known:
        if any(column.name in row for row in rows):
            continue
        for row in rows:
            size = len(row["logprob"])
            many = [_value(rng, column.name, column.dtype, size) for _ in range(max(size, 1))]
            row[column.name] = many[:size] if column in TOKEN_COLUMNS else many[0]
    for row in rows:
        row["loss_mask"] = [kept or rng.random() < 0.3 for kept in row["response_mask"]]
    return rows


def _value(rng: random.Random, name: str, dtype: str, size: int) -> Any:
    if dtype == "string":
        return {"role": rng.choice([-1, 0, 1]), "data_source": rng.choice("ab")}.get(name, rng.choice("xyz"))
    if dtype == "bool":
        return rng.random() < 0.1
    if dtype.startswith("int"):
        return {"stored_length": size, "rank": rng.randint(0, 1), "padded_width": 8}.get(name, rng.randint(1, 3))
    return single(rng.gauss(0.0, 1.0))
