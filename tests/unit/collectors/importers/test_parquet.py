"""Histories of scalars in Parquet: wide, long, with gaps, under a tracker's names, and what is none."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_doctor import open_run
from rl_doctor.errors import InputError, NothingToJudgeError


def write(path: Path, columns: Mapping[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(dict(columns)), path, **options)
    return path


def test_a_history_is_read_as_metrics(tmp_path: Path) -> None:
    table = {"step": [2, 1], "actor/ppo_kl": [0.1, math.nan], "reward": [1.0, 0.5], "entropy": [2.0, 3.0], "note": ["x", "y"]}
    run = open_run(write(tmp_path / "run.parquet", table, row_group_size=1))
    assert run.columns == frozenset()
    assert list(run.batches(["reward"])) == []
    log = run.metrics()
    assert log.names() == ("actor/ppo_kl", "entropy", "reward")
    assert log.series("reward")[1].tolist() == [0.5, 1.0]
    assert math.isnan(log.series("actor/ppo_kl")[1][0])
    assert (run.facts.first_step, run.facts.last_step, run.facts.sequences) == (1, 2, 0)
    assert "read as a history of scalars in Parquet" in run.facts.notes


def test_a_null_is_a_gap_whatever_the_type(tmp_path: Path) -> None:
    table = {
        "step": pa.array([1, 2, 3], pa.int32()),
        "a": pa.array([1, None, 3], pa.int64()),
        "b": pa.array([None, 0.5, None], pa.float32()),
        "c": pa.array([True, None, False]),
        "d": pa.array(["0.5", None, "nan"]),
        "e": pa.array([None, None, None], pa.float64()),
    }
    log = open_run(write(tmp_path / "run.parquet", table)).metrics()
    assert {name: log.series(name)[0].tolist() for name in log.names()} == {"a": [1, 3], "b": [2], "c": [1, 3], "d": [1, 3]}
    assert log.series("c")[1].tolist() == [1.0, 0.0]


@pytest.mark.parametrize("name", ["global_step", "train/global_step", "Step", "_step", "trainer/global_step"])
def test_other_names_of_the_step(tmp_path: Path, name: str) -> None:
    log = open_run(write(tmp_path / "run.parquet", {name: [10, 20], "loss": [1.0, 2.0]})).metrics()
    assert log.names() == ("loss",)
    assert log.series("loss")[0].tolist() == [10, 20]


def test_an_export_of_wandb(tmp_path: Path) -> None:
    rows = [
        {"_step": 0, "_runtime": 1.0, "_timestamp": 1.7e9, "train/global_step": 10, "train/loss": 0.5, "samples": None},
        {"_step": 1, "_runtime": 2.0, "_timestamp": 1.7e9, "train/global_step": 10, "eval/accuracy": 0.25},
        {"_step": 2, "_runtime": 3.0, "_timestamp": 1.7e9, "train/global_step": 20, "train/loss": 0.4, "samples": {"path": "x"}},
    ]
    pq.write_table(pa.Table.from_pylist(rows, pa.schema({
        "_step": pa.int64(), "_runtime": pa.float64(), "_timestamp": pa.float64(), "train/global_step": pa.int64(),
        "train/loss": pa.float64(), "eval/accuracy": pa.float64(), "samples": pa.struct({"path": pa.string()}),
    })), tmp_path / "run.parquet")  # fmt: skip
    log = open_run(tmp_path / "run.parquet").metrics()
    assert set(log.points) == {("train/loss", "train"), ("eval/accuracy", "eval")}
    assert log.series("train/loss")[0].tolist() == [10, 20]
    assert log.series("eval/accuracy", "eval")[0].tolist() == [10]


@pytest.mark.parametrize("key", ["name", "metric", "tag"])
def test_one_row_per_step_and_metric(tmp_path: Path, key: str) -> None:
    table = {
        "step": [1, 1, 2, 2],
        key: ["a", "b", "a", "b"],
        "value": [1.0, 2.0, 3.0, None],
        "split": ["train", "eval", None, "eval"],
    }
    log = open_run(write(tmp_path / "run.parquet", table)).metrics()
    assert log.series("a")[1].tolist() == [1.0, 3.0]
    assert log.series("eval/b", "eval")[1].tolist() == [2.0]


def test_a_restart_or_an_evaluation_makes_no_sequences_of_a_history(tmp_path: Path) -> None:
    table = {"step": [1, 2, 3, 4, 3, 4, 5], "reward": [1.0, 2.0, 3.0, 4.0, 30.0, 40.0, 50.0], "loss": [0.5] * 7}
    run = open_run(write(tmp_path / "run.parquet", table))
    assert run.metrics().series("reward")[1].tolist() == [1.0, 2.0, 30.0, 40.0, 50.0]
    assert any("as after a restart" in note for note in run.facts.notes)


def test_rewards_per_sequence_are_no_history(tmp_path: Path) -> None:
    run = open_run(write(tmp_path / "run.parquet", {"step": [1, 1, 2], "reward": [1.0, 2.0, 3.0], "loss": [0.1, 0.1, 0.2]}))
    assert run.columns == {"step", "reward"}
    assert run.facts.unknown_columns == ("loss",)


def test_the_index_of_pandas_is_no_metric(tmp_path: Path) -> None:
    frame = pd.DataFrame({"step": [1, 2, 3], "loss": [0.5, 1.0, 2.0]})
    frame[frame["step"] > 1].to_parquet(tmp_path / "run.parquet", index=True)
    assert open_run(tmp_path / "run.parquet").metrics().names() == ("loss",)


def test_columns_without_a_value_are_named(tmp_path: Path) -> None:
    nan = float("nan")
    table = {"step": [1, 2], "loss": [0.5, 0.4], "reward": [nan, nan], "lr": [None, None], "kl": [0.1, nan]}
    assert open_run(write(tmp_path / "run.parquet", table)).facts.empty_columns == ("learning_rate", "reward")


def test_nothing_but_nan_is_nothing_to_judge(tmp_path: Path) -> None:
    with pytest.raises(NothingToJudgeError, match="without a value that is not NaN"):
        open_run(write(tmp_path / "run.parquet", {"step": [1, 2], "loss": [math.nan, math.nan]}))


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "run.parquet", {"step": list(range(1000)), "loss": [0.5] * 1000})
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(InputError, match=r"run\.parquet: "):
        open_run(path)
