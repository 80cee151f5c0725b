"""verl's own loop ends where the first steps are wrong: the step after becomes the last one, which saves and validates."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_doctor import open_run
from tests.trainers.verl.fitting import STEPS
from tests.trainers.warm import Warm

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(600)]


CHOSEN = {"RL_DOCTOR_STOP_ON": "RLD011, mask-covers-padding", "RL_DOCTOR_STOP_AFTER": "2"}


def fitted(warm: Warm, folder: Path, *, wrong: bool) -> tuple[dict[str, list[int]], str]:
    made, _, said = warm.run("tests.trainers.verl.fitting", {"wrong": wrong}, RL_DOCTOR_RUN=str(folder), **CHOSEN)
    return made, said


def test_a_wrong_mask_ends_the_training(warm: Warm, tmp_path: Path) -> None:
    made, said = fitted(warm, tmp_path / "run", wrong=True)
    last = made["steps"][-1]
    assert 2 < last < STEPS
    assert made["saved"] == made["validated"] == [last]
    assert said.count("the training should stop: RLD010") == 1
    run = open_run(tmp_path / "run")
    assert run.info.status == "complete"
    assert run.facts.last_step == last


def test_a_healthy_training_runs_through(warm: Warm, tmp_path: Path) -> None:
    made, said = fitted(warm, tmp_path / "run", wrong=False)
    assert made["steps"] == list(range(1, STEPS + 1))
    assert made["saved"] == made["validated"] == [STEPS]
    assert "should stop" not in said
