"""Several runs in one file, told apart by a column, and columns that are called steps and count none."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_doctor import open_run
from rl_doctor.errors import InputError

Rows = Sequence[dict[str, Any]]


def as_lines(path: Path, rows: Rows) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def as_list(path: Path, rows: Rows) -> None:
    path.write_text(json.dumps(rows))


def as_columns(path: Path, rows: Rows) -> None:
    path.write_text(json.dumps({name: [row[name] for row in rows] for name in rows[0]}))


def as_table(path: Path, rows: Rows) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def as_parquet(path: Path, rows: Rows) -> None:
    pq.write_table(pa.Table.from_pylist(list(rows)), path)


WRITERS = [as_lines, as_list, as_columns, as_table, as_parquet]


def runs(column: str, labels: Sequence[Any], steps: int = 30) -> Rows:
    return [
        {column: label, "step": step, "loss": 1.0 / (place + step + 1)}
        for place, label in enumerate(labels)
        for step in range(steps)
    ]


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("column", ["algo", "method", "experiment", "run_id", "Variant"])
def test_runs_that_a_text_tells_apart_are_listed(tmp_path: Path, write: Callable[[Path, Rows], None], column: str) -> None:
    path = tmp_path / "log"
    write(path, runs(column, ["ppo", "grpo", "dpo x"]))
    with pytest.raises(InputError, match=r"several runs \(dpo x, grpo, ppo\).*give one of them as log#dpo x"):
        open_run(path)
    chosen = open_run(tmp_path / "log#grpo").metrics()
    assert chosen.series("loss")[0].tolist() == list(range(30))
    assert chosen.series("loss")[1].tolist() == [1.0 / (step + 2) for step in range(30)]
    with pytest.raises(InputError, match="no run 'sft' among its runs"):
        open_run(tmp_path / "log#sft")


@pytest.mark.parametrize("write", WRITERS)
def test_runs_that_a_seed_tells_apart_are_listed(tmp_path: Path, write: Callable[[Path, Rows], None]) -> None:
    write(tmp_path / "log", runs("seed", [1, 2, 42]))
    with pytest.raises(InputError, match=r"\(1, 2, 42\), told apart by 'seed': the steps start over with each"):
        open_run(tmp_path / "log")
    assert len(open_run(tmp_path / "log#42").metrics().series("loss")[0]) == 30


def test_runs_whose_rows_alternate_are_listed(tmp_path: Path) -> None:
    rows = sorted(runs("method", ["a", "b"]), key=lambda row: int(row["step"]))
    as_lines(tmp_path / "log", rows)
    with pytest.raises(InputError, match=r"several runs \(a, b\)"):
        open_run(tmp_path / "log")


def test_lists_of_records_of_several_runs_are_listed(tmp_path: Path) -> None:
    own = [{"step": step, "reward": step / 9} for step in range(9)]
    better = [{"step": step, "reward": step / 7} for step in range(9)]
    (tmp_path / "log").write_text(json.dumps({"baseline": own, "ours": better}))
    with pytest.raises(InputError, match=r"several runs \(baseline, ours\)"):
        open_run(tmp_path / "log")
    assert len(open_run(tmp_path / "log#ours").metrics().series("reward")[0]) == 9
    (tmp_path / "one").write_text(json.dumps({"losses": [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 2.0}], "rewards": own}))
    assert open_run(tmp_path / "one").metrics().names() == ("loss", "reward")
    (tmp_path / "same").write_text(json.dumps({"history": own, "series": {"reward": own}}))
    assert len(open_run(tmp_path / "same").metrics().series("reward")[0]) == 9
    (tmp_path / "two").write_text(json.dumps({"train": own, "eval": own}))
    assert open_run(tmp_path / "two").metrics().names("eval") == ("eval/reward",)


@pytest.mark.parametrize(
    "rows",
    [
        [{"run_id": "a" if step < 60 else "b", "step": step, "loss": 0.5} for step in range(90)],
        [{"run_id": "a", "step": step, "loss": 0.5} for step in range(60)]
        + [{"run_id": "b", "step": step, "loss": 0.25} for step in range(50, 90)],
        [{"name": f"sample {row}", "step": row // 8, "loss": row / 9} for row in range(720)],
        [{"seed": row * 7919, "step": row // 8, "loss": row / 9} for row in range(720)],
        [{"model": "policy", "step": row, "loss": 0.5} for row in range(90)],
    ],
    ids=["goes on", "was resumed", "samples", "seeds of samples", "one label"],
)
def test_a_label_that_tells_no_runs_apart_is_no_matter(tmp_path: Path, rows: Rows) -> None:
    as_lines(tmp_path / "log", rows)
    assert open_run(tmp_path / "log").metrics().steps().tolist() == list(range(90))


LENGTHS = [50, 37, 50, 12, 50, 44, 50, 50, 21, 50]


@pytest.mark.parametrize("axis", ["episode", "iteration", "update", "epoch"])
@pytest.mark.parametrize("lengths", [LENGTHS * 3, [50] * 30, ([50] * 9 + [31]) * 3], ids=["vary", "stay", "stay mostly"])
@pytest.mark.parametrize("name", ["steps", "step"])
def test_the_length_of_an_episode_is_no_step(tmp_path: Path, axis: str, lengths: Sequence[int], name: str) -> None:
    as_lines(tmp_path / "log", [{axis: row, name: length, "reward": row / 10} for row, length in enumerate(lengths)])
    run = open_run(tmp_path / "log")
    steps, rewards = run.metrics().series("reward")
    assert rewards.tolist() == [row / 10 for row in range(30)]
    assert len(steps) == 30
    if axis != "epoch":
        assert steps.tolist() == list(range(30))
        assert f": the step is '{axis}'" in "; ".join(run.facts.notes)


def test_lengths_without_any_axis_leave_the_rows_to_be_counted(tmp_path: Path) -> None:
    as_lines(tmp_path / "log", [{"steps": length, "reward": row / 10} for row, length in enumerate(LENGTHS * 3)])
    run = open_run(tmp_path / "log")
    assert run.metrics().series("reward")[0].tolist() == list(range(1, 31))
    assert any("rows are counted from 1" in note for note in run.facts.notes)
