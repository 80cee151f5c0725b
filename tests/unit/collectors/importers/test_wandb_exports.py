"""Histories as wandb exports them: the Parquet files of ``download_history_exports``, and ``run.history()`` as CSV."""

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_doctor import open_run


def table() -> pa.Table:
    rows: list[dict[str, Any]] = [
        {
            "_step": row, "_timestamp": 1.7e9 + row, "_runtime": float(row), "train/global_step": row // 2 + 1,
            "train/loss": row / 2 if row % 2 == 0 else None, "profiling/time": 0.5 if row % 2 else None,
            "eval/reward": 1.0 if row % 10 == 9 else None,
        }
        for row in range(40)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows)


@pytest.mark.parametrize("form", ["parquet", "parts", "csv"])
def test_the_history_of_a_run(tmp_path: Path, form: str) -> None:
    path = tmp_path
    if form == "parts":
        pq.write_table(table().slice(0, 20), tmp_path / "0000.runhistory.parquet")
        pq.write_table(table().slice(20), tmp_path / "0001.runhistory.parquet")
    elif form == "parquet":
        path = tmp_path / "0000.runhistory.parquet"
        pq.write_table(table(), path)
    else:
        path = tmp_path / "history.csv"
        pd.DataFrame(table().to_pylist()).to_csv(path)
    log = open_run(path).metrics()
    assert log.series("train/loss")[0].tolist() == list(range(1, 21))
    assert log.series("train/loss")[1].tolist() == [float(step) for step in range(20)]
    assert log.series("profiling/time")[0].tolist() == list(range(1, 21))
    assert log.series("eval/reward", "eval")[0].tolist() == [5, 10, 15, 20]
    assert not {"_step", "_timestamp", "_runtime"} & set(log.names())
