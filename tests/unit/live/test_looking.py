"""Looks at runs that are not there yet, grow, stop, end, or cannot be read."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from rl_doctor import Recorder, check, open_run
from rl_doctor.analyzer.series import Series
from rl_doctor.cli.judging import judge
from rl_doctor.live.changes import changes
from rl_doctor.live.looking import Looker, narrowed, trend
from rl_doctor.live.sight import Sight
from rl_doctor.live.watching import Guarded, watch
from rl_doctor.report.diagnosis import told
from rl_doctor.rules.registry import rules
from tests.integration.growing import INFO, log_step

DEMO = Path(__file__).parents[3] / "rl_doctor" / "demo"
STALE = DEMO / "stale-old-logprob.parquet"


def seen(looker: Looker) -> Sight:
    sight = looker.look().sight
    assert sight is not None
    return sight


def seen_at(looker: Looker, step: int) -> Sight:
    """What is seen once the step was judged, which is put off where judging takes long."""
    end = time.monotonic() + 60
    while (sight := seen(looker)).step != step:
        assert time.monotonic() < end
        time.sleep(0.05)
    return sight


def test_a_folder_of_runs_is_not_waited_for() -> None:
    look = Looker(DEMO).look()
    assert (look.over, look.exit_code) == (True, 2)
    assert "10 recorded runs and logs: constant-reward.parquet" in look.problem


def test_a_run_from_before_it_is_there_until_it_has_ended(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    looker = Looker(folder)
    look = looker.look()
    assert (look.sight, look.missing, look.over) == (None, True, False)
    with Recorder(folder, info=INFO) as recorder:
        recorder.flush()
        look = looker.look()
        assert (look.sight, look.missing, look.over) == (None, False, False)
        assert "no rows recorded yet" in look.problem
        for step in range(1, 5):
            log_step(recorder, step)
        sight = seen_at(looker, 4)
        assert (sight.status, sight.step, sight.troubles, sight.quiet) == ("running", 4, (), None)
        for step in range(5, 8):
            log_step(recorder, step, fault=True)
        (trouble, *_) = seen_at(looker, 7).troubles
        assert (trouble.severity, trouble.first_step, trouble.going_on) == ("error", 5, True)
        assert trouble.codes[0] == "RLD010"
        for step in range(8, 12):
            log_step(recorder, step)
        (trouble, *_) = seen_at(looker, 11).troubles
        assert (trouble.severity, trouble.last_step, trouble.going_on) == ("error", 7, False)
    look = looker.look()
    assert (look.closing, look.over) == (True, False), "its last parts may have been written since"
    look = looker.look()
    assert (look.closing, look.over, look.exit_code) == (True, True, 1)


def test_a_run_is_seen_as_check_tells_it() -> None:
    report = check(open_run(STALE))
    sight = seen(Looker(STALE))
    assert [(each.name, each.cause, each.severity, each.first_step, each.last_step) for each in sight.troubles] == [
        (each.name, each.cause, each.severity, each.first_step, each.last_step) for each in told(report)
    ]
    assert [each.message for each in sight.findings] == [
        finding.message for entry in told(report) for finding in (*entry.findings, *entry.followed_by)
    ]
    assert sight.exit_code == report.exit_code() == 1
    assert sight.troubles[0].metric == "mismatch.first_k3"
    assert max(sight.troubles[0].trend) > 10 * sight.troubles[0].trend[0]


@pytest.mark.parametrize("codes", [("RLD101",), ("RLD201",), ("RLD010", "RLD011"), ("RLD209",)])
def test_rules_that_are_chosen_count_alone(codes: tuple[str, ...]) -> None:
    few = judge(STALE, [rule for rule in rules().values() if rule.code in codes])
    sight = seen(Looker(STALE, frozenset(codes)))
    assert sorted(each.code for each in sight.findings) == sorted(finding.code for finding in few.findings)
    assert sight.exit_code == few.exit_code()
    assert bool(sight.why) == (sight.exit_code == 3)


def test_a_narrowed_report_keeps_causes_of_chosen_findings() -> None:
    report = check(open_run(STALE))
    assert [entry.name for entry in narrowed(report, ["RLD101"]).diagnosis] == ["old-logprob-outdated"]
    (other,) = told(narrowed(report, ["RLD201"]))
    assert (other.findings[0].code, other.severity) == ("RLD201", "info")


def test_a_killed_run_is_quiet(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run", info=INFO)
    for step in range(1, 4):
        log_step(recorder, step)
    recorder.close(None)
    now = time.time()
    assert seen(Looker(tmp_path / "run", now=lambda: now)).quiet is None
    late = seen(Looker(tmp_path / "run", now=lambda: now + 3600))
    assert late.quiet == pytest.approx(3600, abs=60)
    assert not late.ended


def test_states_that_a_reader_keeps_in_the_folder_are_no_sign_of_life(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run", info=INFO)
    log_step(recorder, 1)
    recorder.close(None)
    hour_ago = time.time() - 3600
    for file in (tmp_path / "run").iterdir():
        os.utime(file, (hour_ago, hour_ago))
    for _ in range(2):
        looker = Looker(tmp_path / "run")
        assert seen(looker).quiet == pytest.approx(3600, abs=60)
        looker.close()
    assert any(file.name.startswith(".") for file in (tmp_path / "run").iterdir()), "there are states"


def test_a_run_that_vanishes_is_quiet_and_seen_as_it_was(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run", info=INFO)
    log_step(recorder, 1)
    recorder.close(None)
    now = time.time()
    looker = Looker(tmp_path / "run", now=lambda: now)
    assert seen(looker).quiet is None
    shutil.rmtree(tmp_path / "run")
    now += 3600
    look = looker.look()
    assert look.missing
    assert not look.over
    assert look.problem
    assert look.sight is not None
    assert look.sight.quiet is not None


def test_a_run_without_a_step_after_half_an_hour_is_quiet_until_it_has_one(tmp_path: Path) -> None:
    now = time.time()
    looker = Looker(tmp_path / "run", now=lambda: now)
    with Recorder(tmp_path / "run", info=INFO) as recorder:
        recorder.flush()
        assert looker.look().sight is None
        now += 1900
        early = seen(looker)
        assert (early.step, early.status, early.quiet) == (None, "running", pytest.approx(1900, abs=60))
        now = time.time()
        log_step(recorder, 1)
        begun = seen(looker)
    assert begun.key == early.key
    assert [event.kind for event in changes(None, early)] == ["stalled"]
    assert [event.kind for event in changes(early, begun) if event.trouble is None] == ["resumed"]


def test_a_recording_without_rows_that_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run", info=INFO):
        pass
    look = Looker(tmp_path / "run").look()
    assert (look.sight, look.over, look.exit_code) == (None, True, 3)
    assert "the recording has ended" in look.problem


def test_a_file_that_is_no_log_yet_is_waited_for_and_a_damaged_run_file_is_not(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text("")
    look = Looker(tmp_path / "log.jsonl").look()
    assert (look.sight, look.over, look.missing) == (None, False, False)
    (tmp_path / "run.parquet").write_bytes(STALE.read_bytes()[:5000])
    look = Looker(tmp_path / "run.parquet").look()
    assert (look.over, look.exit_code) == (True, 2)


def test_a_log_is_followed_and_never_over(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    lines = [f'{{"step": {step}, "reward": 0.5, "entropy": {0.5 + 0.01 * step}}}\n' for step in range(1, 9)]
    log.write_text("".join(lines[:4]))
    looker = Looker(log)
    assert seen(looker).step == 4
    log.write_text("".join(lines))
    os.utime(log, (0, time.time() + 1))
    assert seen(looker).step == 8
    look = looker.look()
    assert (look.closing, look.over) == (False, False)


def test_a_defect_of_one_look_does_not_end_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    looker = Looker(STALE)
    with monkeypatch.context() as patch:
        patch.setattr("rl_doctor.live.looking.sight_of", lambda *_: 1 / 0)
        look = looker.look()
    assert look.problem == "internal error: ZeroDivisionError: division by zero"
    assert seen(looker).exit_code == 1


def test_a_trend_is_the_means_of_equal_stretches() -> None:
    steps = np.arange(24)
    values = np.where(steps == 5, np.nan, steps / 1.0)
    found = trend(Series("a", "1", steps, values, np.ones(24, np.int64)), 12)
    assert len(found) == 12
    assert found[0] == 0.5
    assert found == tuple(sorted(found))
    assert trend(Series("a", "1", steps[:3], values[:3], np.ones(3, np.int64)), 12) == (0.0, 1.0, 2.0)


def test_fail_fast_ends_at_the_first_error_and_no_sink_ends_the_watch(tmp_path: Path) -> None:
    said: list[str] = []
    lasts: list[bool] = []

    class Broken:
        def take(self, _: object, *, last: bool = False) -> None:
            lasts.append(last)
            raise OSError("disk")

    with Recorder(tmp_path / "run", info=INFO) as recorder:
        steps = iter(range(1, 1000))

        def grow(_: float) -> None:
            step = next(steps)
            log_step(recorder, step, fault=step >= 3)
            time.sleep(0.1)

        code = watch(Looker(tmp_path / "run"), [Guarded(Broken(), "broken", said.append)], 1.0, fail_fast=True, sleep=grow)
    assert code == 1
    assert next(steps) >= 4
    assert said == ["broken: OSError: disk (the watch goes on)"]
    assert lasts[-1]
    assert not any(lasts[:-1])
