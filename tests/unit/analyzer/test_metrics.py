"""Every metric against its plain-Python reference."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from rl_doctor.analyzer.engine import analyze
from rl_doctor.analyzer.registry import metrics_for
from tests.unit.analyzer.memory import MemoryRun
from tests.unit.analyzer.reference_rollouts import REFERENCES
from tests.unit.analyzer.rows import CONFIG, by_rollout, by_step, random_rows

SEEDS = range(4)
QUANTILES = {name: 0.004 for name in REFERENCES if name.rpartition("_")[2] in ("p01", "p50", "p99")}


def close(name: str, value: float, expected: float) -> bool:
    if math.isnan(expected) or math.isinf(expected):
        return str(value) == str(expected)
    if name in QUANTILES and name.startswith("policy.ratio"):
        return math.isclose(math.log(value), math.log(expected), rel_tol=QUANTILES[name], abs_tol=1e-15)
    if name in QUANTILES:
        return math.isclose(value, expected, rel_tol=QUANTILES[name])
    if name in ("adv.std", "return.std"):
        return math.isclose(value, expected, rel_tol=1e-12, abs_tol=1e-7)
    if "fit_" in name:
        return math.isclose(value, expected, rel_tol=1e-9, abs_tol=1e-11)
    return math.isclose(value, expected, rel_tol=1e-12, abs_tol=1e-14)


@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_equals_the_reference(name: str) -> None:
    checked = 0
    for seed in SEEDS:
        rows = random_rows(seed)
        if "token_reward" in name:
            rows = [row | {"token_reward": row["return"]} for row in rows]
        metric = metrics_for(rows[0])[name]
        expected = by_rollout(rows) if metric.reduction.level == "rollout" else by_step(rows)
        series = analyze(MemoryRun(rows, CONFIG, cut=seed), [name]).series[name]
        assert series.steps.tolist() == list(expected)
        for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True):
            wanted = REFERENCES[name](expected[step], CONFIG)
            assert close(name, value, wanted), (name, seed, step, value, wanted)
            checked += not math.isnan(wanted)
    assert checked, f"{name} was never measured"


@pytest.mark.parametrize("how", ["seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"])
@pytest.mark.parametrize("name", ["policy.loss_pg", "policy.loss_total"])
def test_configured_aggregation(name: str, how: str) -> None:
    rows, config = random_rows(7), replace(CONFIG, loss_agg=how)
    series = analyze(MemoryRun(rows, config), [name]).series[name]
    for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True):
        assert close(name, value, REFERENCES[name](by_step(rows)[step], config))


def test_total_loss_says_nothing_where_a_term_is_unknown() -> None:
    rows = [{name: value for name, value in row.items() if name != "entropy"} for row in random_rows(0)]
    series = analyze(MemoryRun(rows, CONFIG), ["policy.loss_total"]).series["policy.loss_total"]
    assert not series.counts.any()
    assert len(
        analyze(MemoryRun(rows, replace(CONFIG, entropy_coef=0.0)), ["policy.loss_total"]).series["policy.loss_total"].measured()
    )


def test_gae_takes_token_rewards_where_they_are_recorded() -> None:
    rows = [row | {"token_reward": row["return"]} for row in random_rows(3)]
    name = "advantage.fit_gae_mean"
    series = analyze(MemoryRun(rows, CONFIG), [name]).series[name]
    for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True):
        assert close(name, value, REFERENCES[name](by_step(rows)[step], CONFIG))


def test_recorded_advantages_are_reproduced_by_their_estimator_alone() -> None:
    rewards = [0.0, 1.0, 0.25, 1.0, 0.5, 0.0]
    groups = [rewards[:3], rewards[3:]]
    plain = [r - sum(group) / 3 for group in groups for r in group]
    deviation = [np.std(group, ddof=1) for group in groups for _ in group]
    recorded = {
        "grpo_group_ddof1_eps4": [a / (s + 1e-4) for a, s in zip(plain, deviation, strict=True)],
        "grpo_batch_ddof0_eps6": [a / (np.std(rewards) + 1e-6) for a in plain],
        "dr_grpo": plain,
        "rloo": [a * 1.5 for a in plain],
    }
    for name, advantages in recorded.items():
        rows = [
            {"step": 0, "uid": str(i), "group": "ab"[i // 3], "reward": rewards[i], "advantage": [advantages[i]] * 2}
            for i in range(6)
        ]
        found = analyze(MemoryRun(rows), ["advantage."]).series
        fits = {key: series.values[0] for key, series in found.items() if key.endswith("_max")}
        assert min(fits, key=lambda key: fits[key]) == f"advantage.fit_{name}_max"
        assert fits[f"advantage.fit_{name}_max"] < 1e-7


def test_singleton_groups_do_not_count_as_groups_without_variance() -> None:
    rows = [{"step": 0, "uid": str(i), "group": str(i // 2), "reward": float(i)} for i in range(5)]
    found = analyze(MemoryRun(rows), ["group."]).series
    assert found["group.singleton_frac"].values[0] == pytest.approx(1 / 3)
    assert found["group.zero_std_frac"].values[0] == 0.0
    assert found["group.zero_std_frac"].counts[0] == 2


def test_a_constant_reward_has_a_standard_deviation_of_exactly_0() -> None:
    rows = [{"step": 0, "uid": str(i), "group": "a", "reward": 0.1} for i in range(7)]
    found = analyze(MemoryRun(rows), ["reward.std", "group.zero_std_frac", "group.std_mean"]).series
    assert [series.values[0] for series in found.values()] == [0.0, 1.0, 0.0]


def test_a_masked_response_and_a_padding_row_are_not_aborted() -> None:
    rows = [
        {
            "step": 0,
            "uid": "masked",
            "response_length": 3,
            "is_padding": False,
            "response_mask": [False] * 3,
            "logprob": [-1.0] * 3,
        },
        {"step": 0, "uid": "padding", "response_length": 0, "is_padding": True, "response_mask": [], "logprob": []},
        {"step": 0, "uid": "empty", "response_length": 0, "is_padding": False, "response_mask": [], "logprob": []},
    ]
    series = analyze(MemoryRun(rows), ["length.aborted_frac"]).series["length.aborted_frac"]
    assert (series.values[0], series.counts[0]) == (0.5, 2)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_data_come_out_as_the_value(bad: float) -> None:
    tokens = {name: [-1.0, bad, -0.5] for name in ("logprob", "old_logprob", "ref_logprob", "entropy", "advantage", "old_value")}
    row = {"step": 0, "uid": "a", "group": "g", "reward": 1.0, "epoch": 0, "minibatch": 0, "is_weight": [1.0] * 3} | tokens
    found = analyze(MemoryRun([row, row | {"uid": "b", "reward": bad}], CONFIG)).series
    assert len(found) > 100
    for name in ("policy.ratio_mean", "policy.kl_old_k3", "ref.kl_k1", "policy.loss_pg", "policy.clip_frac", "policy.ratio_p50"):
        assert math.isnan(found[name].values[0])
        assert found[name].counts[0] == 6
    assert found["numerics.nonfinite.logprob"].values[0] == 2
    entropy = found["policy.entropy"].values[0]
    assert math.isnan(entropy) if math.isnan(bad) else entropy == bad


def test_masked_out_nan_does_not_leak() -> None:
    clean, spoiled = random_rows(11, spoiled=False), random_rows(11, spoiled=False)
    for row in spoiled:
        for name, values in row.items():
            if isinstance(values, list) and isinstance(next(iter(values), None), float):
                row[name] = [x if kept else math.nan for x, kept in zip(values, row["response_mask"], strict=True)]
    names = [name for name in REFERENCES if not name.endswith("token_reward") and "nonfinite_stored" not in name]
    mine, theirs = (analyze(MemoryRun(rows, CONFIG), names).series for rows in (clean, spoiled))
    for name in names:
        if name.startswith("numerics.nonfinite"):
            assert not theirs[name].values.any()
        np.testing.assert_array_equal(mine[name].values, theirs[name].values, err_msg=name)


@pytest.mark.parametrize("mask", [[False, False], []])
def test_nothing_selected_is_nothing_measured(mask: list[bool]) -> None:
    rows = [row | {name: [-0.5] * len(mask) for name, v in row.items() if isinstance(v, list)} for row in random_rows(5, 1)]
    rows = [row | {"response_mask": mask, "token_version": [0] * len(mask), "token_id": [0] * len(mask)} for row in rows]
    found = analyze(MemoryRun(rows, CONFIG), ["policy.", "ref.", "adv.", "return.", "stale.", "advantage."]).series
    for name, series in found.items():
        if name in ("stale.mean", "stale.max", "stale.min", "stale.behind_frac"):  # of rows, trained on or not
            continue
        assert not series.counts.any(), name
        assert np.isnan(series.values).all(), name


def test_one_token() -> None:
    row = {"step": 4, "response_mask": [True], "logprob": [-1.0], "old_logprob": [-1.5], "advantage": [2.0]}
    found = analyze(MemoryRun([row], CONFIG), ["policy."]).series
    assert found["policy.ratio_mean"].values[0] == pytest.approx(math.exp(0.5), rel=1e-15)
    assert found["policy.kl_old_k1"].values[0] == -0.5
    assert found["policy.clip_frac_high"].values[0] == 1.0
    assert found["policy.loss_pg"].values[0] == pytest.approx(-2.6, rel=1e-15)
