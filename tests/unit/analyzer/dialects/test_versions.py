"""Where the same name means other things by version, by algorithm, or by what stands in the log."""

from __future__ import annotations

import numpy as np
import pytest

from rl_doctor.analyzer.dialects.registry import Bounds, Name, bounds_of
from rl_doctor.schema import RunInfo
from tests.unit.analyzer.dialects.logs import LOGS, STEPS, meanings, read, varied

SPREAD = 0.3 + 0.01 * np.arange(STEPS)
LEVEL = 0.5 + 0.01 * np.arange(STEPS)


@pytest.mark.parametrize(
    ("version", "inside"),
    [("0.26.2", False), ("0.27.0", True), ("1.16.0", True), ("1.0.0rc1", True), ("0.9", False), (None, False), ("main", False)],
)
def test_a_version_is_held_against_the_one_that_changed_the_meaning(version: str | None, inside: bool) -> None:
    assert bounds_of(version).within(Name("reward_std", "reward.std", since=(0, 27))) is inside


def test_bounds_from_two_sides() -> None:
    old = Name("reward_std", "group.std_mean", until=(0, 27))
    assert Bounds(None, (0, 17)).within(old)
    assert not Bounds((0, 23), None).within(old)
    assert not Bounds((0, 23), (1, 0)).within(old)


def reward_std(version: str | None, **values: object) -> str:
    names = [name for name in LOGS["TRL_GRPO"].names() if not name.startswith("rewards/")]
    found = meanings(read({**varied(names), **values}, RunInfo(trainer_version=version)))
    (meant,) = {"reward.std", "group.std_mean", "reward.spread"} & found.keys()
    return meant


def test_the_deviation_of_trl_is_that_of_the_batch_or_of_the_groups() -> None:
    assert reward_std("0.24.0") == "group.std_mean"
    assert reward_std("1.16.0") == "reward.std"
    assert reward_std(None) == "reward.spread"


def test_the_only_reward_function_tells_which_deviation_it_is() -> None:
    alone = {"reward": 2 * LEVEL, "rewards/task/mean": LEVEL, "rewards/task/std": SPREAD}
    assert reward_std(None, **alone, reward_std=2 * SPREAD) == "reward.std"
    assert reward_std(None, **alone, reward_std=0.4 * SPREAD) == "group.std_mean"
    assert reward_std(None, **alone, reward_std=np.zeros(STEPS)) == "group.std_mean"
    two = {**alone, "rewards/format/mean": LEVEL, "rewards/format/std": SPREAD}
    assert reward_std(None, **two, reward_std=SPREAD) == "reward.spread"


def test_a_kl_below_zero_leaves_the_algorithm_open() -> None:
    values = {**varied(LOGS["TRL_GRPO"].names()), "kl": np.linspace(-0.01, 0.01, STEPS)}
    found = read(values)
    assert (found.info.trainer, found.info.algorithm) == ("trl", None)
    assert meanings(found)["ref.kl"][0] == -0.01
    assert "ref.kl_k1" not in meanings(found)
    assert any("which of them it is is not known" in note for note in found.notes)
    for algorithm, metric in (("rloo", "ref.kl_k1"), ("grpo", "ref.kl")):
        told = read(values, RunInfo(trainer="trl", algorithm=algorithm))
        assert meanings(told)[metric][0] == -0.01
        assert not any("which of them it is is not known" in note for note in told.notes)
    assert read({**values, "kl": np.linspace(0.0, 0.01, STEPS)}).info.algorithm == "grpo"


def test_the_algorithm_that_was_told_counts() -> None:
    values = varied(LOGS["TRL_GRPO"].names())
    found = read(values, RunInfo(trainer="TRL", algorithm="dapo"))
    assert (found.info.trainer, found.info.algorithm) == ("TRL", "dapo")
    assert {"reward.mean", "ref.kl", "policy.entropy", "reward.spread"} <= meanings(found).keys()


def test_a_share_of_the_longest_response_is_no_truncation() -> None:
    values = {**varied(LOGS["VERL"].names()), "response_length/clip_ratio": 1 / 64}
    longest = 900.0 + 10 * np.arange(STEPS)
    found = read({**values, "response_length/max": longest})
    assert "length.limit_frac" not in meanings(found)
    assert "response_length/clip_ratio" in found.unknown
    assert any(note.startswith("response_length/clip_ratio is the share as long as the longest") for note in found.notes)
    assert "length.limit_frac" in meanings(read({**values, "response_length/max": 1024.0}))
    some = np.where(np.arange(STEPS) % 4 == 0, 0.05, 0.0)
    varying = np.where(some > 0.0, 1024.0, longest)
    limited = {**values, "response_length/max": varying, "response_length/clip_ratio": some}
    assert "length.limit_frac" in meanings(read(limited))


@pytest.mark.parametrize(
    ("version", "bounds", "words"),
    [
        ("0.9.1", Bounds((0, 9, 1), (0, 9, 2)), "0.9.1"),
        ("v0.9", Bounds((0, 9, 0), (0, 9, 1)), "0.9"),
        ("1.16.0.dev0", Bounds((1, 16, 0), (1, 16, 1)), "1.16"),
        (">=0.8", Bounds((0, 8, 0)), "0.8 or later"),
        ("<0.17", Bounds(None, (0, 17, 0)), "before 0.17"),
        (">=0.18,<0.27", Bounds((0, 18, 0), (0, 27, 0)), "0.18 or later, before 0.27"),
        (">=0.6.1, <0.8", Bounds((0, 6, 1), (0, 8, 0)), "0.6.1 or later, before 0.8"),
        ("<=0.8", Bounds(), ""),
        ("main", Bounds(), ""),
        (None, Bounds(), ""),
    ],
)
def test_a_version_is_read_and_told(version: str | None, bounds: Bounds, words: str) -> None:
    assert bounds_of(version) == bounds
    assert bounds.words == words
    assert bounds.exact or bounds_of(str(bounds)) == bounds


def test_two_numbers_are_as_good_as_three() -> None:
    assert Bounds((0, 17)).at_least((0, 17, 0))
    assert Bounds(None, (0, 17)).before((0, 17, 0))
    assert Bounds((0, 17), (0, 17, 1)).exact
    assert Bounds((0, 17), (0, 17, 0)).possible is False
    assert Bounds((0, 17)).meets(Bounds((0, 17, 1), (0, 18))) == Bounds((0, 17, 1), (0, 18))


def test_the_names_tell_bounds_of_the_version() -> None:
    values = varied(LOGS["TRL_GRPO"].names())
    assert bounds_of(read(values).info.trainer_version).at_least((0, 17))
    assert read(values, RunInfo(trainer_version="0.24.0")).info.trainer_version == "0.24.0"
    assert read(values, RunInfo(trainer="my own fork")).info.trainer_version is None
    both = {**values, "rewards/task": 0.5}
    assert read(both).info.trainer_version == "<0.17"
