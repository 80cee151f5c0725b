"""What a run holds, as plain Python, so that two stores can be compared value by value."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from rl_doctor.schema import RunInfo
from rl_doctor.store.rows import Rows, is_token, splits_of
from rl_doctor.store.run import Run
from rl_doctor.store.writer import RunWriter


def plain(value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def contents(run: Run, *, max_tokens: int = 1 << 19) -> list[dict[str, Any]]:
    """One mapping per sequence, in the order of reading; token columns as lists, NaN as text."""
    found = []
    last = None
    for batch in run.batches(run.columns, max_tokens=max_tokens):
        assert last is None or batch.step >= last
        last = batch.step
        assert (batch.columns["step"] == batch.step).all()
        assert set(batch.columns) == set(run.columns)
        assert batch.n_tokens <= max_tokens or batch.n_sequences == 1
        for index in range(batch.n_sequences):
            start, stop = batch.splits[index], batch.splits[index + 1]
            found.append(
                {
                    name: [plain(value) for value in values[start:stop]] if is_token(name) else plain(values[index])
                    for name, values in batch.columns.items()
                }
            )
    return found


def rows(step: Any, lengths: list[int], **columns: Any) -> Rows:
    """Rows with the given lengths; token columns not given are a ramp."""
    splits = splits_of(np.array(lengths, np.int64))
    n = int(splits[-1])
    found = {"step": np.broadcast_to(np.asarray(step, np.int64), (len(lengths),)).copy()}
    found["logprob"] = -np.arange(n, dtype=np.float32) / 8
    found["response_mask"] = np.ones(n, np.bool_)
    return Rows(found | columns, splits)


def write(path: Path, table: dict[str, Any], **settings: Any) -> Path:
    pd.DataFrame(table).to_parquet(path, **settings)
    return path


def write_arrow(path: Path, table: dict[str, pa.Array], **settings: Any) -> Path:
    pq.write_table(pa.table(table), path, **settings)
    return path


def record(path: Path, parts: list[Rows], *, info: RunInfo | None = None, rank: int = 0, session: int | None = None) -> RunWriter:
    writer = RunWriter(path, info or RunInfo(trainer="custom"), rank=rank, session=session)
    for part in parts:
        writer.write_part(part, completes=sorted(set(part.columns["step"].tolist())))
    return writer
