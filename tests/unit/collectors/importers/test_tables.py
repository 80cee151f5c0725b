"""Tables of metrics in text: delimiters, gaps, headers, the long form, and what trackers export."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import numpy as np
import pytest

from rl_doctor import open_run
from rl_doctor.errors import InputError, NothingToJudgeError
from rl_doctor.store.metric_log import MetricLog


def opened(path: Path, text: str, encoding: str = "utf-8") -> MetricLog:
    path.write_bytes(text.encode(encoding))
    return open_run(path).metrics()


def notes(path: Path) -> str:
    return "; ".join(open_run(path).facts.notes)


def points(log: MetricLog, name: str, split: str = "train") -> dict[int, float]:
    steps, values = log.series(name, split)
    return dict(zip(steps.tolist(), values.tolist(), strict=True))


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_delimiters_line_ends_and_encodings(tmp_path: Path, delimiter: str, end: str, encoding: str) -> None:
    rows = [["step", "actor/pg_loss", "reward"], ["1", "0.5", "1"], ["2", "-1e-3", "nan"]]
    log = opened(tmp_path / "a", "".join(delimiter.join(row) + end for row in rows), encoding)
    assert points(log, "actor/pg_loss") == {1: 0.5, 2: -1e-3}
    assert math.isnan(points(log, "reward")[2])


@pytest.mark.parametrize(
    "name",
    ["step", "Step", "global_step", "trainer/global_step", "train_global_step", "training.global_step", "Global Step", "_step"],
)
def test_names_of_the_step(tmp_path: Path, name: str) -> None:
    log = opened(tmp_path / "a", f"{name},loss\n10,0.5\n20,0.4\n")
    assert points(log, "loss") == {10: 0.5, 20: 0.4}
    assert log.names() == ("loss",)


def test_the_surest_step_that_moves_is_taken(tmp_path: Path) -> None:
    log = opened(tmp_path / "a", "step,global_step,loss\n0,10,0.5\n0,20,0.4\n0,30,0.3\n")
    assert points(log, "loss") == {10: 0.5, 20: 0.4, 30: 0.3}


def test_a_table_of_epochs_is_counted_by_rows(tmp_path: Path) -> None:
    log = opened(tmp_path / "a", "epoch,loss\n0.5,3.0\n1.0,2.0\n")
    assert points(log, "loss") == {1: 3.0, 2: 2.0}
    assert "counted from 1" in notes(tmp_path / "a")


def test_empty_cells_are_gaps_and_never_zeros(tmp_path: Path) -> None:
    log = opened(tmp_path / "a", "step,loss,val-core/gsm8k/acc/mean@1\n1,0.5,\n2,,0.25\n3,0.0,\n")
    assert points(log, "loss") == {1: 0.5, 3: 0.0}
    assert points(log, "val-core/gsm8k/acc/mean@1", "eval") == {2: 0.25}


def test_decimal_commas_between_semicolons(tmp_path: Path) -> None:
    log = opened(tmp_path / "a", "step;loss;kl\n1;0,5;1,5e-3\n2;0,25;-2\n")
    assert points(log, "loss") == {1: 0.5, 2: 0.25}
    assert points(log, "kl") == {1: 0.0015, 2: -2.0}


def test_quoted_text_with_delimiters_quotes_and_new_lines(tmp_path: Path) -> None:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["step", "sample", "loss"])
    writer.writerows([[step, f'He said "{step}",\nthen left', step / 10] for step in range(1, 6)])
    log = opened(tmp_path / "a", text.getvalue())
    assert points(log, "loss") == {step: step / 10 for step in range(1, 6)}
    assert "no numbers, left out: sample" in notes(tmp_path / "a")


@pytest.mark.parametrize("index", ["", "Unnamed: 0"])
def test_an_index_that_pandas_wrote_is_no_metric(tmp_path: Path, index: str) -> None:
    log = opened(tmp_path / "a", f"{index},step,loss\n0,5,0.5\n1,6,0.4\n")
    assert log.names() == ("loss",)
    assert points(log, "loss") == {5: 0.5, 6: 0.4}


def test_zeros_that_a_crash_left_are_dropped(tmp_path: Path) -> None:
    rows = "".join(f"{step},0.5\n" for step in range(400))
    log = opened(tmp_path / "a", "step,loss\n" + rows + "\0" * 512 + "\n" + "400,0.25\n")
    assert log.series("loss")[0].tolist() == list(range(401))


def test_lines_above_the_header(tmp_path: Path) -> None:
    assert points(opened(tmp_path / "a", '# {"env": 1}\n\nsep=;\nstep;loss\n1;2\n'), "loss") == {1: 2.0}


def test_a_header_that_comes_again_or_grows(tmp_path: Path) -> None:
    log = opened(tmp_path / "a", "step,loss\n1,0.5\nstep,loss\n2,0.4\nstep,loss,kl\n3,0.3,0.1\n4,0.2,0.2\n")
    assert points(log, "loss") == {1: 0.5, 2: 0.4, 3: 0.3, 4: 0.2}
    assert points(log, "kl") == {3: 0.1, 4: 0.2}


def test_rows_that_do_not_fit_are_left_out_and_counted(tmp_path: Path) -> None:
    log = opened(tmp_path / "a", "step,loss,kl\n1,0.5,0.1\n2,0.4,0.1,3,0.3\n4,0.2,0.1\n5,0.1")
    assert points(log, "loss") == {1: 0.5, 4: 0.2}
    assert "left out: 2 (the first ends in line 3)" in notes(tmp_path / "a")


def test_a_table_of_which_most_does_not_fit_is_refused(tmp_path: Path) -> None:
    good = "".join(f"{step},0.5\n" for step in range(30))
    (tmp_path / "a").write_text("step,loss\n" + good + "1,2,3\n" * 200)
    with pytest.raises(InputError, match="most rows do not have the header's number of cells"):
        open_run(tmp_path / "a")


def test_a_quote_that_does_not_close_costs_its_own_row_only(tmp_path: Path) -> None:
    log = opened(tmp_path / "a", "step,loss\n1,0.5\n2,0.5\n" + '3,"0.5,\n' + "".join(f"{step},0.5\n" for step in range(4, 200)))
    assert log.series("loss")[0].tolist() == [1, 2, *range(4, 200)]
    assert "each line is read by itself" in notes(tmp_path / "a")


@pytest.mark.parametrize(("key", "value"), [("name", "value"), ("tag", "value"), ("metric", "Value"), ("key", "scalar")])
def test_one_row_per_step_and_metric(tmp_path: Path, key: str, value: str) -> None:
    text = f"step,{key},{value}\n1,loss,0.5\n1,actor/kl,0.1\n2,loss,0.4\n2,actor/kl,nan\n"
    log = opened(tmp_path / "a", text)
    assert log.names() == ("actor/kl", "loss")
    assert points(log, "loss") == {1: 0.5, 2: 0.4}
    assert math.isnan(points(log, "actor/kl")[2])


def test_rows_of_an_evaluation_are_told_apart(tmp_path: Path) -> None:
    log = opened(tmp_path / "a", "step,split,reward\n1,train,0.5\n2,train,0.6\n2,eval,0.1\n3,train,0.7\n")
    assert points(log, "reward") == {1: 0.5, 2: 0.6, 3: 0.7}
    assert points(log, "eval/reward", "eval") == {2: 0.1}
    assert "out of order" not in notes(tmp_path / "a")
    long = opened(tmp_path / "b", "step,name,value,split\n1,reward,0.5,train\n1,reward,0.1,eval\n")
    assert points(long, "reward") == {1: 0.5}
    assert points(long, "eval/reward", "eval") == {1: 0.1}


def test_several_samples_per_step_count_with_their_mean(tmp_path: Path) -> None:
    rows = [f"{step},{index},{step + index}" for step in range(1, 21) for index in range(8)]
    log = opened(tmp_path / "a", "step,sample,reward\n" + "\n".join(rows))
    assert points(log, "reward") == {step: step + 3.5 for step in range(1, 21)}
    assert "about 8 rows per step" in notes(tmp_path / "a")


def test_a_step_within_an_episode_is_no_step(tmp_path: Path) -> None:
    rows = [f"{episode},{step},0.5" for episode in range(1, 31) for step in range(6)]
    log = opened(tmp_path / "a", "episode,step,reward\n" + "\n".join(rows))
    assert log.series("reward")[0].tolist() == list(range(1, 31))
    (tmp_path / "b").write_text("step,reward\n" + "\n".join(row.split(",", 1)[1] for row in rows))
    with pytest.raises(InputError, match="its step goes back 29 times"):
        open_run(tmp_path / "b")


def wandb_chart(runs: list[str], metric: str = "actor/pg_loss") -> str:
    names = [f"{run} - {metric}{band}" for run in runs for band in ("", "__MIN", "__MAX")]
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL)
    writer.writerow(["Step", *names])
    writer.writerows([[step, *([step / 10, step / 10 - 1, step / 10 + 1] * len(runs))] for step in range(5)])
    return text.getvalue()


def test_a_chart_of_wandb_is_read_without_its_bands(tmp_path: Path) -> None:
    log = opened(tmp_path / "wandb_export.csv", wandb_chart(["grpo - qwen 7b"]))
    assert log.names() == ("actor/pg_loss",)
    assert points(log, "actor/pg_loss")[4] == 0.4
    assert "Weights & Biases" in notes(tmp_path / "wandb_export.csv")


def test_charts_of_one_run_are_joined(tmp_path: Path) -> None:
    for name, metric in [("a", "actor/ppo_kl"), ("b", "critic/score/mean")]:
        (tmp_path / name).write_text(wandb_chart(["run"], metric))
    assert open_run(tmp_path / "a", tmp_path / "b").metrics().names() == ("actor/ppo_kl", "critic/score/mean")


def test_a_chart_of_several_runs_names_them(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(wandb_chart(["first", "second"]))
    with pytest.raises(InputError, match=r"several runs \(first, second\); give one of them as a#first"):
        open_run(tmp_path / "a")
    assert open_run(tmp_path / "a#second").metrics().names() == ("actor/pg_loss",)
    with pytest.raises(InputError, match=r"no run 'third' among its runs"):
        open_run(tmp_path / "a#third")


def test_a_table_of_runs_is_no_history(tmp_path: Path) -> None:
    rows = ['"Name","State","Runtime","_step","loss"', '"a","finished","100","500","0.1"', '"b","crashed","7","9","0.2"']
    (tmp_path / "a").write_text("\n".join(rows))
    with pytest.raises(InputError, match="one row per run"):
        open_run(tmp_path / "a")


def test_several_runs_in_a_column_are_named(tmp_path: Path) -> None:
    rows = [f"{run},{step},{step / 10}\n" for run in ("x", "y") for step in range(3000)]
    (tmp_path / "a").write_text("run,step,loss\n" + "".join(rows))
    with pytest.raises(InputError, match=r"several runs \(x, y\); give one of them as a#x"):
        open_run(tmp_path / "a")
    assert len(open_run(tmp_path / "a#y").metrics().series("loss")[0]) == 3000
    with pytest.raises(InputError, match=r"no run 'z' among its runs \(x, y\)"):
        open_run(tmp_path / "a#z")
    (tmp_path / "b").write_text("step,loss\n1,0.1\n")
    with pytest.raises(InputError, match="no column tells runs apart; give it without #x"):
        open_run(tmp_path / "b#x")


def test_columns_of_the_same_name_are_told(tmp_path: Path) -> None:
    assert points(opened(tmp_path / "a", "step,loss,loss\n1,0.1,0.2\n2,0.3,0.4\n"), "loss") == {1: 0.2, 2: 0.4}
    assert "of which the last counts: loss" in notes(tmp_path / "a")


@pytest.mark.parametrize(
    ("file", "name"),
    [("run-grpo-tag-train_reward.csv", "train_reward"), ("reward.csv", "reward"), ("run-.-tag-loss.csv", "loss")],
)
def test_a_curve_of_tensorboard_is_called_as_its_file(tmp_path: Path, file: str, name: str) -> None:
    log = opened(tmp_path / file, "Wall time,Step,Value\n1690000000.5,10,0.5\n1690000001.5,20,0.25\n")
    assert log.names() == (name,)
    assert points(log, name) == {10: 0.5, 20: 0.25}


@pytest.mark.parametrize("text", ["a,b\nx,y\n", "just one line, with a comma\n", "1,2\n3,4\n", "key: value\nother: 3\n"])
def test_what_is_no_table_of_metrics(tmp_path: Path, text: str) -> None:
    (tmp_path / "a").write_text(text)
    with pytest.raises(InputError, match="not recognised"):
        open_run(tmp_path / "a")


def test_a_header_alone_and_a_single_row_are_nothing_to_judge(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("step,loss\n")
    (tmp_path / "b").write_text("epoch,loss\n1,0.5\n")
    for name in ("a", "b"):
        with pytest.raises(NothingToJudgeError, match=rf"{name}: "):
            open_run(tmp_path / name)


def test_steps_that_cannot_be(tmp_path: Path) -> None:
    log = opened(tmp_path / "a", "step,loss\n-1,1\n0,2\n1e18,3\n0.5,4\n10000000,5\n7.0,6\n")
    np.testing.assert_array_equal(log.series("loss")[0], [-1, 0, 7, 10_000_000])
    assert "2 rows without a step left out" in notes(tmp_path / "a")


def test_rows_that_mostly_do_not_fit_the_header_are_named_by_line(tmp_path: Path) -> None:
    rows = (f"{step},{step / 100}" + ("" if step % 3 else ",0.1,5,6") for step in range(100))
    (tmp_path / "a").write_text("\n".join(["step,reward,kl", *rows, ""]))
    with pytest.raises(InputError, match=r"a: most rows do not have the header's number of cells \(the first ends in line 2\)"):
        open_run(tmp_path / "a")
    rows = (f"{step},{step / 100}" + (",0.1" if step % 3 else "") for step in range(100))
    (tmp_path / "b").write_text("\n".join(["step,reward,kl", *rows, ""]))
    assert "left out: 34 (the first ends in line 2)" in notes(tmp_path / "b")
