"""Metrics as text, JSON, CSV and Parquet."""

from __future__ import annotations

import csv
import io
import json
import math

import numpy as np
import pyarrow.parquet as pq

from rl_doctor.analyzer.engine import Analysis
from rl_doctor.analyzer.series import Series
from rl_doctor.cli import metric_tables


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
