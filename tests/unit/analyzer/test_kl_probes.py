"""Probes of the KL, its penalty and of token weights, against plain Python over plain rows."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from rl_doctor.analyzer.engine import analyze
from rl_doctor.schema import RunInfo
from tests.unit.analyzer.memory import MemoryRun, Row
from tests.unit.analyzer.rows import CONFIG, random_rows

SEEDS = range(3)


def _steps(rows: list[Row]) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["step"]].append(row)
    return dict(sorted(found.items()))


def _values(name: str, rows: list[Row], seed: int = 0) -> dict[int, float]:
    series = analyze(MemoryRun(rows, CONFIG, cut=seed), [name]).series[name]
    return dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))


def _trained(row: Row) -> list[int]:
    if row.get("is_padding"):
        return []
    return [index for index, kept in enumerate(row["response_mask"]) if kept]


def _same(found: float, expected: float) -> bool:
    return (math.isnan(found) and math.isnan(expected)) or math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_error_of_the_sampled_kl_is_that_of_a_ratio_of_sums(seed: int) -> None:
    rows = random_rows(seed, spoiled=False)
    mean, error = _values("ref.sampled_k1", rows, seed), _values("ref.sampled_k1_error", rows, seed)
    for step, part in _steps(rows).items():
        first = [row for row in part if _trained(row) and row["epoch"] == 0 and row["minibatch"] == 0]
        sums = [sum(float(np.float32(row["logprob"][t])) - float(np.float32(row["ref_logprob"][t])) for t in _trained(row))
                for row in first]  # fmt: skip
        counts = [len(_trained(row)) for row in first]
        if len(first) < 2 or len({row.get("rollout_step", step) for row in first}) > 1:
            continue
        level = sum(sums) / sum(counts)
        squares = sum((total - level * count) ** 2 for total, count in zip(sums, counts, strict=True))
        if math.isfinite(mean[step]) and _same(mean[step], level):
            assert _same(error[step], math.sqrt(squares * len(first) / (len(first) - 1)) / sum(counts))


def _row(step: int, rank: int, minibatch: int, tokens: int, normaliser: int, **more: object) -> Row:
    made: Row = {
        "step": step, "rank": rank, "epoch": 0, "minibatch": minibatch, "microbatch": 0, "batch_num_tokens": normaliser,
        "response_mask": [True] * tokens, "logprob": [-0.5] * tokens, "ref_logprob": [-0.6] * tokens,
        "old_logprob": [-0.5] * tokens, "advantage": [1.0] * tokens,
    }  # fmt: skip
    return made | dict(more)


def test_weights_of_ranks_follow_their_tokens() -> None:
    rows = [_row(1, 0, 0, 10, 40), _row(1, 0, 0, 20, 40), _row(1, 1, 0, 10, 40), _row(1, 1, 1, 7, 14), _row(1, 0, 1, 7, 14)]
    assert _values("weight.rank_ratio", rows)[1] == pytest.approx(3.0)
    weights = [1 / 30] * 30 + [1 / 10] * 10
    first = np.std(weights) / np.mean(weights)
    assert _values("weight.rank_cv", rows)[1] == pytest.approx((first + 0.0) / 2)
    assert _values("weight.normaliser_min", rows)[1] == pytest.approx(1.0)
    assert _values("weight.normaliser_max", rows)[1] == pytest.approx(1.0)


def test_normalisers_that_differ_by_rank_are_told_apart() -> None:
    rows = [_row(1, 0, 0, 30, 30), _row(1, 1, 0, 10, 10)]
    assert _values("weight.normaliser_min", rows)[1] == pytest.approx(0.25)
    assert _values("weight.normaliser_max", rows)[1] == pytest.approx(0.75)


def test_the_share_of_optimizer_steps_with_the_right_normaliser() -> None:
    rows = [_row(1, 0, 0, 30, 30), _row(1, 0, 1, 20, 30), _row(1, 0, 1, 10, 30), _row(1, 0, 2, 10, 20), _row(2, 0, 0, 9, 18)]
    assert _values("weight.normaliser_max", rows)[1] == pytest.approx(4 / 3)
    assert _values("weight.normaliser_right_frac", rows) == {1: pytest.approx(2 / 3), 2: 0.0}


def test_a_row_without_a_trained_token_weighs_nothing() -> None:
    rows = [_row(1, 0, 0, 4, 8), _row(1, 1, 0, 4, 8), _row(1, 1, 0, 5, 8) | {"response_mask": [False] * 5}]
    assert _values("weight.normaliser_max", rows)[1] == pytest.approx(1.0)


def test_the_penalty_in_token_rewards_is_found_with_its_coefficient() -> None:
    rng = np.random.default_rng(0)
    rows = []
    for index in range(6):
        old, reference = -rng.random(9), -rng.random(9)
        reward = -0.05 * (old - reference)
        reward[6] += 1.0  # the outcome, at the last trained token
        mask = [True] * 7 + [False] * 2
        reward[7:] = -0.2 * (old[7:] - reference[7:])
        rows.append(_row(1, 0, 0, 9, 9, old_logprob=old.tolist(), ref_logprob=reference.tolist(), token_reward=reward.tolist(),
                         response_mask=mask, uid=str(index)))  # fmt: skip
    assert _values("penalty.coef_k1", rows)[1] == pytest.approx(0.05, rel=1e-5)
    assert _values("penalty.explained_k1", rows)[1] == pytest.approx(1.0, rel=1e-6)
    assert _values("penalty.explained_k3", rows)[1] < 0.9
    assert _values("penalty.unmasked_coef_k1", rows)[1] == pytest.approx(0.2, rel=1e-5)
    assert _values("penalty.tokens_frac", rows)[1] == 1.0


def test_the_penalty_of_responses_is_told_from_one_over_all_tokens() -> None:
    rng = np.random.default_rng(1)
    rows = []
    for index in range(12):
        old, reference = -rng.random(9), -rng.random(9)
        mask = [True] * 5 + [False] * 4
        score = float(rng.random())
        reward = score - 0.1 * float(np.sum(np.float32(old) - np.float32(reference)))
        rows.append(_row(1, 0, 0, 9, 9, old_logprob=old.tolist(), ref_logprob=reference.tolist(), response_mask=mask,
                         score=score, reward=reward, uid=str(index)))  # fmt: skip
    assert _values("penalty.response_all_k1_corr", rows)[1] == pytest.approx(1.0)
    assert _values("penalty.response_all_k1_coef", rows)[1] == pytest.approx(0.1, rel=1e-4)
    assert _values("penalty.response_k1_corr", rows)[1] < 0.98


def test_kinds_of_tokens_keep_one_end_where_padding_has_its_id() -> None:
    class Described(MemoryRun):
        @property
        def info(self) -> RunInfo:
            return RunInfo(config=CONFIG, eos_token_ids=(2,), pad_token_id=2)

    row = _row(1, 0, 0, 5, 5, token_id=[7, 8, 2, 2, 2], ref_logprob=[-0.6, -0.6, -1.5, -2.5, -2.5])
    series = analyze(Described([row], CONFIG), ["ref.k1_by.kind."]).series
    found = {name.rpartition(".")[2]: float(one.values[0]) for name, one in series.items()}
    assert found == pytest.approx({"end": 1.0, "padding": 2.0, "other": 0.1}, rel=1e-5)


def test_left_padding_is_regressed_on() -> None:
    rows = [_row(1, 0, 0, 8, 8, left_padding=n, ref_logprob=[-0.5 - 0.01 * n] * 8, uid=str(n)) for n in (0, 2, 4, 8)]
    assert _values("ref.padding_slope", rows)[1] == pytest.approx(0.01, rel=1e-4)
    assert _values("ref.padding_corr", rows)[1] == pytest.approx(1.0)


def test_losses_at_either_level_of_the_ratio() -> None:
    old, new = [-1.0, -1.0], [-0.5, -1.5]
    rows = [_row(1, 0, 0, 2, 2, old_logprob=old, logprob=new, advantage=[1.0, 1.0])]
    config = replace(CONFIG, clip_low=0.2, clip_high=0.2, loss_agg="token-mean", dual_clip=None, log_ratio_clamp=None)
    series = analyze(MemoryRun(rows, config), ["policy.loss_if_by_token", "policy.loss_if_by_sequence"]).series
    assert series["policy.loss_if_by_token"].values[0] == pytest.approx(-(1.2 + math.exp(-0.5)) / 2)
    assert series["policy.loss_if_by_sequence"].values[0] == pytest.approx(-1.0)
