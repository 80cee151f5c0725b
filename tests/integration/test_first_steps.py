"""A run cut after its first steps is judged as one that was stopped there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_doctor import check, open_run
from rl_doctor.store.metric_log import MetricLog
from tests.diseases.recorded import RECORDED, load
from tests.simulation.healthy import KINDS
from tests.simulation.run import SimulatedRun


def stopped(run: SimulatedRun, last: int) -> SimulatedRun:
    """The run without the steps after ``last``."""
    kept = run.take(np.flatnonzero(run.arrays["step"] <= last))
    kept.log = MetricLog.of(record for record in run.log.records() if record[0] <= last)
    return kept


def told(report: Any) -> list[tuple[Any, ...]]:
    return [(one.code, one.outcome, one.reason, one.missing, one.detail, one.findings) for one in report.results]


@pytest.mark.parametrize("kind", ["two_epochs", "agentic", "two_epochs_counted_by_update"])
def test_the_first_steps_are_judged_as_if_the_run_had_been_stopped(tmp_path: Path, kind: str) -> None:
    run = KINDS[kind](0)
    whole = open_run(run.write(tmp_path / "whole.parquet"))
    last = sorted({*run.arrays["step"].tolist()})[4]
    cut = check(whole, first_steps=5)
    short = check(open_run(stopped(run, last).write(tmp_path / "short.parquet")))
    assert told(cut) == told(short)
    assert (cut.run.last_step, cut.run.sequences, cut.run.tokens) == (last, short.run.sequences, short.run.tokens)
    assert cut.run.logged_values == short.run.logged_values
    assert f"only the first 5 of {len(set(run.arrays['step'].tolist()))} steps are judged" in cut.run.notes


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("name", RECORDED)
def test_the_first_steps_of_a_healthy_recorded_run_raise_no_alarm(tmp_path: Path, name: str, steps: int) -> None:
    """A rate that begins at 0, and a generation batch that is spread over more steps than are judged, are no faults."""
    report = check(open_run(load(name).write(tmp_path / "run.parquet")), first_steps=steps)
    assert [finding.message for finding in report.findings if finding.severity != "info"] == []


def test_a_run_that_is_shorter_is_judged_whole(tmp_path: Path) -> None:
    run = open_run(KINDS["few_samples"](0).write(tmp_path / "run.parquet"))
    assert told(check(run, first_steps=10_000)) == told(check(run))


def test_of_a_log_the_first_rows_are_judged(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("".join(f'{{"step": {step}, "reward": {0.1 * step}, "entropy": 0.5}}\n' for step in range(10, 60, 10)))
    report = check(open_run(log), first_steps=2)
    assert (report.run.first_step, report.run.last_step, report.run.logged_values) == (10, 20, 4)
