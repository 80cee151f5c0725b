"""JSON in the forms that loggers write: lines, lists, columns, curves, nested, keyed by step, cut short."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_doctor import open_run
from rl_doctor.errors import InputError, NothingToJudgeError
from rl_doctor.store.metric_log import MetricLog

ROWS = [{"step": step, "loss": step / 4, "kl": step / 8} for step in range(1, 5)]
FLAT = "".join(json.dumps(row) + "\n" for row in ROWS)


def opened(path: Path, text: str) -> MetricLog:
    path.write_text(text)
    return open_run(path).metrics()


def notes(path: Path) -> str:
    return "; ".join(open_run(path).facts.notes)


def same(log: MetricLog) -> bool:
    """Whether a log holds what ``ROWS`` does, and nothing else."""
    assert log.names() == ("kl", "loss")
    assert log.names("eval") == ()
    assert [log.series(name)[0].tolist() for name in log.names()] == [[1, 2, 3, 4]] * 2
    assert log.series("loss")[1].tolist() == [0.25, 0.5, 0.75, 1.0]
    assert log.series("kl")[1].tolist() == [0.125, 0.25, 0.375, 0.5]
    return True


FORMS: dict[str, Any] = {
    "a list": ROWS,
    "a list under a member": {"config": {"lr": 1}, "history": ROWS},
    "a list two levels down": {"run": {"name": "x", "logs": ROWS}},
    "lists, of which one has steps": {"history": ROWS, "stages": [{"lr": 1}] * 9},
    "columns": {"step": [1, 2, 3, 4], "loss": [0.25, 0.5, 0.75, 1.0], "kl": [0.125, 0.25, 0.375, 0.5]},
    "columns in a wrapper": {"steps": [1, 2, 3, 4], "metrics": {"loss": [0.25, 0.5, 0.75, 1.0], "kl": [0.125, 0.25, 0.375, 0.5]}},
    "keyed by step": {str(row["step"]): {"loss": row["loss"], "kl": row["kl"]} for row in ROWS},
    "keyed by a named step": {f"step_{row['step']}": {"loss": row["loss"], "kl": row["kl"]} for row in ROWS},
    "keyed by row": {str(index): row for index, row in enumerate(ROWS)},
    "columns by row": {name: {str(index): row[name] for index, row in enumerate(ROWS)} for name in ROWS[0]},
    "a split table": {"columns": ["step", "loss", "kl"], "index": [0, 1, 2, 3], "data": [list(row.values()) for row in ROWS]},
    "curves of pairs": {name: [[row["step"], row[name]] for row in ROWS] for name in ("loss", "kl")},
    "curves of records": {name: [{"step": row["step"], "value": row[name]} for row in ROWS] for name in ("loss", "kl")},
    "curves of two lists": {name: {"steps": [1, 2, 3, 4], "values": [row[name] for row in ROWS]} for name in ("loss", "kl")},
    "one number per record": [{"step": row["step"], "name": name, "value": row[name]} for row in ROWS for name in ("loss", "kl")],
    "nested": [{"step": row["step"], "metrics": {"loss": row["loss"], "kl": row["kl"]}} for row in ROWS],
    "text for numbers": [{name: str(value) for name, value in row.items()} for row in ROWS],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("indent", [None, 2])
def test_documents(tmp_path: Path, form: str, indent: int | None) -> None:
    assert same(opened(tmp_path / "a", json.dumps(FORMS[form], indent=indent)))


LINES = {
    "lines": FLAT,
    "lines with Windows ends": FLAT.replace("\n", "\r\n"),
    "empty lines between": FLAT.replace("\n", "\n\n"),
    "without anything between": FLAT.replace("\n", ""),
    "over several lines": "".join(json.dumps(row, indent=2) + "\n" for row in ROWS),
    "a comma after each": FLAT.replace("}\n", "},\n"),
    "events between": FLAT.replace("\n", '\n{"event": "saved", "path": "/tmp/x"}\n'),
    "bookkeeping of a tracker": "".join(
        json.dumps({**row, "_step": 7 * row["step"], "_timestamp": 1.7e9, "_runtime": 5.5}) + "\n" for row in ROWS
    ),
    "one number per line": "".join(
        json.dumps({"tag": name, "value": row[name], "step": row["step"]}) + "\n" for row in ROWS for name in ("loss", "kl")
    ),
    "text before": "starting\n" + FLAT,
    "torn": FLAT + '{"step": 5, "los',
}


@pytest.mark.parametrize("form", LINES)
def test_records_one_after_the_other(tmp_path: Path, form: str) -> None:
    assert same(opened(tmp_path / "a", LINES[form]))


def test_a_torn_record_is_told(tmp_path: Path) -> None:
    torn = LINES["torn"]
    for name, text in [("a", torn), ("b", torn.replace("\n", "")), ("c", json.dumps(ROWS)[:-1] + ', {"step": 5, ')]:
        assert same(opened(tmp_path / name, text))
        assert "cut short" in notes(tmp_path / name)


def test_lines_that_are_no_record_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(FLAT.replace('{"step": 2', '{"step": 2 2'))
    assert "no JSON record, left out: 1 (the first is line 2)" in notes(tmp_path / "a")


def test_lines_of_one_form_are_read_like_any_others(tmp_path: Path) -> None:
    rows = [
        {"step": step, 'a "name"': step / 3, "größe": -1e-7 * step, "c": math.nan if step % 7 else math.inf}
        for step in range(5000)
    ]
    for ascii_only in (True, False):
        for separators in ((", ", ": "), (",", ":")):
            lines = [json.dumps(row, ensure_ascii=ascii_only, separators=separators) for row in rows]
            fast = opened(tmp_path / "a", "\n".join(lines))
            slow = opened(tmp_path / "b", "\n".join(lines).replace('"c"', '"note": null, "c"'))
            assert fast.names() == slow.names() == ('a "name"', "c", "größe")
            for name in fast.names():
                for one, other in zip(fast.series(name), slow.series(name), strict=True):
                    np.testing.assert_array_equal(one, other)


def test_a_form_that_changes_on_the_way(tmp_path: Path) -> None:
    lines = [json.dumps({"step": step, "loss": 0.5}) for step in range(1, 5001)]
    lines[3000] = '{"step": 3001, "loss": 0.25, "kl": "0.125"}'
    lines[4000] = '{"step": 4001, "loss": 0.2.5}'
    lines[4500] = "torn"
    log = opened(tmp_path / "a", "\n".join(lines))
    assert len(log.series("loss")[0]) == 4998
    assert log.series("kl")[1].tolist() == [0.125]
    assert "left out: 2 (the first is line 4001)" in notes(tmp_path / "a")


def test_inner_names_follow_the_outer_one(tmp_path: Path) -> None:
    first = '{"step": 1, "train": {"loss": 1.0, "deep": {"kl": 2.0}}, "data": {"actor/lr": 3.0}}\n'
    text = first + '{"step": 2, "train": {"loss": NaN}}\n'
    log = opened(tmp_path / "a", text)
    assert log.names() == ("actor/lr", "train/deep/kl", "train/loss")
    assert math.isnan(log.series("train/loss")[1][1])


def test_rows_of_an_evaluation_are_told_apart(tmp_path: Path) -> None:
    lines = [
        '{"step": 1, "reward": 1}',
        '{"step": 1, "split": "eval", "reward": 2}',
        '{"type": "validation", "step": 2, "reward": 3}',
    ]
    log = opened(tmp_path / "a", "\n".join(lines))
    assert log.series("reward")[1].tolist() == [1.0]
    assert log.series("eval/reward", "eval")[1].tolist() == [2.0, 3.0]
    document = {"train": [{"step": 1, "reward": 1}, {"step": 2, "reward": 1}], "eval_history": [{"step": 2, "reward": 5}]}
    log = opened(tmp_path / "b", json.dumps(document))
    assert log.series("reward")[1].tolist() == [1.0, 1.0]
    assert log.series("eval/reward", "eval")[1].tolist() == [5.0]


def test_rows_that_only_have_the_trackers_counter_are_at_the_step_before(tmp_path: Path) -> None:
    rows = [
        {"_step": 0, "train/global_step": 10, "loss": 1.0},
        {"_step": 1, "accuracy": 0.5},
        {"_step": 2, "train/global_step": 20, "loss": 0.9},
        {"_step": 3, "accuracy": 0.6},
    ]
    log = opened(tmp_path / "a", "\n".join(map(json.dumps, rows)))
    assert log.names() == ("accuracy", "loss")
    assert log.series("accuracy")[0].tolist() == [10, 20]


def test_columns_of_other_lengths_are_left_out(tmp_path: Path) -> None:
    log = opened(tmp_path / "a", json.dumps({"loss": [3.0, 2.0, 1.0], "reward": [1, 2, 3], "eval": [7.0]}))
    assert log.names() == ("loss", "reward")
    assert "not as long as the others, left out: eval" in notes(tmp_path / "a")


def test_a_curve_that_tensorboard_exported(tmp_path: Path) -> None:
    log = opened(tmp_path / "reward.json", "[[1690000000.5, 1, 0.5], [1690000001.5, 2, 0.75]]")
    assert log.series("reward")[1].tolist() == [0.5, 0.75]


@pytest.mark.parametrize(
    "text",
    [
        '{"loss": 0.5, "reward": 1}',
        '{"_step": 500, "_runtime": 5.0, "loss": 0.1, "_wandb": {"runtime": 5}}',
        '[{"loss": 1.0}]',
        '{"eval": {"accuracy": 0.5}}\n',
    ],
)
def test_the_summary_of_a_run_is_nothing_to_judge(tmp_path: Path, text: str) -> None:
    (tmp_path / "a").write_text(text)
    with pytest.raises(NothingToJudgeError, match="a single record"):
        open_run(tmp_path / "a")


@pytest.mark.parametrize("text", ['{"name": "x", "private": true', '[{"step": 1, "loss":', '{"a": [1, 2'])
def test_a_document_that_is_cut_short_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a").write_text(text)
    with pytest.raises(InputError, match="damaged or cut short"):
        open_run(tmp_path / "a")


@pytest.mark.parametrize("opening", ['{"a":', "[", '[{"step": 1, "a":', '{"step": 1}\n{"a":'])
def test_nesting_without_end_is_an_error(tmp_path: Path, opening: str) -> None:
    (tmp_path / "a").write_text(opening * 50_000)
    with pytest.raises((InputError, NothingToJudgeError), match=r"a: "):
        open_run(tmp_path / "a")


def test_texts_and_lists_are_no_metrics(tmp_path: Path) -> None:
    log = opened(tmp_path / "a", '{"step": 1, "loss": 1, "texts": ["a", "b"], "weights": [1, 2]}\n{"step": 2, "loss": 2}\n')
    assert log.names() == ("loss",)
    (tmp_path / "b").write_text('[{"prompt": "a", "answer": "b"}, {"prompt": "c", "answer": "d"}]')
    with pytest.raises(NothingToJudgeError, match="no number"):
        open_run(tmp_path / "b")
