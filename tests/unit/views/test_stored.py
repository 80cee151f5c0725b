"""What is stored of a run, against runs made for it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from rl_doctor import Recorder
from rl_doctor.live.followed import Followed
from rl_doctor.live.listing import recorded_runs
from rl_doctor.views.age import age
from rl_doctor.views.opened import Opened
from rl_doctor.views.stored import stored


@pytest.fixture(scope="module")
def gappy(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    """A run without steps 4, 5 and 9, with a column that nobody knows."""
    folder = tmp_path_factory.mktemp("gappy") / "run"
    random = np.random.default_rng(0)
    with Recorder(
        folder, info={"trainer": "custom", "algorithm": "grpo", "config": {"clip_low": 0.2, "clip_high": 0.2}}
    ) as recorder:
        for step in (1, 2, 3, 6, 7, 8, 10, 11):
            mask = np.ones((4, 5), bool)
            old = -random.random((4, 5)).astype(np.float32)
            recorder.log_batch(
                step=step, response_mask=mask, attention_mask=mask, old_logprob=old, logprob=old, reward=random.random(4),
                group=np.array(["a", "a", "b", "b"]),
            )  # fmt: skip
            recorder.log_metrics(step, {"actor/grad_norm": 0.5, "nobody/knows": 1.0})
    return Followed(folder).opened


def test_steps_gaps_and_amounts(gappy: Opened) -> None:
    view = stored(gappy)
    assert (view.sequences, view.tokens, view.steps, view.first, view.last) == (32, 160, 8, 1, 11)
    assert view.logged == 16
    assert [(gap.first, gap.last, gap.missing) for gap in view.gaps] == [(4, 5, 2), (9, 9, 1)]
    note = "no rows of 3 steps between the first and the last: 4-5, 9"
    assert note in gappy.report.run.notes, "the report says it too"
    assert all(told.text != note for told in view.told), "and here once"
    assert view.missing_steps == 3
    amounts = {amount.kind: amount.values.tolist() for amount in view.amounts}
    assert amounts == {"sequences": [4.0] * 8, "tokens": [20.0] * 8, "logged": [2.0] * 8}
    assert len({len(column) for column in view.amount_table.values()}) == 1


def test_steps_that_are_counted_in_tens_have_no_gaps(gappy: Opened) -> None:
    series = {
        name: dataclasses.replace(each, steps=np.arange(len(each)) * 10, values=each.values)
        for name, each in gappy.series.items()
    }
    assert stored(dataclasses.replace(gappy, series=series)).gaps == ()


def test_columns_are_told_with_their_rows_and_what_they_would_enable(gappy: Opened) -> None:
    table = stored(gappy).columns
    rows = {name: at for at, name in enumerate(table["column"])}
    assert table["state"][rows["logprob"]] == "present"
    assert table["rows"][rows["logprob"]] == 160
    assert table["rows"][rows["reward"]] == 32
    assert table["state"][rows["rollout_logprob"]] == "absent"
    assert table["rows"][rows["rollout_logprob"]] is None
    enabled = sum("rollout_logprob" in each.missing for each in gappy.report.results if each.outcome == "skipped")
    assert table["rules it would enable"][rows["rollout_logprob"]] == enabled > 0
    assert list(table["state"]) == sorted(table["state"], key=("present", "empty", "absent").index)


def test_settings_sessions_and_masks(gappy: Opened) -> None:
    view = stored(gappy)
    assert dict(zip(view.settings["setting"], view.settings["value"], strict=True))["clip_low"] == "0.2"
    assert view.sessions is not None
    assert list(view.sessions["session"]) == [1]
    assert view.masks is not None
    worst = dict(zip(view.masks["metric"], view.masks["worst"], strict=True))
    assert worst["mask.length_agreement"] == 1.0
    assert worst["mask.empty_frac"] == 0.0


def test_what_was_left_out_is_told(gappy: Opened) -> None:
    facts = dataclasses.replace(
        gappy.run.facts,
        dropped_steps=3,
        incomplete_steps=(4, 5, 6, 9),
        unsorted_steps=2,
        repeated_rows=7,
        empty_columns=("value",),
    )
    report = dataclasses.replace(
        gappy.report,
        run=dataclasses.replace(gappy.report.run, skipped_parts=("tokens-1: torn",), unknown_columns=("x", "y"), sampling=0.25),
    )
    run = dataclasses.replace(gappy.run, _facts=lambda: facts)
    told = {(entry.kind, entry.text) for entry in stored(dataclasses.replace(gappy, run=run, report=report)).told}
    assert told >= {
        ("dropped", "3"), ("incomplete", "4-6, 9"), ("unsorted", "2"), ("repeated", "7"), ("empty", "value"),
        ("skipped", "tokens-1: torn"), ("unknown", "x, y"), ("sampled", "25"),
    }  # fmt: skip


def test_a_log_alone_has_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(
        "".join(json.dumps({"step": n, "actor/entropy": 1.0 / n, "critic/rewards/mean": 0.1 * n}) + "\n" for n in range(1, 31))
    )
    view = stored(Followed(path).opened)
    assert (view.sequences, view.tokens, view.steps, view.logged) == (0, 0, 30, 60)
    assert [amount.kind for amount in view.amounts] == ["logged"]
    assert view.masks is None
    assert view.gaps == ()


@pytest.mark.parametrize(
    ("status", "stalled", "quiet", "condition", "growing"),
    [
        ("running", None, 3.0, "live", True),
        ("running", 700.0, 700.0, "stalled", True),
        ("complete", None, 3.0, "complete", False),
        ("detached", None, 3.0, "detached", False),
        (None, None, 3.0, "unknown", True),
        (None, None, 9e5, "unknown", False),
    ],
)
def test_the_age_of_a_run(
    gappy: Opened, status: str | None, stalled: float | None, quiet: float, condition: str, growing: bool
) -> None:
    info = dataclasses.replace(gappy.run.info, status=status)
    opened = dataclasses.replace(gappy, run=dataclasses.replace(gappy.run, info=info), written=1e9)
    found = age(opened, 1e9 + quiet, stalled)
    assert (found.condition, found.growing, found.last_step) == (condition, growing, 11)
    assert found.quiet == pytest.approx(quiet)


def test_runs_are_chosen_by_folder_and_named_apart(tmp_path: Path) -> None:
    for name in ("runs/a", "runs/b", "other/a"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "run.json").write_text("{}")
    (tmp_path / "runs" / ".hidden").mkdir()
    (tmp_path / "runs" / "notes.txt").write_text("no run")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "console.log").write_text("step 1")
    assert list(recorded_runs([tmp_path / "runs"])) == ["a", "b"]
    both = recorded_runs([tmp_path / "runs", tmp_path / "other" / "a"])
    assert list(both) == [str(tmp_path / "runs/a"), "b", str(tmp_path / "other/a")]
    assert recorded_runs([tmp_path / "logs"]) == {"logs": tmp_path / "logs"}
    assert recorded_runs([tmp_path / "gone"]) == {"gone": tmp_path / "gone"}
