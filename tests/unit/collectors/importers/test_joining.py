"""Several logs of one run: joined by step, folders, and what is told where they do not fit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_doctor import open_run
from rl_doctor.errors import DoctorError, InputError, SeveralRunsError
from tests.integration.bad_input import rows, write

Metric = Callable[[int], float]


def jsonl(path: Path, steps: Iterable[int], **metrics: Metric) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"step": step, **{name: metric(step) for name, metric in metrics.items()}} for step in steps]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def table(path: Path, steps: Iterable[int], **metrics: Metric) -> Path:
    lines = [",".join(map(str, (step, *(metric(step) for metric in metrics.values())))) for step in steps]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([",".join(["step", *metrics]), *lines, ""]))
    return path


def notes(*paths: Path) -> str:
    return "; ".join(open_run(*paths).facts.notes)


def rising(step: int) -> float:
    return step / 100


def falling(step: int) -> float:
    return 1 - step / 100


def test_files_with_other_metrics_are_joined(tmp_path: Path) -> None:
    first = jsonl(tmp_path / "a.jsonl", range(1, 51), loss=falling)
    second = table(tmp_path / "b.csv", range(5, 51, 5), accuracy=rising)
    log = open_run(first, second).metrics()
    assert log.names() == ("accuracy", "loss")
    assert len(log.series("accuracy")[0]) == 10
    assert "differ in" not in notes(first, second)
    assert "count different things" not in notes(first, second)


def test_values_that_differ_are_counted_with_an_example(tmp_path: Path) -> None:
    first = jsonl(tmp_path / "a", range(1, 11), loss=falling)
    second = jsonl(tmp_path / "b", range(1, 11), loss=lambda step: 5.0 if step > 7 else falling(step))
    assert open_run(first, second).metrics().series("loss")[1][-1] == 5.0
    assert "differ in 3 of 10 common values (first loss at step 8: 0.92 and 5): the later file counts" in notes(first, second)


def test_rounding_is_no_difference(tmp_path: Path) -> None:
    first = jsonl(tmp_path / "a", range(1, 11), loss=falling)
    second = jsonl(tmp_path / "b", range(1, 11), loss=lambda step: round(falling(step), 3))
    assert "differ in" not in notes(first, second)


def test_steps_that_do_not_overlap_are_told(tmp_path: Path) -> None:
    first, second = jsonl(tmp_path / "a", range(1, 11), loss=falling), jsonl(tmp_path / "b", range(11, 21), loss=falling)
    assert len(open_run(first, second).metrics().series("loss")[0]) == 20
    assert "(1-10)" in notes(first, second)
    assert "do not overlap" in notes(first, second)


def test_rollouts_against_optimizer_steps_are_told(tmp_path: Path) -> None:
    first = jsonl(tmp_path / "a", range(1, 51), reward=rising)
    second = jsonl(tmp_path / "b", range(4, 201, 4), loss=falling)
    assert "may count different things" in notes(first, second)


def test_the_same_rows_under_row_numbers_are_left_out(tmp_path: Path) -> None:
    state = jsonl(tmp_path / "a", range(5, 101, 5), loss=falling, kl=rising)
    rows = [{"loss": round(falling(step), 4), "kl": round(rising(step), 4)} for step in range(5, 101, 5)]
    (tmp_path / "b").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for order in ([state, tmp_path / "b"], [tmp_path / "b", state]):
        assert open_run(*order).metrics().steps().tolist() == list(range(5, 101, 5))
        assert f"{tmp_path / 'b'}: the same rows as in" in notes(*order)


def test_a_folder_with_one_log(tmp_path: Path) -> None:
    table(tmp_path / "run" / "metrics.csv", range(1, 11), loss=falling)
    (tmp_path / "run" / "README.md").write_text("# A run\n")
    (tmp_path / "run" / "config.json").write_text('{"lr": 1e-6}')
    assert open_run(tmp_path / "run").metrics().names() == ("loss",)
    assert "metrics.csv: read as a table of metrics (CSV)" in notes(tmp_path / "run")
    assert "2 other entries in the folder left out" in notes(tmp_path / "run")


def test_a_folder_of_logs_of_one_run(tmp_path: Path) -> None:
    table(tmp_path / "train.csv", range(1, 11), loss=falling, reward=rising)
    jsonl(tmp_path / "eval.jsonl", (5, 10), eval_reward=rising)
    jsonl(tmp_path / "log.jsonl", range(1, 11), loss=lambda step: round(falling(step), 2))
    run = open_run(tmp_path)
    assert set(run.metrics().points) == {("loss", "train"), ("reward", "train"), ("eval_reward", "eval")}


def test_a_folder_of_a_run_that_was_resumed(tmp_path: Path) -> None:
    table(tmp_path / "part0.csv", range(1, 61), loss=falling)
    table(tmp_path / "part1.csv", range(51, 121), loss=rising)
    assert open_run(tmp_path).metrics().steps().tolist() == list(range(1, 121))


def test_a_folder_of_several_runs_names_them(tmp_path: Path) -> None:
    table(tmp_path / "seed1.csv", range(1, 11), loss=falling)
    table(tmp_path / "seed2.csv", range(1, 21), loss=rising)
    with pytest.raises(InputError, match=r"logs of 2 runs: seed1\.csv \(steps 1-10\), seed2\.csv \(steps 1-20\); check them"):
        open_run(tmp_path)
    table(tmp_path / "runs" / "a" / "metrics.csv", range(1, 11), loss=falling)
    table(tmp_path / "runs" / "b" / "metrics.csv", range(1, 21), loss=rising)
    with pytest.raises(InputError, match=r"logs of 2 runs: a/metrics\.csv"):
        open_run(tmp_path / "runs")


def test_a_folder_with_recordings_is_no_log(tmp_path: Path) -> None:
    table(tmp_path / "metrics.csv", range(1, 11), loss=falling)
    for name in ("one.parquet", "two.parquet"):
        write(tmp_path / name, rows())
    pq.write_table(pa.table({"prompt": ["a", "b"]}), tmp_path / "prompts.parquet")
    with pytest.raises(SeveralRunsError, match=r"with 2 recorded runs and logs: one\.parquet, two\.parquet; name one"):
        open_run(tmp_path)
    (tmp_path / "metrics.csv").unlink()
    with pytest.raises(SeveralRunsError, match=r"with 2 recorded runs: one\.parquet, two\.parquet; name one"):
        open_run(tmp_path)
    (tmp_path / "one.parquet").unlink()
    (tmp_path / "two.parquet").unlink()
    table(tmp_path / "metrics.csv", range(1, 11), loss=falling)
    assert open_run(tmp_path).metrics().names() == ("loss",)


def test_a_table_that_is_no_log_of_the_run_is_left_out(tmp_path: Path) -> None:
    table(tmp_path / "metrics.csv", range(1, 11), loss=falling)
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps({"id": index, "label": index % 2}) + "\n" for index in range(99)))
    assert open_run(tmp_path).metrics().names() == ("loss",)


def test_a_folder_without_logs(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("print(1)\n")
    with pytest.raises(InputError, match="neither a run folder nor a folder of logs"):
        open_run(tmp_path)
    (tmp_path / "config.json").write_text('{"lr": 1e-6}')
    with pytest.raises(DoctorError, match="holds no log with numbers by step"):
        open_run(tmp_path)


def test_a_folder_whose_only_log_is_damaged_says_so(tmp_path: Path) -> None:
    (tmp_path / "log.json").write_text('[{"step": 1, "loss": ')
    with pytest.raises(InputError, match=r"log\.json: damaged or cut short"):
        open_run(tmp_path)


def test_logs_of_two_runs_are_not_joined(tmp_path: Path) -> None:
    first = jsonl(tmp_path / "a", range(1, 51), loss=falling, kl=rising, lr=lambda _: 1e-6)
    second = jsonl(tmp_path / "b", range(1, 41), loss=rising, kl=lambda step: step / 30, lr=lambda _: 1e-6)
    with pytest.raises(InputError, match=r"a and .*b: not of one run: \d+ of 120 common values differ \(first kl at step 1: "):
        open_run(first, second)


@pytest.mark.parametrize("start", [40, 60])
def test_a_part_that_was_resumed_is_joined_although_it_differs(tmp_path: Path, start: int) -> None:
    first, second = jsonl(tmp_path / "a", range(1, 61), loss=falling), jsonl(tmp_path / "b", range(start, 121), loss=rising)
    assert open_run(first, second).metrics().steps().tolist() == list(range(1, 121))


def test_the_same_run_counted_from_0_and_from_1_is_joined(tmp_path: Path) -> None:
    first = jsonl(tmp_path / "a", range(50), loss=lambda step: falling(step + 1))
    assert "the same rows as in" in notes(first, jsonl(tmp_path / "b", range(1, 51), loss=falling))


def test_logs_of_two_trainers_are_not_joined(tmp_path: Path) -> None:
    trl = {"completions/mean_length": rising, "frac_reward_zero_std": rising, "reward_std": rising, "num_tokens": rising}
    verl = {"actor/pg_loss": rising, "critic/score/mean": rising, "actor/ppo_kl": rising, "response_length/clip_ratio": rising}
    with pytest.raises(InputError, match="one is of TRL, the other of verl"):
        open_run(jsonl(tmp_path / "a", range(1, 20), **trl), jsonl(tmp_path / "b", range(1, 20), **verl))


def test_training_on_preferences_and_on_rewards_are_not_joined(tmp_path: Path) -> None:
    dpo: dict[str, Metric] = {f"rewards/{name}": rising for name in ("chosen", "rejected", "margins", "accuracies")}
    grpo = {"reward": rising, "reward_std": rising, "frac_reward_zero_std": rising, "completions/mean_length": rising}
    with pytest.raises(InputError, match="one is of training on preferences, the other of training on rewards"):
        open_run(
            jsonl(tmp_path / "a", range(1, 20), loss=falling, **dpo), jsonl(tmp_path / "b", range(20, 40), loss=falling, **grpo)
        )
