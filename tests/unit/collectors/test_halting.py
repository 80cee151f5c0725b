"""A recorder that checks the first steps tells the training to stop, or lets it go on; it never holds it up."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_doctor import Recorder
from rl_doctor.collectors import halting, recorder
from rl_doctor.collectors.check_process import CheckProcess
from rl_doctor.collectors.halting import Halt, stopped_since

INFO = {"trainer": "custom", "algorithm": "grpo", "pad_token_id": 0, "eos_token_ids": [1]}
REPORT = {"diagnosis": [{"severity": "error", "codes": ["RLD010", "RLD010"], "cause": "The mask covers padding."}]}


class Stand:
    """A check that ends at once with a result."""

    started: list[Sequence[str]]

    def __init__(self, code: int = 0, document: Mapping[str, Any] | None = None, error: Exception | None = None) -> None:
        self.code, self.document, self.error, self.started = code, document or {}, error, []
        self.running = False
        self.stopped = False

    def __call__(self, arguments: Sequence[str]) -> Any:
        self.started.append(arguments)
        return self

    def result(self) -> tuple[int, Mapping[str, Any]]:
        if self.error is not None:
            raise self.error
        return self.code, self.document

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Stand]:
    def put(*args: Any, **kwargs: Any) -> Stand:
        made = Stand(*args, **kwargs)
        monkeypatch.setattr(recorder, "Halt", lambda codes, after, tell: Halt(codes, after, tell, made))
        return made

    return put


def record(run: Recorder, steps: range) -> None:
    mask = np.ones((4, 3), bool)
    for step in steps:
        values = np.full((4, 3), -0.5)
        run.log_batch(step=step, logprob=values, old_logprob=values, response_mask=mask, group=["a", "a", "b", "b"])
    run.end_step(steps[-1])


def wait(until: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_wrong_run_is_told_to_stop(tmp_path: Path, stand: Callable[..., Stand], caplog: pytest.LogCaptureFixture) -> None:
    check = stand(1, REPORT)
    before = time.time()
    with Recorder(tmp_path / "run", INFO, stop_on=("RLD010", "mask-misses-eos")) as run:
        record(run, range(1, 2))
        run.flush()
        assert not check.started
        record(run, range(2, 3))
        wait(lambda: run.should_stop)
        assert run.stop_reason == "RLD010: The mask covers padding."
    (arguments,) = check.started
    assert arguments == [
        str(tmp_path / "run"), "--first-steps", "2", "--select", "RLD010", "--select", "mask-misses-eos", "--fail-on", "error",
    ]  # fmt: skip
    (line,) = [item.getMessage() for item in caplog.records if "should stop" in item.getMessage()]
    assert "RLD010: The mask covers padding." in line
    assert f"rl-doctor check {tmp_path / 'run'} --first-steps 2" in line
    assert json.loads((tmp_path / "run" / "run.json").read_text())["stop"]["reason"] == run.stop_reason
    assert stopped_since(str(tmp_path / "run"), before)
    assert not stopped_since(str(tmp_path / "run"), time.time())


def test_the_steps_that_are_waited_for(tmp_path: Path, stand: Callable[..., Stand]) -> None:
    check = stand(0)
    with Recorder(tmp_path / "run", INFO, stop_on="RLD010, RLD011", stop_after=3) as run:
        record(run, range(10, 12))
        run.flush()
        time.sleep(3 * halting.POLL_SECONDS)
        assert not check.started
        assert not run.stop_decided
        record(run, range(12, 15))
        wait(lambda: run.stop_decided)
        assert not run.should_stop
    assert len(check.started) == 1
    assert check.started[0][1:7] == ["--first-steps", "3", "--select", "RLD010", "--select", "RLD011"]


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ({"code": 3}, "none of the chosen rules could judge"),
        ({"code": 2}, "exit code 2"),
        ({"code": 2, "document": {"failure": "no such folder"}}, "no such folder"),
        ({"error": ValueError("no rule is called RLD999")}, "no rule is called RLD999"),
        ({"error": ValueError("not done after 300 s")}, "not done after 300 s"),
        ({"code": 1, "document": {"diagnosis": []}}, "StopIteration"),
    ],
)
def test_a_check_that_cannot_tell_lets_the_training_go_on(
    tmp_path: Path, stand: Callable[..., Stand], caplog: pytest.LogCaptureFixture, made: dict[str, Any], why: str
) -> None:
    stand(**made)
    with Recorder(tmp_path / "run", INFO, stop_on=["RLD010"]) as run:
        record(run, range(1, 3))
        wait(lambda: run.stop_decided)
        assert run.recording
        assert not run.should_stop
        record(run, range(3, 6))
        assert run.flush()
    (line,) = [item.getMessage() for item in caplog.records]
    assert why in line
    assert line.endswith("the training goes on")


def test_the_other_ranks_are_waited_for(tmp_path: Path, stand: Callable[..., Stand]) -> None:
    check = stand(1, REPORT)
    info = {**INFO, "world_size": 2, "writing_ranks": [0, 1]}
    first = Recorder(tmp_path / "run", info, stop_on=["RLD010"])
    with first, Recorder(tmp_path / "run", info, rank=1, session=first.session, stop_on=["RLD010"]) as second:
        record(first, range(1, 3))
        record(second, range(1, 2))
        first.flush()
        second.flush()
        time.sleep(3 * halting.POLL_SECONDS)
        assert not check.started
        record(second, range(2, 3))
        wait(lambda: first.should_stop)
        assert not second.should_stop
    assert len(check.started) == 1


def test_a_run_that_goes_on_is_not_judged_by_its_earlier_steps(
    tmp_path: Path, stand: Callable[..., Stand], caplog: pytest.LogCaptureFixture
) -> None:
    check = stand(1, REPORT)
    with Recorder(tmp_path / "run", INFO) as run:
        record(run, range(1, 3))
    with Recorder(tmp_path / "run", INFO, stop_on=["RLD010"]) as again:
        record(again, range(3, 6))
        wait(lambda: again.stop_decided)
    assert not check.started
    assert "earlier session" in caplog.text


def test_off_by_default(tmp_path: Path, stand: Callable[..., Stand]) -> None:
    check = stand(1, REPORT)
    for value in (None, (), ""):
        with Recorder(tmp_path / f"run{value!r}", INFO, stop_on=value) as run:
            record(run, range(1, 6))
            run.flush()
            assert run.stop_decided
            assert not run.can_stop
            assert not run.should_stop
    assert not check.started


@pytest.mark.parametrize(
    "wrong", [{"stop_on": 10}, {"stop_on": [10]}, {"stop_on": ["RLD010"], "stop_after": 0}, {"stop_after": "2"}]
)
def test_wrong_options_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture, wrong: dict[str, Any]) -> None:
    with Recorder(tmp_path / "run", INFO, **wrong) as run:
        record(run, range(1, 3))
    assert not run.should_stop
    assert len(caplog.records) == 1
    assert "stop_" in caplog.text


def test_a_check_that_still_runs_is_ended_with_the_recording(tmp_path: Path, stand: Callable[..., Stand]) -> None:
    check = stand(1, REPORT)
    check.running = True
    with Recorder(tmp_path / "run", INFO, stop_on=["RLD010"]) as run:
        record(run, range(1, 3))
        wait(lambda: bool(check.started))
    assert check.stopped
    assert not run.should_stop


def wrong_run(folder: Path, *, healthy: bool) -> Recorder:
    """A recorded run whose mask covers padding, or does not; more than one step."""
    made = Recorder(folder, INFO, stop_on=["mask-covers-padding"])
    rng = np.random.default_rng(0)
    for step in range(1, 5):
        lengths = rng.integers(3, 9, 32)
        inside = np.arange(10) < lengths[:, None]
        ids = np.where(inside, rng.integers(5, 30, (32, 10)), 0)
        logprob = rng.normal(-1.0, 0.2, (32, 10)).clip(max=-0.01)
        made.log_batch(
            step=step, logprob=logprob, old_logprob=logprob, token_id=ids, response_length=lengths,
            response_mask=inside if healthy else np.ones_like(inside), reward=rng.random(32), group=np.repeat(np.arange(8), 4),
            attention_mask=np.ones_like(inside), advantage=np.repeat(rng.normal(size=(32, 1)), 10, 1),
        )  # fmt: skip
    made.end_step(4)
    return made


@pytest.mark.parametrize("healthy", [True, False])
def test_the_real_check(tmp_path: Path, caplog: pytest.LogCaptureFixture, healthy: bool) -> None:
    caplog.set_level(logging.WARNING)
    run = wrong_run(tmp_path / "run", healthy=healthy)
    wait(lambda: run.stop_decided, 120.0)
    assert run.should_stop is not healthy
    assert ("RLD010" in (run.stop_reason or "")) is not healthy
    assert len(caplog.records) == (0 if healthy else 1)
    run.close()


def test_a_process_that_does_not_start_or_print_a_report(tmp_path: Path) -> None:
    check = CheckProcess([str(tmp_path / "nothing"), "--select", "RLD010"], niceness=0)
    wait(lambda: not check.running)
    assert "nothing: no such file" in check.result()[1]["failure"]
    unknown = CheckProcess([str(tmp_path), "--select", "no-such-rule"], niceness=0)
    wait(lambda: not unknown.running)
    with pytest.raises(ValueError, match="no rule 'no-such-rule'"):
        unknown.result()
    slow = CheckProcess([str(tmp_path / "nothing")])
    slow._deadline = 0.0
    if slow.running:
        pytest.fail("it is over time")
    slow.stop()
