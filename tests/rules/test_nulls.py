"""A null is unknown: it is told, and is no number that breaks. A NaN is one."""

from __future__ import annotations

import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_doctor import check, open_run
from rl_doctor.report.model import Finding
from rl_doctor.store.pack import pack

_STEPS, _ROWS, _TOKENS = 12, 4, 8


def _written(path: Path, first: list[float | None] | None) -> Path:
    """A file of which the first row has ``first`` for its old log-probabilities."""
    rows = _STEPS * _ROWS
    logprob = [[-0.1 - 0.01 * ((row * 7 + token * 3) % 50) for token in range(_TOKENS)] for row in range(rows)]
    table = pa.table({
        "step": [1 + row // _ROWS for row in range(rows)],
        "logprob": pa.array(logprob, pa.list_(pa.float32())),
        "old_logprob": pa.array([first, *logprob[1:]], pa.list_(pa.float32())),
        "reward": [float(row % 2) for row in range(rows)],
    })  # fmt: skip
    pq.write_table(table, path)
    return path


def _found(path: Path) -> list[Finding]:
    return [found for found in check(open_run(path)).findings if found.code == "RLD601"]


@pytest.mark.parametrize("first", [None, [None, *[-0.1] * 7]], ids=["a row", "a token"])
def test_nulls_are_told_and_are_no_error(tmp_path: Path, first: list[float | None] | None) -> None:
    path = _written(tmp_path / "run.parquet", first)
    pack(open_run(path), tmp_path / "packed.parquet")
    for one in (path, tmp_path / "packed.parquet"):
        (found,) = _found(one)
        assert found.severity == "warning"
        number = _TOKENS if first is None else 1
        assert found.message == (
            f"old_logprob is null at {number} of {_STEPS * _ROWS * _TOKENS} trained tokens, from step 1 on (1 of {_STEPS} steps)"
        )


def test_a_nan_is_the_first_number_that_breaks(tmp_path: Path) -> None:
    (found,) = _found(_written(tmp_path / "run.parquet", [math.nan, *[-0.1] * 7]))
    assert found.severity == "error"
    assert found.message.startswith("old_logprob is not finite from step 1 on")
