"""Metrics as text, JSON, CSV and Parquet."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from rl_doctor import open_run
from rl_doctor.analyzer.engine import Analysis, analyze
from rl_doctor.analyzer.series import Series
from rl_doctor.cli import metric_tables
from tests.simulation.healthy import KINDS
from tests.simulation.sampled import sampled


def series(name: str, steps: list[int], values: list[float], counts: list[int]) -> Series:
    return Series(name, "nat", np.array(steps, np.int64), np.array(values), np.array(counts, np.int64))


ANALYSIS = Analysis(
    {
        "a.x": series("a.x", [1, 2, 4], [0.1, math.nan, math.inf], [5, 3, 1]),
        "b.y": series("b.y", [2, 3], [1 / 3, math.nan], [2, 0]),
        "c.empty": series("c.empty", [], [], []),
    },
    {"d.z": ("ref_logprob", "config.kl_coef")},
)


def test_json() -> None:
    assert json.loads(metric_tables.to_json(ANALYSIS)) == {
        "steps": [1, 2, 3, 4],
        "metrics": {"a.x": [0.1, "NaN", None, "Infinity"], "b.y": [None, 1 / 3, None, None]},
        "units": {"a.x": "nat", "b.y": "nat"},
        "missing": {"d.z": ["ref_logprob", "config.kl_coef"]},
    }


def test_csv_keeps_every_digit_and_leaves_the_absent_empty() -> None:
    read = list(csv.reader(io.StringIO(metric_tables.to_csv(ANALYSIS))))
    assert read == [["step", "a.x", "b.y"], ["1", "0.1", ""], ["2", "nan", repr(1 / 3)], ["3", "", ""], ["4", "inf", ""]]


def test_parquet_has_nulls_where_there_is_nothing() -> None:
    table = pq.read_table(io.BytesIO(metric_tables.to_parquet(ANALYSIS)))
    assert table.column_names == ["step", "a.x", "b.y"]
    assert table["b.y"].to_pylist() == [None, 1 / 3, None, None]
    assert table["a.x"].null_count == 1
    assert math.isnan(table["a.x"][1].as_py())


def test_text_says_what_could_not_be_computed() -> None:
    assert metric_tables.to_text(ANALYSIS, 80) == (
        "step  a.x     b.y\n"
        "   1  0.1       -\n"
        "   2  NaN  0.3333\n"
        "   3    -       -\n"
        "   4  inf       -\n"
        "\n"
        "Not computed:\n"
        "d.z  needs ref_logprob, config.kl_coef\n"
    )  # fmt: skip


def test_text_breaks_into_tables_that_fit() -> None:
    many = Analysis({f"topic.metric_{index}": series("m", [1], [0.5], [1]) for index in range(9)}, {})
    lines = metric_tables.to_text(many, 60).splitlines()
    assert max(map(len, lines)) <= 60
    assert sum(line.startswith("step") for line in lines) == 3


SAMPLED = replace(ANALYSIS, sampled_steps=np.array([2, 3]), bare_steps=np.array([4]), estimated=frozenset({"a.x"}))
"""Of two of the steps only some tokens are there; one metric reads tokens and has a value at one of them."""


def test_json_names_the_steps_of_estimates() -> None:
    document = json.loads(metric_tables.to_json(SAMPLED))
    assert document["estimated"] == {"a.x": [2]}
    assert {name: value for name, value in document.items() if name != "estimated"} == json.loads(metric_tables.to_json(ANALYSIS))


def test_csv_names_the_estimates_in_a_last_column() -> None:
    plain = list(csv.reader(io.StringIO(metric_tables.to_csv(ANALYSIS))))
    marked = list(csv.reader(io.StringIO(metric_tables.to_csv(SAMPLED))))
    assert [row[:-1] for row in marked] == plain
    assert [row[-1] for row in marked] == ["estimated", "", "a.x", "", ""]


def test_parquet_names_the_steps_of_estimates_beside_the_column() -> None:
    table = pq.read_table(io.BytesIO(metric_tables.to_parquet(SAMPLED)))
    plain = pq.read_table(io.BytesIO(metric_tables.to_parquet(ANALYSIS)))
    assert repr(table.to_pydict()) == repr(plain.to_pydict())
    assert json.loads(table.schema.field("a.x").metadata[b"estimated"]) == [2]
    assert not table.schema.field("b.y").metadata


def test_text_marks_estimates() -> None:
    lines = metric_tables.to_text(SAMPLED, 80).splitlines()
    assert lines[2].split() == ["2", "~NaN", "0.3333"]
    assert lines[1].split() == ["1", "0.1", "-"]
    assert "~ an estimate: the tokens of only some sequences were kept at that step" in lines
    assert "~" not in metric_tables.to_text(ANALYSIS, 80)


def test_estimates_of_a_run_whose_tokens_were_sampled(tmp_path: Path) -> None:
    run = sampled(KINDS["on_policy"](0), 0.5)
    path = run.write(tmp_path / "run.parquet")
    document = json.loads(metric_tables.to_json(analyze(open_run(path))))
    assert document["estimated"]["policy.entropy"] == np.unique(run.arrays["step"]).tolist()
    assert "reward.mean" not in document["estimated"]
