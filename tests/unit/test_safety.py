"""A defect of the comparison is a crash of its rule, and hides nothing that the other rules find."""

from pathlib import Path

import pytest

from rl_doctor import Recorder, check, open_run
from rl_doctor.analyzer import reconcile


@pytest.mark.parametrize("place", ["plan", "compare"])
def test_an_exception_while_comparing_is_a_crash_of_the_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    with Recorder(tmp_path) as recorder:
        for step in range(1, 5):
            recorder.log_batch(step=step, logprob=[[-1.0, -2.0]], old_logprob=[[-1.0, -2.0]], reward=[1.0])
            recorder.log_metrics(step, {"reward.mean": 5.0})

    def broken(*_: object) -> None:
        raise TypeError("a defect")

    monkeypatch.setattr(reconcile, place, broken if place == "plan" else lambda chosen, *_: broken() if chosen.metrics else ())
    report = check(open_run(tmp_path))
    crashed = {result.code: result.detail for result in report.results if result.outcome == "crashed"}
    assert crashed == {"RLD801": "a defect"}
    assert any(result.outcome == "passed" for result in report.results)
