"""What reduces comes out in the same bits however the batch is cut at sequences and in whatever order its parts come."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_doctor.analyzer.formulas import (
    advantage,
    aggregation,
    entropy,
    importance,
    rejection,
    returns,
    sequence_loss,
    token_baseline,
    value,
    whitening,
)
from rl_doctor.analyzer.formulas.groups import group
from rl_doctor.analyzer.formulas.segments import kept_splits, mean, segment_means, segment_sums, variance
from rl_doctor.analyzer.states import Sum

LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=12)
SEEDS = st.integers(0, 2**32 - 1)


def batch(lengths: list[int], seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    splits = np.append(0, np.cumsum(lengths)).astype(np.int64)
    return rng.normal(size=splits[-1]) * 10.0 ** rng.integers(-8, 8, splits[-1]), splits


@given(LENGTHS, SEEDS, st.data())
def test_sums_of_sequences_do_not_depend_on_the_batch(lengths: list[int], seed: int, data: st.DataObject) -> None:
    values, splits = batch(lengths, seed)
    whole = segment_sums(values, splits)
    cut = data.draw(st.integers(0, len(lengths)))
    at = splits[cut]
    parts = segment_sums(values[:at], splits[: cut + 1]), segment_sums(values[at:], splits[cut:] - at)
    assert np.concatenate(parts).tobytes() == whole.tobytes()


@given(LENGTHS, SEEDS, st.data())
def test_an_aggregated_loss_is_the_sum_of_its_parts(lengths: list[int], seed: int, data: st.DataObject) -> None:
    values, splits = batch(lengths, seed)
    counts = np.diff(splits)
    order = data.draw(st.permutations(range(len(lengths))))
    factors = aggregation.sequence_mean_token_mean(counts, eps=1e-8)
    sums = segment_sums(values, splits)
    whole = aggregation.aggregated(sums, factors)
    shuffled = list(order)
    assert aggregation.aggregated(sums[shuffled], factors[shuffled]) == whole
    cut = data.draw(st.integers(0, len(lengths)))
    parts = [Sum.of(sums[rows] * factors[rows]) for rows in (shuffled[cut:], shuffled[:cut])]
    assert (parts[0] + parts[1]).value == whole


REDUCED: dict[str, Callable[[Any], float]] = {
    "mean": mean,
    "variance": lambda x: variance(x, 1),
    "effective_share": lambda x: importance.effective_share(np.abs(x)),
    "weight_deviation": importance.weight_deviation,
    "chi_squared_tokens": importance.chi_squared_tokens,
    "explained_variance": lambda x: value.explained_variance(np.round(x, 1), x),
}


@pytest.mark.parametrize("name", REDUCED)
@given(LENGTHS, SEEDS)
@settings(max_examples=30)
def test_a_reduced_number_does_not_depend_on_the_order(name: str, lengths: list[int], seed: int) -> None:
    values, _ = batch(lengths, seed)
    shuffled = np.random.default_rng(seed + 1).permutation(values)
    assert str(REDUCED[name](values)) == str(REDUCED[name](shuffled))


SPREAD: dict[str, Callable[[Any, Any], Any]] = {
    "grpo": advantage.grpo, "rloo": advantage.rloo, "dr_grpo": advantage.dr_grpo, "grpo_batch": advantage.grpo_batch,
    "leave_one_out": advantage.leave_one_out, "maxrl": advantage.maxrl, "grpo_pass_k": advantage.grpo_pass_k,
    "gpg": advantage.gpg, "standardised": lambda r, _: advantage.standardised(r),
    "opo": lambda r, g: advantage.opo(r, np.abs(r * 10).astype(np.int64) % 7 + 1, g),
    "whiten": lambda r, _: whitening.whiten(r), "whiten_floored": lambda r, _: whitening.whiten_floored(r),
    "squares": lambda r, g: group(r, g).squares,
}  # fmt: skip


@pytest.mark.parametrize("name", SPREAD)
@given(st.integers(1, 40), SEEDS)
@settings(max_examples=30)
def test_an_advantage_does_not_depend_on_the_order_of_the_responses(name: str, size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rewards, labels = rng.choice([rng.normal(size=size), np.round(rng.normal(size=size)) + 0.0]), rng.integers(0, 4, size)
    order = rng.permutation(size)
    found = SPREAD[name](rewards, labels)
    assert SPREAD[name](rewards[order], labels[order]).tobytes() == found[order].tobytes()


@given(st.integers(1, 70), st.integers(2, 9000), SEEDS, st.data())
@settings(max_examples=25, deadline=None)
def test_shards_of_a_vocabulary_merge_to_the_whole(count: int, vocabulary: int, seed: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=(count, vocabulary)) * rng.choice([0.1, 5.0, 60.0])).astype(
        rng.choice([np.float16, np.float32, np.float64])
    )
    edges = sorted({0, vocabulary, *data.draw(st.lists(st.integers(1, vocabulary - 1), max_size=5))})
    shards = [entropy.logit_sums(logits[:, a:b]) for a, b in pairwise(edges)]
    merged = shards[0]
    for shard in shards[1:]:
        merged = entropy.merged(shard, merged)
    whole = entropy.entropy(logits)
    assert np.abs(entropy.entropy_of(merged) - whole).max() <= 1e-12 * np.log(vocabulary) + 1e-13
    wide = logits.astype(np.float64)
    chance = np.exp(wide - wide.max(axis=1, keepdims=True))
    chance /= chance.sum(axis=1, keepdims=True)
    plain = -np.where(chance > 0, chance * np.log(np.maximum(chance, 1e-320)), 0.0).sum(axis=1)
    assert np.abs(whole - plain).max() <= 1e-11


def test_nan_outside_the_mask_does_not_leak() -> None:
    values, splits = batch([3, 0, 5, 1], 0)
    keep = np.array([True, False, True, False, False, True, False, True, False])
    told = np.where(keep, values, np.nan)
    inner = kept_splits(splits, keep)
    expected = [np.mean(values[[0, 2]]), 0.0, np.mean(values[[5, 7]]), 0.0]
    assert segment_means(told[keep], inner).tolist() == pytest.approx(expected)


ALONG: dict[str, Callable[[Any, Any], Any]] = {
    "segment_sums": segment_sums, "segment_means": segment_means,
    "discounted_sums": lambda x, s: returns.discounted_sums(x, s, 0.9),
    "gae_advantage": lambda x, s: returns.gae_advantage(x, x, s, 0.99, 0.95),
    "sequence_log_ratio": sequence_loss.sequence_log_ratio,
    "geometric_mean_loss": lambda x, s: sequence_loss.geometric_mean_loss(x, np.ones(len(x)), s, 0.2, 0.2),
    "vespo_weight": lambda x, s: sequence_loss.vespo_weight(x, np.ones(len(s) - 1), s, (2.0, 3.0), (3.0, 2.0)),
    "sequence_weights": importance.sequence_weights, "log_perplexity": importance.log_perplexity,
    "statistic": lambda x, s: rejection.statistic(x, s, "seq_max", "k3"),
    "kept_tokens": lambda x, s: rejection.kept_tokens(x, s, "seq_mean", "k1", (-0.1, 0.1)),
    "token_energy": lambda x, s: token_baseline.token_energy(x, x, s),
    "off_policy_kept": lambda x, s: rejection.off_policy_kept(x, -np.ones(len(s) - 1), s, 0.1),
}  # fmt: skip

PER_TOKEN = {"discounted_sums", "gae_advantage", "token_energy", "kept_tokens"}


@pytest.mark.parametrize("fault", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ALONG)
@given(LENGTHS, SEEDS)
@settings(max_examples=10)
def test_what_is_not_finite_stays_in_its_sequence(name: str, fault: float, lengths: list[int], seed: int) -> None:
    values, splits = batch([3, *lengths], seed)
    values = np.clip(values, -1.0, 1.0)
    clean = ALONG[name](values, splits)
    values[1] = fault
    with np.errstate(invalid="ignore", over="ignore"):
        found = ALONG[name](values, splits)
    first = 3 if name in PER_TOKEN else 1
    assert found[first:].tobytes() == clean[first:].tobytes()
