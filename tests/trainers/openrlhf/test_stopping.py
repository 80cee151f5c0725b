"""OpenRLHF's own loop runs out of prompts where the first steps are wrong, and ends as it does after the last one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rl_doctor import open_run
from tests.trainers.openrlhf.fitting import STEPS
from tests.trainers.warm import Warm

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(600)]


CHOSEN = {"RL_DOCTOR_STOP_ON": "mask-covers-padding"}


def fitted(warm: Warm, folder: Path, *, wrong: bool) -> tuple[dict[str, Any], str]:
    made, out, err = warm.run("tests.trainers.openrlhf.fitting", {"wrong": wrong}, RL_DOCTOR_RUN=str(folder), **CHOSEN)
    return made, out + err


def test_a_wrong_mask_ends_the_training(warm: Warm, tmp_path: Path) -> None:
    made, said = fitted(warm, tmp_path / "run", wrong=True)
    assert 2 <= made["steps"][-1] < STEPS
    assert made["closed"] == 1
    assert said.count("the training should stop: RLD010") == 1
    run = open_run(tmp_path / "run")
    assert run.info.status == "complete"
    assert run.facts.last_step == made["steps"][-1]


def test_a_healthy_training_runs_through(warm: Warm, tmp_path: Path) -> None:
    made, said = fitted(warm, tmp_path / "run", wrong=False)
    assert made["steps"] == list(range(1, STEPS + 1))
    assert made["closed"] == 1
    assert "should stop" not in said
