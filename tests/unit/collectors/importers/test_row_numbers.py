"""Rows whose step is no number to go by, and runs that stand one after the other in one file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_doctor import open_run
from rl_doctor.errors import NothingToJudgeError
from rl_doctor.store.run import Run

ROWS = 60


def log(path: Path, records: Iterable[dict[str, Any]]) -> Run:
    (path / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return open_run(path / "log.jsonl")


def mixed(step: Callable[[int], Any]) -> list[dict[str, Any]]:
    """Rows of training, and of an evaluation after every tenth."""
    rows: list[dict[str, Any]] = []
    for row in range(1, ROWS + 1):
        rows.append({"step": step(row), "reward": row / 100, "kl": 0.1})
        if row % 10 == 0:
            rows.append({"step": step(row), "eval_reward": row / 200, "epoch": row / 50})
    return rows


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (lambda _: 1, "the step is 1 in every row"),
        (lambda _: 0, "the step is 0 in every row"),
        (lambda _: True, "the step is 1 in every row"),
        (lambda _: None, "no row has a step"),
        (lambda row: row / 100, "the steps are fractions (0.01 to 0.6): their order counts, as steps 1 to 60"),
        (lambda row: row + 0.5, "the steps are fractions"),
        (lambda row: row / 2, "the steps are fractions"),
        (lambda row: row * 10**18, "too large for a step"),
    ],
)
def test_every_row_is_read_and_evaluations_stand_beside_the_training(
    tmp_path: Path, step: Callable[[int], Any], said: str
) -> None:
    run = log(tmp_path, mixed(step))
    steps, values = run.metrics().series("reward")
    assert steps.tolist() == list(range(1, ROWS + 1))
    np.testing.assert_allclose(values, np.arange(1, ROWS + 1) / 100)
    assert run.metrics().series("eval_reward", "eval")[0].tolist() == list(range(10, ROWS + 1, 10))
    assert "step" not in run.metrics().names()
    assert any(said in note for note in run.facts.notes)


def test_an_evaluation_between_two_fractions_belongs_to_the_row_before(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []
    for row in range(1, 21):
        rows += [{"step": row / 10, "reward": 1.0 / row}, {"step": row / 10 + 0.01, "eval_reward": 0.5}]
    found = log(tmp_path, rows).metrics()
    assert found.series("reward")[0].tolist() == found.series("eval_reward", "eval")[0].tolist() == list(range(1, 21))


def test_another_counter_is_taken_where_the_step_stands(tmp_path: Path) -> None:
    run = log(tmp_path, ({"step": 1, "iteration": 5 * row, "reward": row / 10} for row in range(1, 21)))
    assert run.metrics().steps().tolist() == list(range(5, 101, 5))
    assert run.metrics().names() == ("reward",)


def test_few_rows_of_one_step_are_of_one_step(tmp_path: Path) -> None:
    assert log(tmp_path, ({"step": 7, "reward": row / 10} for row in range(3))).metrics().steps().tolist() == [7]


def test_most_rows_without_a_step_stand_out(tmp_path: Path) -> None:
    rows = [{"reward": row / 10, **({"step": row} if row % 4 == 0 else {})} for row in range(1, 41)]
    assert "MOST ROWS LEFT OUT: 30 of 40" in "; ".join(log(tmp_path, rows).facts.notes)


def test_texts_in_place_of_numbers_are_no_pass(tmp_path: Path) -> None:
    rows = [{"step": row, **{f"metric{index}": f"{row} pts" for index in range(9)}} for row in range(20)]
    with pytest.raises(NothingToJudgeError, match="metric0"):
        log(tmp_path, rows)
    with pytest.raises(NothingToJudgeError, match=r"nearly all values are texts.*metric0"):
        log(tmp_path, [{**row, "lr": 1e-6} for row in rows])


def rewards(steps: Iterable[int], offset: float) -> list[dict[str, Any]]:
    return [{"step": step, "reward": offset + step / 100, "kl": offset + 0.01 * step} for step in steps]


def test_of_two_runs_one_after_the_other_the_last_is_judged(tmp_path: Path) -> None:
    run = log(tmp_path, [*rewards(range(1, 101), 0.0), *rewards(range(1, 91), 0.5)])
    assert run.metrics().steps().tolist() == list(range(1, 91))
    assert any("two runs one after the other" in note for note in run.facts.notes)


@pytest.mark.parametrize("back", [90, 60, 30])
def test_a_run_that_was_resumed_stays_one(tmp_path: Path, back: int) -> None:
    run = log(tmp_path, [*rewards(range(1, 101), 0.0), *rewards(range(back, 151), 0.5)])
    assert run.metrics().steps().tolist() == list(range(1, 151))
    assert any("as after a restart" in note for note in run.facts.notes)


def test_a_run_that_was_logged_twice_is_one(tmp_path: Path) -> None:
    run = log(tmp_path, [*rewards(range(1, 101), 0.0), *rewards(range(1, 91), 0.0)])
    assert run.metrics().steps().tolist() == list(range(1, 101))
