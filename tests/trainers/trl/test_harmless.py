"""A recorder changes nothing of the training: neither while it works nor when it fails."""

from __future__ import annotations

from typing import Any

import pytest

from tests.trainers.trl.conftest import Train, Trained

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(600)]

SCHEDULE = {"num_iterations": 2, "gradient_accumulation_steps": 2, "steps_per_generation": 4, "max_steps": 8}


def assert_same_training(recorded: Trained, plain: Trained) -> None:
    assert recorded.weights == plain.weights
    assert recorded.rng == plain.rng
    assert recorded.logged() == plain.logged()
    assert recorded.left == []


@pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
def test_recorded_training_is_the_same_to_the_last_bit(train: Train, algorithm: str) -> None:
    plain = train(algorithm=algorithm, args=SCHEDULE, record=False)
    recorded = train(algorithm=algorithm, args=SCHEDULE)
    assert recorded.reason is None
    assert_same_training(recorded, plain)


def test_two_ranks(train: Train) -> None:
    assert_same_training(train(ranks=2, args=SCHEDULE), train(ranks=2, args=SCHEDULE, record=False))


@pytest.mark.parametrize(
    "options",
    [{"break_at": 3}, {"detach_at": 3}, {"recorder": {"queue_bytes": 1}}, {"record": "/proc/nowhere"}],
    ids=["folder replaced by a file", "detached", "no room in the queue", "nowhere to write"],
)
def test_a_recorder_that_fails_or_ends_in_the_middle(train: Train, options: dict[str, Any]) -> None:
    plain = train(args=SCHEDULE, record=False)
    recorded = train(args=SCHEDULE, **options)
    assert_same_training(recorded, plain)
    stopped = [line for line in recorded.said.splitlines() if "rl-doctor stopped recording" in line]
    assert len(stopped) == (1 if "break_at" in options or "record" in options else 0)
    if "detach_at" in options:
        assert recorded.run.facts.last_step == 3
        assert recorded.run.info.status == "complete"


def test_both_ranks_train_on_when_none_can_write(train: Train) -> None:
    recorded = train(ranks=2, args=SCHEDULE, record="/proc/nowhere")
    assert_same_training(recorded, train(ranks=2, args=SCHEDULE, record=False))
    assert recorded.said.count("rl-doctor stopped recording") == 2
