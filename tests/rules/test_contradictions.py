"""Numbers that contradict each other in the same rows, and those that only seem to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rl_doctor.report.model import Finding
from rl_doctor.rules.registry import rules
from rl_doctor.rules.runner import run_rules
from rl_doctor.rules.view import View
from rl_doctor.schema import RunConfig, RunInfo
from tests.rules.scalars import Floats, series

CODE = "RLD006"
N = 40
GROUPED = RunConfig(adv_norm="group", adv_estimator="grpo", group_size=8, adv_ddof=1)
CLIPPED = RunConfig(clip_low=0.2, clip_high=0.28)


def found(values: dict[str, Floats], config: RunConfig = CLIPPED, **info: Any) -> list[Finding]:
    view = View(RunInfo(config=config, **info), {name: series(name, np.asarray(part)) for name, part in values.items()})
    (result,) = run_rules([rules()[CODE]], view)
    assert result.outcome != "crashed", result
    return list(result.findings)


def told(values: dict[str, Floats], config: RunConfig = CLIPPED, **info: Any) -> list[tuple[str, str]]:
    return [(item.severity, item.evidence[0].metric) for item in found(values, config, **info)]


def tokens(seed: int, scale: float = 0.1, drift: float = 0.05) -> dict[str, Floats]:
    """What a trainer would log of the log-ratios of some tokens per row."""
    rng = np.random.default_rng(seed)
    x = drift + scale * rng.standard_normal((N, 500))
    ratio = np.exp(x)
    low, high = (ratio < 0.8).mean(1), (ratio > 1.28).mean(1)
    return {
        "policy.kl_old_k1": -x.mean(1), "policy.kl_old_k2": (x**2 / 2).mean(1), "policy.kl_old_k3": (np.expm1(x) - x).mean(1),
        "policy.kl_old_abs": np.abs(x).mean(1), "policy.ratio_mean": ratio.mean(1), "policy.ratio_min": ratio.min(1),
        "policy.ratio_max": ratio.max(1), "policy.outside_frac": low + high, "policy.outside_frac_low": low,
        "policy.outside_frac_high": high, "policy.ratio_clamped_mean": np.clip(ratio, 0.8, 1.28).mean(1),
        "policy.ratio_clamped_min": np.clip(ratio, 0.8, 1.28).min(1),
        "policy.ratio_clamped_max": np.clip(ratio, 0.8, 1.28).max(1),
        "mismatch.k1": -x.mean(1), "mismatch.k3": (np.expm1(x) - x).mean(1), "mismatch.abs": np.abs(x).mean(1),
        "mismatch.abs_max": np.abs(x).max(1),
    }  # fmt: skip


@pytest.mark.parametrize("digits", [3, 4, 7, None])
@pytest.mark.parametrize("drift", [-0.3, -0.02, 0.0, 0.02, 0.3])
def test_numbers_of_the_same_tokens_never_contradict_each_other(drift: float, digits: int | None) -> None:
    for seed in range(10):
        values = tokens(seed, scale=0.01 if seed % 2 else 0.3, drift=drift)
        if digits is not None:
            values = {name: np.round(part, digits) for name, part in values.items()}
        assert told(values) == []


def test_means_in_other_stages_do_not_contradict_each_other() -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        lengths, shift = rng.integers(5, 100, (N, 8)), 0.1 * rng.standard_normal((N, 8))
        of_rows, of_tokens = shift.mean(1), (shift * lengths).sum(1) / lengths.sum(1)
        values = {"policy.kl_old_k1": -of_rows, "policy.ratio_mean": 1 + of_tokens + 0.006, "policy.kl_old_k2": of_tokens**2 / 2}
        values["policy.kl_old_k2"] += 0.005
        assert told(values) == []


@pytest.mark.parametrize("metric", [
    "policy.kl_old_k2", "policy.kl_old_k3", "policy.kl_old_abs", "policy.ratio_mean", "mismatch.k3", "mismatch.abs",
])  # fmt: skip
def test_a_mean_below_that_of_its_mean_cannot_be(metric: str) -> None:
    for seed in range(10):
        values = tokens(seed, drift=0.3)
        signed = "mismatch.k1" if metric.startswith("mismatch") else "policy.kl_old_k1"
        small = {metric: 1 + (values[metric] - 1) / 3} if metric == "policy.ratio_mean" else {metric: values[metric] / 3}
        assert told({**small, signed: values[signed]}) == [("error", metric)]


def test_a_sign_turned_is_seen_in_the_ratio() -> None:
    values = tokens(0, drift=0.3)
    turned = {"policy.ratio_mean": values["policy.ratio_mean"], "policy.kl_old_k1": -values["policy.kl_old_k1"]}
    assert told(turned) == []  # exp is convex: a mean ratio above 1 says nothing of a k1 above 0
    turned = {"policy.ratio_mean": 1 / values["policy.ratio_mean"], "policy.kl_old_k1": values["policy.kl_old_k1"]}
    assert told(turned) == [("error", "policy.ratio_mean")]


@pytest.mark.parametrize("stem", ["policy.clip_frac", "policy.outside_frac"])
def test_the_sides_make_the_whole(stem: str) -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        low, high = 0.01 * rng.random(N), 0.02 * rng.random(N)
        sides = {f"{stem}_low": low, f"{stem}_high": high}
        assert told({stem: low + high, **sides}) == []
        assert told({name: np.round(part, 4) for name, part in {stem: low + high, **sides}.items()}) == []
        assert told({stem: np.maximum(low, high), **sides}) == [("error", stem)]


def test_clipping_needs_a_ratio_outside_the_range() -> None:
    inside = {"policy.ratio_min": np.full(N, 0.85), "policy.ratio_max": np.full(N, 1.2), "policy.clip_frac": np.full(N, 0.03)}
    assert told(inside) == [("error", "policy.clip_frac")]
    assert told({**inside, "policy.clip_frac": np.zeros(N)}) == []
    assert told({**inside, "policy.ratio_max": np.full(N, 1.3)}) == []
    assert told(inside, RunConfig()) == []
    assert told(inside, algorithm="gspo") == []


def test_a_clamped_ratio_is_inside_its_clamp() -> None:
    values = tokens(0, scale=0.3)
    assert told({"policy.ratio_clamped_max": values["policy.ratio_max"]}) == [("error", "policy.ratio_clamped_max")]
    assert told({"policy.ratio_clamped_min": values["policy.ratio_min"]}) == [("error", "policy.ratio_clamped_min")]
    assert told({"policy.ratio_clamped_mean": np.full(N, 1.4)}) == [("error", "policy.ratio_clamped_mean")]
    assert told({"policy.ratio_clamped_max": np.full(N, 1.28000004)}) == []
    logprobs = replace(CLIPPED, native={"disable_ppo_ratio": True})
    assert told({"policy.ratio_clamped_mean": np.full(N, -0.4)}, logprobs) == []


@pytest.mark.parametrize(
    ("trainer", "native", "cap"),
    [
        ("verl", {"algorithm": {"rollout_correction": {"rollout_is_threshold": 2.0}}}, 2.0),
        ("verl", {"algorithm": {"rollout_correction": {"rollout_is_threshold": "0.5_5.0"}}}, 5.0),
        ("slime", {"tis_clip": 2.0}, 2.0),
        ("trl", {"vllm_importance_sampling_cap": 3.0}, 3.0),
    ],
)
def test_a_truncated_weight_is_not_above_its_cap(trainer: str, native: dict[str, Any], cap: float) -> None:
    config = RunConfig(native=native)
    above, below = ({"mismatch.is_weight_mean": np.full(N, factor * cap)} for factor in (1.1, 0.9))
    assert told(above, config, trainer=trainer) == [("error", "mismatch.is_weight_mean")]
    assert told(below, config, trainer=trainer) == []
    assert told(above, RunConfig(), trainer=trainer) == []
    assert told(above, config, trainer="custom") == []


def test_an_advantage_over_the_deviation_of_its_group_is_bounded() -> None:
    most = 7 / np.sqrt(8)
    edge = {"adv.max": np.full(N, most - 4e-6), "adv.min": np.full(N, 1e-5 - most)}
    beyond = {"adv.max": np.full(N, 2.6), "adv.min": np.full(N, -2.4)}
    assert told(edge, GROUPED) == []
    assert told(beyond, GROUPED) == [("error", "adv.max")]
    assert told({"adv.min": np.full(N, -3.0)}, GROUPED) == [("error", "adv.min")]
    assert told(beyond, replace(GROUPED, adv_ddof=0)) == []
    assert told(beyond, replace(GROUPED, adv_ddof=None)) == []
    assert told({"adv.max": np.full(N, 2.7)}, replace(GROUPED, adv_ddof=0)) == [("error", "adv.max")]


@pytest.mark.parametrize("change", [
    {"adv_norm": "batch"}, {"adv_norm": "none"}, {"adv_norm": None}, {"adv_estimator": "rloo"}, {"adv_estimator": "opo"},
    {"group_size": None}, {"group_size": 16}, {"native": {"multi_objective_aggregation": "normalize_then_sum"}},
])  # fmt: skip
def test_advantages_of_another_kind_have_another_bound(change: dict[str, Any]) -> None:
    assert told({"adv.max": np.full(N, 3.0)}, replace(GROUPED, **change)) == []


def test_a_deviation_of_the_others_has_no_bound() -> None:
    assert told({"adv.min": np.full(N, -264.0)}, GROUPED, trainer="nemo-rl") == []
    assert told({"adv.min": np.full(N, -264.0)}, GROUPED, trainer="verl") == [("error", "adv.min")]


def test_larger_groups_than_configured_count() -> None:
    assert told({"adv.max": np.full(N, 3.0), "group.size_max": np.full(N, 16.0)}, GROUPED) == []


@pytest.mark.parametrize("kind", ["right or wrong", "normal", "two values", "constant"])
def test_a_deviation_fits_its_ends(kind: str) -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        size = 2 if kind == "two values" else 64
        drawn = rng.standard_normal((N, size)) if kind in {"normal", "two values"} else (rng.random((N, size)) < 0.1) * 1.0
        drawn = np.ones((N, size)) if kind == "constant" else drawn
        ends = {"reward.min": drawn.min(1), "reward.mean": drawn.mean(1), "reward.max": drawn.max(1)}
        for ddof in (0, 1):
            values = {"reward.std": drawn.std(1, ddof=ddof), **ends}
            assert told(values) == []
            assert told({name: np.round(part, 3) for name, part in values.items()}) == []
        if kind == "right or wrong":
            assert told({"reward.std": 2.0 * drawn.std(1), **ends}) == [("warning", "reward.std")]


def test_groups_are_not_right_and_wrong_at_once() -> None:
    right, wrong = np.full(N, 0.5), np.full(N, 0.45)
    assert told({"group.all_max_frac": right, "group.all_min_frac": wrong}) == []
    assert told({"group.all_max_frac": right, "group.all_min_frac": 2 * wrong}) == [("error", "group.all_max_frac")]


def test_a_margin_is_the_difference_of_its_sides() -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        chosen, rejected = rng.standard_normal(N), rng.standard_normal(N) - 1
        sides = {"pref.chosen_reward": chosen, "pref.rejected_reward": rejected}
        assert told({"pref.margin": chosen - rejected, **sides}) == []
        rounded = {name: np.round(part, 4) for name, part in {"pref.margin": chosen - rejected, **sides}.items()}
        assert told(rounded) == []
        assert told({"pref.margin": rejected - chosen, **sides}) == [("error", "pref.margin")]


@pytest.mark.parametrize("trainer", ["verl", "slime"])
def test_a_loss_is_the_sum_of_its_terms(trainer: str) -> None:
    config = RunConfig(entropy_coef=0.01, kl_coef=0.1)
    for seed in range(10):
        rng = np.random.default_rng(seed)
        pg, entropy, kl = 0.02 * rng.standard_normal(N), 0.8 + 0.1 * rng.random(N), 0.02 + 0.01 * rng.random(N)
        terms = {"policy.loss_pg": pg, "policy.entropy": entropy, "ref.kl": kl}
        whole = pg - 0.01 * entropy + 0.1 * kl
        assert told({"policy.loss_total": whole, **terms}, config, trainer=trainer) == []
        turned = {"policy.loss_total": pg + 0.01 * entropy + 0.1 * kl, **terms}
        assert told(turned, config, trainer=trainer) == [("error", "policy.loss_total")]
        for other in (replace(config, entropy_coef=None), replace(config, loss_agg="seq-mean-token-sum")):
            assert told(turned, other, trainer=trainer) == []
        assert told(turned, config, trainer="trl") == []
        in_reward = replace(config, kl_in_reward=True)
        assert told({"policy.loss_total": pg - 0.01 * entropy, **terms}, in_reward, trainer=trainer) == []


def test_a_reward_is_the_weighted_sum_of_its_components() -> None:
    rng = np.random.default_rng(0)
    task, form = rng.random(N), rng.random(N)
    parts = {"reward.component.task.mean": task, "reward.component.format.mean": form, "reward.component.task.std": task}
    weights = RunConfig(reward_weights={"task": 1.0, "format": 0.5, "unused": 0.0})
    whole = task + 0.5 * form
    assert told({"reward.mean": whole, **parts}, weights) == []
    assert told({"reward.mean": task + form, **parts}, weights) == [("warning", "reward.mean")]
    assert told({"reward.mean": whole - 0.3, "reward.score_mean": whole, **parts}, weights) == []
    assert told({"reward.mean": task + form, **parts}, RunConfig()) == []
    assert told({"reward.mean": task + form, **parts}, RunConfig(reward_weights={"task": 1.0})) == []
    assert told({"reward.mean": task + form, **parts}, RunConfig(reward_weights={"task": 1, "format": 0.5, "lost": 1.0})) == []


def test_two_rows_are_not_enough_and_three_are() -> None:
    values = {"adv.max": np.full(N, 2.0), "adv.min": np.full(N, -2.0)}
    for rows, expected in ((2, []), (3, [("error", "adv.max")])):
        values["adv.max"] = np.where(np.arange(N) < rows, 9.0, 2.0)
        assert told(values, GROUPED) == expected


def test_the_message_says_what_is_held_against_what() -> None:
    (one,) = found({"adv.max": np.full(N, 3.0)}, GROUPED)
    assert "adv.max is 3, beyond 2.475, the largest that a group of 8 gives over its standard deviation" in one.message
    assert f"({N} of {N} rows)" in one.message
    assert one.evidence[0].limit == pytest.approx(7 / np.sqrt(8))


def test_gaps_and_infinities_are_left_out() -> None:
    values = {"policy.kl_old_k1": np.full(N, -0.3), "policy.ratio_mean": np.full(N, np.nan)}
    values["policy.ratio_mean"][:2] = np.inf
    assert told(values) == []


def test_samples_and_logs_are_not_held_against_each_other() -> None:
    values = {"policy.kl_old_k3": np.full(N, 0.001), "policy.kl_old_k1": np.full(N, -0.3)}
    view = View(RunInfo(), {name: series(name, part) for name, part in values.items()}, estimated=frozenset({"policy.kl_old_k3"}))
    (result,) = run_rules([rules()[CODE]], view)
    assert result.findings == ()


def test_what_is_read_is_a_metric() -> None:
    from rl_doctor.analyzer.registry import metrics
    from rl_doctor.rules.contradictions import READ

    assert {name for name in READ if not name.endswith(".")} <= metrics().keys()


def test_what_is_recomputed_is_not_held_against_itself_or_the_log() -> None:
    config = RunConfig(entropy_coef=0.0, kl_coef=0.05, loss_agg="token-mean", kl_estimator="k1")
    terms = {"policy.loss_total": -0.02, "policy.loss_pg": -0.072, "ref.kl": 0.02, "length.min": 9.0, "length.mean": 5.0}
    for recomputed in ({*terms}, {"policy.loss_total", "length.mean"}, {"policy.loss_pg", "ref.kl", "length.min"}):
        made = {name: series(name, np.full(N, value), count=64 if name in recomputed else 1) for name, value in terms.items()}
        (result,) = run_rules([rules()[CODE]], View(RunInfo(config=config, trainer="verl"), made))
        assert result.outcome == "passed", result.findings
    logged = {name: np.full(N, value) for name, value in terms.items()}
    assert {metric for _, metric in told(logged, config, trainer="verl")} == {"policy.loss_total", "length.mean"}


@pytest.mark.parametrize("share", [0.1, 0.3])
@pytest.mark.parametrize("metric", ["policy.kl_old_k1", "policy.kl_old", "ref.kl"])
def test_what_cancels_in_one_row_does_not_in_all(share: float, metric: str) -> None:
    for seed in range(10):
        noise = np.random.default_rng(seed).standard_normal(N)
        clipped = {"policy.clip_frac": share + 0.001 * np.abs(noise)}
        assert told({**clipped, metric: np.full(N, 1e-9)}) == [("error", metric)]
        assert told({**clipped, metric: 1e-4 * noise}) == []
        assert told({**clipped, metric: np.where(np.arange(N) < 4, 1e-9, 1e-4 * noise)}) == []
        assert told({"policy.clip_frac": np.round(clipped["policy.clip_frac"], 4), metric: np.round(1e-5 * noise, 4)}) == []
        narrow = RunConfig(clip_low=3e-4, clip_high=4e-4, native={"loss_mode": "gspo"})
        assert told({**clipped, metric: np.full(N, 1e-9)}, narrow) == []


@pytest.mark.parametrize(
    ("info", "estimator", "expected"),
    [
        ({"trainer": "verl"}, "k3", "error"), ({"trainer": "verl"}, "k1", None), ({"trainer": "verl"}, None, None),
        ({"trainer": "openrlhf"}, "k2", "error"), ({"trainer": "slime"}, "abs", "error"), ({}, "k3", "warning"),
        ({"trainer": "trl", "algorithm": "grpo"}, None, "error"), ({"trainer": "trl", "algorithm": "rloo"}, None, None),
    ],
)  # fmt: skip
def test_a_kl_below_zero_by_an_estimator_that_cannot_be(
    info: dict[str, Any], estimator: str | None, expected: str | None
) -> None:
    config = RunConfig(kl_estimator=estimator)
    assert told({"ref.kl": np.full(N, -0.01)}, config, **info) == ([] if expected is None else [(expected, "ref.kl")])
    assert told({"ref.kl": np.where(np.arange(N) % 2, -1e-3, 1e-3)}, config, **info) == []
    assert told({"ref.kl": np.full(N, -1e-8)}, config, **info) == []
    throughout = [] if expected is None else [("warning", "ref.kl")]
    assert told({"ref.kl": np.full(N, -1e-3)}, config, **info) == throughout


def test_ends_of_clip_shares_and_ended_lengths_are_in_order() -> None:
    sound = {
        "policy.clip_frac_low": 0.002, "policy.clip_frac_low_min": 0.0, "policy.clip_frac_high": 0.003,
        "policy.clip_frac_high_max": 0.02, "length.ended_min": 20.0, "length.ended_mean": 190.0, "length.ended_max": 500.0,
    }  # fmt: skip
    for change, metric in (
        ({}, None), ({"policy.clip_frac_low_min": 0.2}, "policy.clip_frac_low"),
        ({"length.ended_min": 300.0}, "length.ended_mean"),
        ({"policy.clip_frac_high_max": 0.001}, "policy.clip_frac_high"), ({"length.ended_max": 100.0}, "length.ended_mean"),
    ):  # fmt: skip
        made = {name: np.full(N, value) for name, value in {**sound, **change}.items()}
        assert told(made) == ([] if metric is None else [("error", metric)])


@pytest.mark.parametrize(("trainer", "expected"), [("verl", "error"), ("trl", "warning"), ("nemo-rl", "info"), (None, "info")])
def test_no_response_is_longer_than_the_limit(trainer: str | None, expected: str) -> None:
    config = RunConfig(max_response_length=1024)
    assert told({"length.max": np.full(N, 1030.0)}, config, trainer=trainer) == [(expected, "length.max")]
    assert told({"length.max": np.full(N, 1024.0)}, config, trainer=trainer) == []
    several = {"length.max": np.full(N, 1030.0), "turns.mean": np.full(N, 4.0)}
    assert told(several, config, trainer=trainer) == [("info", "length.max")]
