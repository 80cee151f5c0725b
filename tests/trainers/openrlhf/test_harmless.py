"""A recorder changes nothing of the training: neither while it works nor when it fails."""

from __future__ import annotations

from typing import Any

import pytest

from tests.trainers.openrlhf.conftest import Train, Trained
from tests.trainers.said import of_ours

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(600)]

CASES: dict[str, dict[str, Any]] = {
    "group_norm": {"args": {}},
    "critic": {
        "args": {"algo.advantage.estimator": "gae", "actor.entropy_coef": 0.01, "actor.gradient_checkpointing_enable": True}
    },
    "two_ranks": {"ranks": 2, "args": {"algo.kl.use_loss": True, "algo.kl.estimator": "k3"}},
}


def assert_same_training(recorded: Trained, plain: Trained) -> None:
    assert recorded.weights == plain.weights
    assert recorded.rng == plain.rng
    assert recorded.log == plain.log


@pytest.mark.parametrize("case", CASES)
def test_recorded_training_is_the_same_to_the_last_bit(train: Train, case: str) -> None:
    recorded = train(**CASES[case])
    assert of_ours(recorded.said) == []
    assert_same_training(recorded, train(**CASES[case], record=False))


@pytest.mark.parametrize("options", [{"break_at": 2}, {"record": "/proc/nowhere"}], ids=["folder replaced", "nowhere to write"])
def test_a_recorder_that_fails(train: Train, options: dict[str, Any]) -> None:
    recorded = train(args={}, **options)
    assert_same_training(recorded, train(args={}, record=False))
    stopped = [line for line in recorded.said.splitlines() if "rl-doctor stopped recording" in line]
    # The controller and the process that trains are one here, with a recorder each.
    assert 1 <= len(stopped) <= 2, recorded.said
