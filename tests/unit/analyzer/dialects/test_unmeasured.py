"""What is 0 in every row: a number that was never measured, one that the log rounds away, or a failure."""

from __future__ import annotations

import numpy as np
import pytest

from rl_doctor.schema import RunConfig, RunInfo
from tests.unit.analyzer.dialects.logs import LOGS, STEPS, meanings, read, varied

GRPO = varied(LOGS["TRL_GRPO"].names())
HOME = varied(LOGS["HOME_MADE"].names())
VERL = varied(LOGS["VERL"].names())


@pytest.mark.parametrize("name", ["entropy", "approx_kl", "kl", "value_loss", "explained_variance", "mean_response_length"])
def test_what_cannot_be_0_throughout_was_not_measured(name: str) -> None:
    found = read({**HOME, name: 0.0})
    assert LOGS["HOME_MADE"].means[name] not in meanings(found)
    (note,) = (note for note in found.notes if note.startswith(f"{name} is 0 in every row: taken as not measured"))
    assert ("check that the reference is not the trained model" in note) == (name == "kl")
    assert name not in found.unknown


@pytest.mark.parametrize("name", ["reward/mean", "reward/std", "clip_frac", "grad_norm", "advantage/max", "policy_loss", "lr"])
def test_what_can_be_0_throughout_is_a_number(name: str) -> None:
    metric = LOGS["HOME_MADE"].means[name]
    assert metric is not None
    assert meanings(read({**HOME, name: 0.0}))[metric] == [0.0] * STEPS


def test_a_value_that_is_0_now_and_then_was_measured() -> None:
    values = np.where(np.arange(STEPS) == 3, 1e-9, 0.0)
    assert meanings(read({**HOME, "kl": values}))["ref.kl"][3] == 1e-9


def test_a_kl_that_is_logged_only_where_it_is_measured_is_a_number() -> None:
    assert meanings(read({**GRPO, "kl": 0.0}))["ref.kl"] == [0.0] * STEPS
    assert meanings(read({**VERL, "actor/ppo_kl": 0.0, "actor/kl_loss": 0.0})).keys() >= {"policy.kl_old_k1", "ref.kl"}
    assert "policy.entropy" not in meanings(read({**GRPO, "entropy": 0.0}))


def test_a_kl_of_0_is_a_number_where_it_is_penalised() -> None:
    assert "ref.kl" in meanings(read({**HOME, "kl": 0.0}, RunInfo(config=RunConfig(kl_coef=0.01))))
    assert "ref.kl" in meanings(read({**HOME, "kl": 0.0, "beta": 0.04}))
    assert "ref.kl" not in meanings(read({**HOME, "kl": 0.0, "beta": 0.0}))


def test_a_log_that_rounds_may_show_0_for_small_numbers() -> None:
    rounded = {name: np.round(np.asarray(values), 3) for name, values in VERL.items()}
    found = read({**rounded, "actor/lr": 0.0, "actor/ppo_kl": 0.0, "actor/kl_loss": 0.0, "actor/pg_clipfrac": 0.0})
    got = meanings(found)
    assert not {"optim.learning_rate", "policy.kl_old_k1", "ref.kl"} & got.keys()
    assert "policy.clip_frac" in got
    assert any(note.startswith("actor/lr is 0 in every row of a log that rounds") for note in found.notes)
    exact = read({**rounded, "actor/lr": 0.0, "actor/grad_norm": 0.12345})
    assert meanings(exact)["optim.learning_rate"] == [0.0] * STEPS


def test_a_canonical_name_is_taken_at_its_word() -> None:
    assert meanings(read({"policy.entropy": 0.0, "reward.mean": 0.5}))["policy.entropy"] == [0.0] * STEPS
