"""A recorder changes nothing of a training with verl: neither while it works nor when it fails."""

from __future__ import annotations

from typing import Any

import pytest

from tests.trainers.said import of_ours
from tests.trainers.verl.conftest import Train, Trained
from tests.trainers.verl.test_recording import DRIVER, LOOP

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(600)]


def assert_same_training(recorded: Trained, plain: Trained) -> None:
    assert recorded.weights == plain.weights
    assert recorded.rng == plain.rng
    assert recorded.fields == plain.fields
    assert recorded.logged() == plain.logged()


@pytest.mark.parametrize("options", [LOOP, DRIVER], ids=["loop", "driver and critic"])
def test_recorded_training_is_the_same_to_the_last_bit(train: Train, options: dict[str, Any]) -> None:
    plain = train(record=False, **options)
    assert of_ours(plain.said) == []
    assert not plain.folder.exists()
    assert_same_training(train(**options), plain)


def test_two_ranks(train: Train) -> None:
    assert_same_training(train(ranks=2, **DRIVER), train(ranks=2, record=False, **DRIVER))


@pytest.mark.parametrize(
    "how", [{"break_at": 1}, {"record": "/proc/nowhere"}], ids=["folder replaced by a file", "nowhere to write"]
)
@pytest.mark.parametrize("options", [LOOP, DRIVER], ids=["loop", "driver and critic"])
def test_a_recorder_that_fails(train: Train, options: dict[str, Any], how: dict[str, Any]) -> None:
    recorded = train(**options, **how)
    assert_same_training(recorded, train(record=False, **options))
    stopped = [line for line in recorded.said.splitlines() if "rl-doctor stopped recording" in line]
    assert 1 <= len(stopped) <= 4


def test_both_ranks_train_on_when_none_can_write(train: Train) -> None:
    recorded = train(ranks=2, record="/proc/nowhere", **DRIVER)
    assert_same_training(recorded, train(ranks=2, record=False, **DRIVER))
