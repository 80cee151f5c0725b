"""How long a run may be quiet."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_doctor import Recorder
from rl_doctor.live.pace import LEAST, UNKNOWN, Pace, allowed, intervals_of


def test_a_run_whose_pace_is_not_known_may_be_quiet_for_ten_minutes() -> None:
    assert allowed([]) == allowed([1.0, 1.0]) == UNKNOWN == 600


@pytest.mark.parametrize(
    ("intervals", "seconds"),
    [
        ([2.0] * 50, LEAST),
        ([60.0] * 50, 300.0),
        ([60.0] * 9 + [900.0], 300.0),  # one long pause does not count
        (([60.0] * 9 + [900.0]) * 10, 1800.0),  # an evaluation every tenth step does
        ([60.0] * 99 + [90_000.0], 300.0),
    ],
)
def test_the_pace_of_a_run(intervals: list[float], seconds: float) -> None:
    assert allowed(intervals) == seconds


@given(st.lists(st.floats(0, 1e6), min_size=3, max_size=300))
def test_a_run_is_never_called_quiet_within_its_usual_interval(intervals: list[float]) -> None:
    assert allowed(intervals) >= max(LEAST, float(np.median(intervals)))


def record(folder: Path, steps: range) -> None:
    with Recorder(folder) as recorder:
        for step in steps:
            recorder.log_batch(step=step, reward=[1.0, 0.0], logprob=[[-1.0], [-2.0]], response_length=[1, 1])
            recorder.end_step(step)
            recorder.flush()


def test_intervals_are_those_of_the_parts_and_none_of_the_pause_between_sessions(tmp_path: Path) -> None:
    record(tmp_path, range(1, 5))
    for number, part in enumerate(sorted(tmp_path.glob("sequences-*"))):
        os.utime(part, (0, 1000 + 30 * number))
    first = intervals_of(tmp_path)
    assert first[:3] == [30.0, 30.0, 30.0]
    record(tmp_path, range(5, 9))
    second = sorted(tmp_path.glob("sequences-s2-*"))
    for number, part in enumerate(second):
        os.utime(part, (0, 90_000 + 40 * number))
    assert set(intervals_of(tmp_path)) == {30.0, 40.0}


def test_a_file_has_no_intervals(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text("{}")
    assert intervals_of(tmp_path / "log.jsonl") == []
    assert intervals_of(tmp_path) == []


def test_a_running_run_is_quiet_by_the_clock_of_its_disk_until_it_was_seen_to_grow(tmp_path: Path) -> None:
    pace = Pace(tmp_path)
    assert pace.quiet(0.0, 500.0, 0.0, running=True) is None
    assert pace.quiet(0.0, 700.0, 0.0, running=True) == 700.0
    # It grew: the file server's clock may be wrong by hours.
    assert pace.quiet(1.0, 100_000.0, 200.0, running=True) is None
    assert pace.quiet(1.0, 100_000.0, 799.0, running=True) is None
    assert pace.quiet(1.0, 100_000.0, 801.0, running=True) == 601.0


def test_a_log_is_quiet_only_where_it_was_seen_to_grow(tmp_path: Path) -> None:
    pace = Pace(tmp_path / "log.jsonl")
    assert pace.quiet(0.0, 1e6, 0.0, running=False) is None
    for second in range(1, 40):
        assert pace.quiet(float(second), 1e6, 10.0 * second, running=False) is None
    assert pace.quiet(39.0, 1e6, 390.0 + 61, running=False) == 61.0, "it was written to every ten seconds"
    assert pace.quiet(40.0, 1e6, 500.0, running=False) is None
