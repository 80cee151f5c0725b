"""From records to series: steps, splits, restarts, and numbers as logs write them."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_doctor.collectors.importers.numbers import number, whole
from rl_doctor.collectors.importers.rows import Row, assemble, row_of
from rl_doctor.errors import NothingToJudgeError
from rl_doctor.store.step_axis import step_names

LOG = Path("log.jsonl")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (3, 3.0), (True, 1.0), ("0.5", 0.5), (" -1e-6 ", -1e-6), ("np.float64(0.25)", 0.25), ("np.int64(3)", 3.0),
        ("inf", math.inf), ("-Infinity", -math.inf),
        ("tensor(0.5, device='cuda:0')", 0.5), ("tensor(2.)", 2.0), ([0.5], 0.5), ("12.5%", 0.125),
        ("True", 1.0), (10**400, math.inf),
    ],
)  # fmt: skip
def test_numbers(text: Any, value: float) -> None:
    assert number(text) == value


@pytest.mark.parametrize("text", ["nan", "NaN", "np.float64(nan)", "tensor(nan)", math.nan])
def test_nan_is_a_number(text: Any) -> None:
    found = number(text)
    assert found is not None
    assert math.isnan(found)


@pytest.mark.parametrize("text", [None, "", "abc", "1_000", [], [1, 2], {}, "np.float64()", "--1", "np.array([1, 2])"])
def test_what_is_no_number(text: Any) -> None:
    assert number(text) is None


@pytest.mark.parametrize(
    ("logged", "read"),
    [
        (["0,5", "0,25"], [0.5, 0.25]),
        (["1,5e-3", "2e-07", "-3"], [1.5e-3, 2e-7, -3.0]),
        (["0,125", "1,250"], [0.125, 1.25]),
        (["12,5%", "nan"], [0.125, math.nan]),
        (["1,024", "2,048"], None),
        (["0,5", "1,024.5"], None),
        (["0,5", "1,2,3"], None),
        (["0,5", "a,b"], None),
    ],
)  # fmt: skip
def test_a_comma_is_a_decimal_one_where_it_can_be_nothing_else(logged: list[str], read: list[float] | None) -> None:
    rows = [Row(step, {"a": value, "b": 1.0}) for step, value in enumerate(logged)]
    found = assemble(rows, LOG)
    if read is None:
        assert found.notes == ("no numbers, left out: a",)
    else:
        np.testing.assert_array_equal(found.log.series("a")[1], read)


@pytest.mark.parametrize(
    ("value", "step"), [(3, 3), ("7", 7), (2.0, 2), (0.5, None), (math.nan, None), ("x", None), (1e300, None)]
)
def test_steps_are_whole(value: Any, step: int | None) -> None:
    assert whole(value) == step


def test_the_surest_name_of_the_step_is_taken() -> None:
    assert step_names(["_step", "train/global_step", "loss"])[0] == "train/global_step"
    assert step_names(["loss"]) == []


def test_rows_of_training_and_evaluation_share_a_step() -> None:
    records: list[dict[str, Any]] = [
        {"step": 1, "loss": 0.5},
        {"step": 1, "eval_loss": 0.7},
        {"step": 2, "loss": None, "note": "text"},
    ]
    found = assemble((row_of(record, "step") for record in records), LOG)
    assert set(found.log.points) == {("loss", "train"), ("eval_loss", "eval")}
    assert found.log.series("loss")[0].tolist() == [1]
    assert found.notes == ("no numbers, left out: note",)


def test_a_restart_replaces_what_was_logged_before() -> None:
    rows = [Row(step, {"loss": value}) for step, value in [(1, 1.0), (2, 2.0), (3, 3.0), (2, 20.0), (3, 30.0), (4, 40.0)]]
    found = assemble(rows, LOG)
    steps, values = found.log.series("loss")
    np.testing.assert_array_equal(steps, [1, 2, 3, 4])
    np.testing.assert_array_equal(values, [1.0, 20.0, 30.0, 40.0])
    (note,) = found.notes
    assert "from 3 to 2" in note
    assert "2 repeated steps" in note


def test_rows_out_of_order_are_sorted_and_repeats_counted() -> None:
    assert "out of order" in assemble([Row(2, {"a": 1.0}), Row(1, {"a": 2.0})], LOG).notes[0]
    repeated = assemble([Row(1, {"a": 1.0}), Row(1, {"a": 2.0})], LOG)
    assert repeated.log.series("a")[1].tolist() == [2.0]
    assert "more than once" in repeated.notes[0]


def test_rows_without_any_step_are_counted_and_lone_ones_left_out() -> None:
    counted = assemble([Row(None, {"a": 1.0}), Row(None, {"a": 2.0})], LOG)
    assert counted.log.series("a")[0].tolist() == [1, 2]
    assert "counted from 1" in counted.notes[0]
    summary = assemble([Row(1, {"a": 1.0}), Row(None, {"train_runtime": 5.0})], LOG)
    assert summary.log.names() == ("a",)
    assert "1 row without a step" in summary.notes[0]


def test_a_gap_is_no_zero_and_nan_is_kept() -> None:
    found = assemble([Row(1, {"a": 1.0, "b": math.nan}), Row(2, {"a": 2.0}), Row(3, {"a": 3.0, "b": 1.0})], LOG)
    steps, values = found.log.series("b")
    assert steps.tolist() == [1, 3]
    assert math.isnan(values[0])


def test_nothing_to_judge_is_said() -> None:
    with pytest.raises(NothingToJudgeError, match=r"log.jsonl: no number"):
        assemble([Row(1, {"note": "text"})], LOG)
