"""Rewards by source, place and group, against plain counting; what they are made of; and what advantages are held against."""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np
import pytest

from rl_doctor.analyzer.engine import analyze
from rl_doctor.schema import RunConfig
from tests.unit.analyzer.memory import MemoryRun, Row

PLAIN = RunConfig()


def one(rows: list[Row], name: str, config: RunConfig = PLAIN) -> float:
    """The value of a metric on rows of one step, cut into batches at random."""
    return float(analyze(MemoryRun(rows, config, cut=1), [name]).series[name].values[0])


def row(index: int, **values: Any) -> Row:
    plain: Row = {"step": 0, "sequence": index, "uid": str(index), "group": "g", "reward": 0.0}
    return plain | values


def test_mean_and_spread_by_source() -> None:
    rows = [row(i, data_source=source, reward=reward) for i, (source, reward) in enumerate([("a", 1.0), ("a", 0.0), ("b", 0.5)])]
    found = analyze(MemoryRun(rows, cut=2), ["reward.mean_by.source.", "reward.std_by.source."]).series
    values = {name: float(series.values[0]) for name, series in found.items()}
    assert values == {
        "reward.mean_by.source.a": 0.5, "reward.mean_by.source.b": 0.5,
        "reward.std_by.source.a": 0.5, "reward.std_by.source.b": 0.0,
    }  # fmt: skip


def test_places_count_the_groups_of_each_rank_in_the_order_of_rows() -> None:
    groups = ["x", "x", "y", "y", "z", "z", "w", "w"]
    rows = [row(i, group=group, rank=i // 4, reward=float(i // 2)) for i, group in enumerate(groups)]
    found = analyze(MemoryRun(rows, cut=3), ["reward.mean_by.place."]).series
    assert {name[-1]: float(series.values[0]) for name, series in found.items()} == {"0": 1.0, "1": 2.0}


@pytest.mark.parametrize(("rewards", "expected"), [((1, 1, 0, 0), 1.0), ((1, 0, 1, 0), 0.0), ((3, 1, 1, 1), 1 / 3)])
def test_share_of_variance_between_groups(rewards: tuple[float, ...], expected: float) -> None:
    rows = [row(i, group="ab"[i // 2], reward=float(reward)) for i, reward in enumerate(rewards)]
    assert one(rows, "reward.between_frac") == pytest.approx(expected)


def test_no_spread_and_no_groups_have_no_share_between() -> None:
    assert math.isnan(one([row(i) for i in range(4)], "reward.between_frac"))
    assert math.isnan(one([row(i, group=str(i), reward=float(i)) for i in range(4)], "reward.between_frac"))


def test_empty_responses_and_what_they_earn() -> None:
    rows = [
        row(i, reward=reward, response_length=length, finish_reason=reason)
        for i, (reward, length, reason) in enumerate([(1.0, 1, "stop"), (0.0, 0, "stop"), (1.0, 5, "stop"), (1.0, 1, "abort")])
    ]
    assert one(rows, "reward.empty_frac") == pytest.approx(2 / 3)
    assert one(rows, "reward.empty_mean") == 0.5


def test_copies_between_groups_and_twins_within() -> None:
    texts = [("g", [1, 2], 1.0), ("g", [1, 2], 0.0), ("h", [1, 2], 1.0), ("h", [3], 0.5), ("h", [3], 0.5)]
    rows = [row(i, group=group, token_id=text, reward=reward) for i, (group, text, reward) in enumerate(texts)]
    assert one(rows, "reward.copied_mean") == pytest.approx(2 / 3)
    assert one(rows, "reward.uncopied_mean") == 0.5
    assert one(rows, "reward.twins_differ_frac") == 0.5


def test_groups_of_several_prompts() -> None:
    rows = [row(i, group="ab"[i // 2], prompt_length=length) for i, length in enumerate([4, 4, 4, 5])]
    assert one(rows, "group.mixed_frac") == 0.5


@pytest.mark.parametrize(
    "lengths", [[40, 42, 41, 43, 90, 92, 91, 93] * 2, [7, 50, 31, 12, 44, 9, 61, 28, 33, 71, 15, 80, 5, 66, 23, 58]]
)
def test_a_prompt_that_is_put_together_anew_is_one(lengths: list[int]) -> None:
    rows = [row(i, group="abcd"[i // 4], prompt_length=length) for i, length in enumerate(lengths)]
    assert one(rows, "group.mixed_frac") == 0.0


def test_the_reward_against_its_components() -> None:
    rows = [row(i, reward=r, **{"reward/a": a, "reward/b": b}) for i, (r, a, b) in enumerate([(3.0, 1.0, 1.0), (1.0, 1.0, 0.0)])]
    config = RunConfig(reward_weights={"a": 1.0, "b": 2.0})
    assert one(rows, "composition.weighted_off", config) == 0.0
    assert one(rows, "composition.sum_off", config) == 0.5
    assert "composition.weighted_off" not in analyze(MemoryRun(rows), ["composition."]).series


def test_rewards_of_other_rows_differ_in_place_and_not_in_order() -> None:
    rows = [row(i, reward=r, score=s) for i, (r, s) in enumerate([(1.0, 0.0), (0.0, 1.0), (0.5, 0.5)])]
    assert one(rows, "reward.score_off") == pytest.approx(2 / 3)
    assert one(rows, "reward.score_sorted_off") == 0.0


def test_advantage_of_groups_without_a_success() -> None:
    made = [("a", 0.0, 0.1, 1.0), ("a", 0.0, 0.0, -1.0), ("b", 1.0, 0.0, 0.5), ("b", 0.0, 0.0, -0.5)]
    rows = [
        row(i, group=group, reward=success + form, advantage=[advantage] * 2, **{"reward/task": success, "reward/form": form})
        for i, (group, success, form, advantage) in enumerate(made)
    ]
    assert one(rows, "signal.failed_mass.task") == pytest.approx(2 / 3)
    assert one(rows, "signal.failed_groups.task") == 0.5
    assert one(rows, "adv.negative_mass_frac") == 0.5


def _advantages(values: list[float], rewards: list[float], groups: str, size: int = 3) -> list[Row]:
    return [
        row(i, group=g, reward=r, advantage=[a] * size) for i, (a, r, g) in enumerate(zip(values, rewards, groups, strict=True))
    ]


def test_advantages_against_rewards() -> None:
    rows = _advantages([1.0, -1.0, 0.5, 0.5], [1.0, 0.0, 1.0, 1.0], "aabb")
    assert one(rows, "advantage.reward_corr") == pytest.approx(1.0)
    assert one(rows, "advantage.equal_groups_abs_mean") == 0.5
    turned = _advantages([-1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 1.0, 1.0], "aabb")
    assert one(turned, "advantage.reward_corr") == pytest.approx(-1.0)


def test_a_line_in_the_reward_correlates_fully_over_the_batch() -> None:
    rewards = [0.0, 1.0, 3.0, 4.0]
    rows = _advantages([2.0 * reward - 3.0 for reward in rewards], rewards, "aabb")
    assert one(rows, "advantage.batch_corr") == pytest.approx(1.0)
    assert one(_advantages([-1.0, 1.0, -1.0, 1.0], rewards, "aabb"), "advantage.batch_corr") < 0.5


def test_what_varies_within_responses_and_with_the_position() -> None:
    columns = [row(i, advantage=[0.0, 1.0, 2.0]) for i in range(4)]
    assert one(columns, "adv.place_frac") == pytest.approx(1.0)
    assert one(columns, "adv.inside_frac") == pytest.approx(2.0 / 5.0)
    rows = _advantages([1.0, -1.0, 2.0, -2.0], [1.0, 0.0, 1.0, 0.0], "aabb")
    assert one(rows, "adv.place_frac") == pytest.approx(0.0)
    assert one(rows, "adv.inside_frac") == pytest.approx(0.0)


def test_mean_and_deviation_of_each_rank_are_over_tokens() -> None:
    rows = [
        row(i, rank=i // 2, advantage=[value] * size) for i, (value, size) in enumerate([(1.0, 1), (-1.0, 3), (2.0, 2), (0.0, 2)])
    ]
    found = analyze(MemoryRun(rows, cut=4), ["adv."]).series
    assert float(found["adv.mean_by.rank.0"].values[0]) == -0.5
    assert float(found["adv.std_by.rank.0"].values[0]) == pytest.approx(statistics.pstdev([1.0, -1.0, -1.0, -1.0]))
    assert float(found["adv.mean_by.rank.1"].values[0]) == 1.0


def _whitened(values: list[float]) -> list[float]:
    return [(value - statistics.mean(values)) / (statistics.stdev(values) + 1e-6) for value in values]


def test_each_mistaken_formula_is_told_by_a_difference_of_0() -> None:
    rng = np.random.default_rng(0)
    rewards, groups = rng.random(12).tolist(), "aaaabbbbcccc"
    parts = [rewards[i : i + 4] for i in (0, 4, 8)]
    grouped = [value for part in parts for value in _whitened(part)]
    others = [
        (r - statistics.mean(rest)) / (statistics.stdev(rest) + 1e-6)
        for part in parts for j, r in enumerate(part) for rest in [part[:j] + part[j + 1 :]]
    ]  # fmt: skip
    halves = [rewards[i::2] for i in (0, 1)]
    by_rank = [_whitened(halves[i % 2])[i // 2] for i in range(12)]
    shuffled = "abcabcabcabc"
    for name, values, labels in (
        ("raw", rewards, groups), ("twice", _whitened(grouped), groups), ("leave_one_out", others, groups),
        ("rank_whitened", by_rank, groups), ("neighbours", grouped, shuffled),
    ):  # fmt: skip
        rows = [item | {"rank": i % 2} for i, item in enumerate(_advantages(values, rewards, labels))]
        assert one(rows, f"advantage.other_{name}") == pytest.approx(0.0, abs=1e-5), name
        right = [item | {"rank": i % 2} for i, item in enumerate(_advantages(grouped, rewards, groups))]
        if name != "neighbours":
            assert one(right, f"advantage.other_{name}") > 0.02, name


def test_responses_that_are_not_trained_on_count_in_no_baseline_of_this_formula() -> None:
    rewards = [1.0, 0.0, 0.0, 1.0]
    kept = _whitened(rewards[:3])
    rows = [
        row(i, reward=reward, advantage=[advantage] * 2, response_mask=[trained] * 2)
        for i, (reward, advantage, trained) in enumerate(zip(rewards, [*kept, 0.0], [True, True, True, False], strict=True))
    ]
    assert one(rows, "advantage.other_trained_only") == pytest.approx(0.0, abs=1e-5)


def test_lengths_by_what_the_others_of_the_group_earn() -> None:
    made = [("a", 1.0, 10), ("a", 0.0, 30), ("b", 1.0, 99), ("b", 1.0, 99)]
    rows = [row(i, group=group, reward=reward, response_length=length) for i, (group, reward, length) in enumerate(made)]
    assert one(rows, "length.more_earned_mean") == 10.0
    assert one(rows, "length.less_earned_mean") == 30.0
