"""A job with a wrong mask ends a few steps after its second, with its weights saved; a healthy one runs through."""

from __future__ import annotations

from typing import Any

import pytest

from tests.trainers.trl.conftest import Train

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(600)]

CHOSEN = {"stop_on": ["mask-covers-padding"]}
STEPS: dict[str, Any] = {"max_steps": 12, "save_strategy": "steps", "save_steps": 100}


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_wrong_mask_ends_the_training(train: Train, ranks: int) -> None:
    ended = train(ranks=ranks, args=STEPS, mask=True, until="the training should stop", recorder=CHOSEN)
    assert 2 <= ended.step < 12
    assert ended.saved == [f"checkpoint-{ended.step}"]
    assert ended.stop is not None
    assert "RLD010" in ended.stop
    assert ended.reason is None
    assert ended.left == []
    assert ended.run.facts.last_step == ended.step
    assert ended.run.info.status == "complete"
    lines = [line for line in ended.said.splitlines() if "the training should stop" in line]
    assert len(lines) == 1


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_healthy_training_runs_through_and_is_the_same(train: Train, ranks: int) -> None:
    plain = train(ranks=ranks, args=STEPS, record=False)
    through = train(ranks=ranks, args=STEPS, pause=0.5, recorder=CHOSEN)
    assert (through.step, through.stop, through.reason) == (12, None, None)
    assert through.saved == plain.saved
    assert through.weights == plain.weights
    assert through.rng == plain.rng
    assert "should stop" not in through.said


def test_a_rule_that_there_is_not_stops_nothing(train: Train) -> None:
    through = train(args=STEPS, mask=True, until="no-such-rule", recorder={"stop_on": ["no-such-rule"]})
    assert (through.step, through.stop) == (12, None)
    assert "no rule 'no-such-rule'" in through.said
