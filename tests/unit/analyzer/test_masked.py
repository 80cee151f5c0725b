"""What stands at untrained tokens."""

from __future__ import annotations

import math

import pytest

from tests.unit.analyzer.test_masks import NAN, row, value


def test_kl_of_observations_alone() -> None:
    made = row([5] * 4, "1001", logprob=[-1.0, -4.0, -5.0, -1.0], ref_logprob=[-1.0, -1.0, -2.0, -1.0])
    assert value("masked.kl_k1", made) == -3.0
    assert value("masked.kl_k3", made) == pytest.approx(math.exp(3.0) - 1 - 3.0)


def test_what_is_not_finite_or_beyond_the_length_is_left_out() -> None:
    made = row([5] * 4, "1000", logprob=[-1.0, NAN, -2.0, -9.0], ref_logprob=[-1.0, -1.0, -1.0, -1.0], response_length=3)
    assert value("masked.kl_k1", made) == -1.0


def test_rewards_of_observations() -> None:
    made = row([5] * 5, "10010", token_reward=[0.0, -0.5, -0.5, 3.0, -9.0])
    assert value("masked.rewarded_frac", made) == 1.0
    assert value("masked.reward_share", made) == pytest.approx(1.0 / 13.0)
    assert value("masked.rewarded_frac", row([5] * 4, "1001", token_reward=[0.0, 0.0, 0.0, 1.0])) == 0.0


def test_advantages_of_observations() -> None:
    made = row([5] * 6, "100101", advantage=[1.0, 1.0, 0.0, 1.0, NAN, 1.0])
    assert value("masked.advantage_frac", made) == pytest.approx(1 / 3)
    assert math.isnan(value("masked.advantage_frac", row([5] * 4, "1100", advantage=[1.0] * 4)))


def test_returns_that_fall_over_gaps() -> None:
    rows = []
    for gap in range(1, 9):
        returns = [1.0 + 0.1 * gap, 1.0 + 0.1 * gap - 0.001] + [0.0] * gap + [1.0, 1.0]
        rows.append(row([5] * len(returns), "11" + "0" * gap + "11", **{"return": returns}))
    assert value("masked.return_jump_corr", *rows) == pytest.approx(1.0, abs=1e-3)
    assert value("masked.return_jump_ratio", *rows) > 100.0


def test_one_return_for_a_row_says_nothing() -> None:
    rows = [row([5] * 5, "11011", **{"return": [0.5] * 5}) for _ in range(3)]
    assert math.isnan(value("masked.return_jump_ratio", *rows))


def test_where_the_outcome_stands() -> None:
    right = row([5] * 4, "1110", token_reward=[0.0, 0.0, 1.0, 0.0], left_padding=2)
    early = row([5] * 4, "1111", token_reward=[0.0, 1.0, 0.0, 0.0], left_padding=2)
    dense = row([5] * 4, "1111", token_reward=[0.5, 0.5, 0.5, 0.5], left_padding=0)
    plain = row([5] * 2, "11", token_reward=[0.0, 1.0], left_padding=0)
    rows = (right, early, dense, plain)
    assert value("mask.reward_off_last_frac", *rows) == pytest.approx(1 / 3)
    assert value("mask.reward_off_by_padding_frac", *rows) == 1.0
    assert value("mask.reward_off_padded_frac", *rows) == 0.5
    assert value("mask.reward_off_unpadded_frac", *rows) == 0.0
