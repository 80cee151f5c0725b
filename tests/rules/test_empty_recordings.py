"""A mask that is 0 everywhere, of which a recording stores no token."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_doctor import Recorder, check, open_run
from rl_doctor.report.model import Report
from rl_doctor.store.pack import pack

_ROWS, _WIDTH = 8, 12


def _recorded(folder: Path, empty: range, steps: int = 4) -> Path:
    rng = np.random.default_rng(0)
    with Recorder(folder, info={"trainer": "custom", "algorithm": "grpo"}) as recorder:
        for step in range(1, steps + 1):
            logprob = -rng.exponential(1.0, (_ROWS, _WIDTH))
            mask = np.zeros((_ROWS, _WIDTH)) if step in empty else np.ones((_ROWS, _WIDTH))
            recorder.log_batch(
                step=step, logprob=logprob, old_logprob=logprob, advantage=rng.normal(size=(_ROWS, _WIDTH)),
                response_mask=mask, reward=rng.random(_ROWS), group=np.arange(_ROWS) // 4,
            )  # fmt: skip
    return folder


def _codes(report: Report) -> list[tuple[str, str]]:
    return [(found.code, found.severity) for found in report.findings]


@pytest.mark.parametrize("empty", [range(1, 5), range(2, 4)], ids=["every step", "some steps"])
def test_a_mask_that_is_0_everywhere_trains_nothing(tmp_path: Path, empty: range) -> None:
    folder = _recorded(tmp_path / "run", empty)
    pack(open_run(folder), tmp_path / "packed.parquet")
    for path in (folder, tmp_path / "packed.parquet"):
        report = check(open_run(path))
        assert _codes(report) == [("RLD016", "error")]
        assert "these steps train nothing" in report.findings[0].message
        assert not [note for note in report.run.notes if "response_mask" in note]


def test_a_mask_that_was_not_recorded_is_no_empty_one(tmp_path: Path) -> None:
    table = pa.table({
        "step": pa.array([1, 2], pa.int64()), "reward": pa.array([0.0, 1.0]),
        "response_mask": pa.array([None, None], pa.list_(pa.bool_())),
    })  # fmt: skip
    pq.write_table(table, tmp_path / "run.parquet")
    assert "RLD016" not in [found.code for found in check(open_run(tmp_path / "run.parquet")).findings]
