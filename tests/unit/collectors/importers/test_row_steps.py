"""Which of a log's numbers is the step of a row."""

import math

import numpy as np

from rl_doctor.collectors.importers.columns import Columns
from rl_doctor.collectors.importers.row_steps import row_steps

_NAN = math.nan


def steps_of(rows: list[dict[str, float]], axes: tuple[str, ...] = ()) -> tuple[list[float], set[str]]:
    columns = Columns()
    for row in rows:
        columns.add(row)
    steps, names = row_steps(columns.take(), columns.rows, axes)
    return steps.tolist(), set(names)


def test_the_counter_is_the_step_where_it_agrees() -> None:
    rows: list[dict[str, float]] = [{"_step": 0, "val": 1.0}]
    rows += [{"_step": 1, "training/global_step": 1}, {"_step": 2, "training/global_step": 2}]
    assert steps_of(rows) == ([0.0, 1.0, 2.0], {"_step", "training/global_step"})


def test_a_row_between_two_steps_is_at_the_one_before_and_none_is_before_the_first() -> None:
    rows: list[dict[str, float]] = [
        {"_step": row, **({"train/global_step": row * 5} if row in (2, 4) else {"x": 1.0})} for row in range(6)
    ]
    assert steps_of(rows)[0] == [10.0, 10.0, 10.0, 10.0, 20.0, 20.0]


def test_without_a_counter_a_row_without_a_step_has_none() -> None:
    steps, names = steps_of([{"step": 1}, {"step": 2}, {"runtime": 3.0}])
    np.testing.assert_array_equal(steps, [1.0, 2.0, _NAN])
    assert names == {"step"}


def test_an_axis_beside_the_step_counts_where_a_row_has_no_other() -> None:
    rows: list[dict[str, float]] = []
    for step in range(6):
        rows += [{"_step": 2 * step, "rollout/step": step}, {"_step": 2 * step + 1, "train/step": step}]
    assert steps_of(rows) == ([float(step // 2) for step in range(12)], {"_step", "train/step", "rollout/step"})


def test_an_axis_that_counts_something_else_is_no_step() -> None:
    rows: list[dict[str, float]] = []
    for step in range(20):
        rows += [{"_step": 2 * step, "train/step": 4 * step + 4}, {"_step": 2 * step + 1, "rollout/step": step}]
    steps, names = steps_of(rows)
    assert steps == [float(4 * (row // 2) + 4) for row in range(40)]
    assert names == {"_step", "train/step"}


def test_an_axis_that_the_log_names_counts_however_few_rows_have_it() -> None:
    rows = [{"_step": row, **({"mine": row // 30} if row % 30 == 29 else {"x": 1.0})} for row in range(90)]
    assert steps_of(rows, ("mine",))[0][-1] == 2.0
    assert steps_of(rows)[0][-1] == 89.0


def test_a_number_in_few_rows_is_no_step_beside_a_counter() -> None:
    rows = [{"_step": row, **({"iteration": row // 30} if row % 30 == 29 else {"x": 1.0})} for row in range(90)]
    assert steps_of(rows)[0] == [float(row) for row in range(90)]


def test_fractions_and_what_keeps_going_back_are_no_step() -> None:
    rows = [{"_step": row, "epoch": row / 7, "train_step": row % 3, "x": 1.0} for row in range(30)]
    assert steps_of(rows, ("epoch",))[0] == [float(row) for row in range(30)]


def test_nothing_is_a_step_where_there_is_none() -> None:
    steps, names = steps_of([{"x": 1.0}, {"x": 2.0}])
    np.testing.assert_array_equal(steps, [_NAN, _NAN])
    assert not names
