"""What a run's description says in vain is told in one line each, and what trainers really say is not."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from rl_doctor.schema import MEMBERS, PREFERENCE, SETTINGS, SUPERVISED, RunConfig, RunInfo
from rl_doctor.store.info import doubts, info_from_json

TRAINERS_SAY: dict[str, tuple[Any, ...]] = {
    "adv_estimator": ("gae", "reinforce_plus_plus_baseline", "flash_reinforce", "gdpo", "optimal_token_baseline", "GRPO"),
    "is_correction": ("none", "token_truncate", "sequence_mask", "bypass"),
    "top_k": (-1, 0, 50),
    "temperature": (0.0, 1.0),
    "max_grad_norm": (0.0, 1.0),
    "clip_high": (0.0, 4.0, float("inf")),
    "kl_in_reward": (True, False),
    "entropy_coef": (-0.01, 0.0),
}


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("kl_estimator", "k9", "k1"),
        ("kl_estimator", "K3", "did you mean k3?"),
        ("loss_agg", "weird", "token-mean, seq-mean-token-mean, seq-mean-token-sum or seq-mean-token-sum-norm"),
        ("loss_agg", "token_mean", "did you mean token-mean"),
        ("adv_norm", "grp", "did you mean group?"),
        ("adv_estimator", "grppo", "did you mean grpo"),
        ("group_size", -3, "at least 1"),
        ("clip_low", -5, "at least 0"),
        ("temperature", -1, "at least 0"),
        ("temperature", float("nan"), "at least 0"),
        ("top_p", 1.5, "at most 1"),
        ("dual_clip", 0.2, "at least 1"),
        ("gamma", 99, "at most 1"),
    ],
)
def test_nonsense_is_told_by_name_with_the_nearest_right_value(name: str, value: Any, hint: str) -> None:
    (told,) = doubts(info_from_json({"config": {name: value}}, "info"))
    assert told.startswith(f"config.{name} is {value!r}, which ")
    assert hint in told
    assert "\n" not in told


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in TRAINERS_SAY.items() for value in values])
def test_what_trainers_say_is_not_doubted(name: str, value: Any) -> None:
    assert doubts(info_from_json({"config": {name: value}}, "info")) == ()


def test_algorithms_that_rules_know_are_not_doubted() -> None:
    assert [word for word in (*PREFERENCE, *SUPERVISED, "online_dpo") if doubts(RunInfo(algorithm=word))] == []
    assert "did you mean grpo" in doubts(RunInfo(algorithm="grppo"))[0]


def test_every_member_is_explained_and_every_known_word_is_accepted() -> None:
    assert list(SETTINGS) == [field.name for field in fields(RunConfig)]
    assert list(MEMBERS) == [field.name for field in fields(RunInfo)]
    for name, known in SETTINGS.items():
        for value in (*known.words, *(bound for bound in (known.least, known.most) if bound is not None)):
            assert doubts(info_from_json({"config": {name: value}}, "info")) == ()
