"""Windows, stages and tolerances of the reconciliation, against plain Python over rows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rl_doctor.analyzer import reconcile
from rl_doctor.analyzer.comparison import Comparison
from rl_doctor.analyzer.engine import analyze
from rl_doctor.analyzer.explain import explained
from rl_doctor.analyzer.registry import metrics_for
from rl_doctor.analyzer.rounding import log_rounding
from rl_doctor.rules.registry import rules
from rl_doctor.rules.runner import run_rules
from rl_doctor.rules.view import View
from rl_doctor.schema import RunConfig, RunInfo
from rl_doctor.store.metric_log import MetricLog
from tests.simulation.healthy import KINDS
from tests.simulation.logs import relogged
from tests.unit.analyzer.reference_trl import (
    NATIVE,
    RANKS,
    STEPS,
    Memory,
    expected,
    logged,
    make_rows,
    masked,
    micro_batches,
    token_mean,
    trl_run,
)


def compared(run: Any) -> dict[str, Comparison]:
    plan = reconcile.plan(run.info, run.columns, run.metrics())
    return {item.name: item for item in reconcile.compare(plan, analyze(run, [], plan.metrics).series)}


@pytest.mark.parametrize("every", [1, 2, 3, 7])
def test_trl_keys_equal_the_definition_row_by_row(every: int) -> None:
    run = trl_run(every)
    found = compared(run)
    assert set(found) == set(run.log.names())
    for item in found.values():
        np.testing.assert_allclose(item.recomputed, item.logged, rtol=1e-12, atol=1e-13, err_msg=item.name)
    steps, _ = run.log.series("kl")
    np.testing.assert_array_equal(found["kl"].steps, steps)
    assert found["kl"].metric == "ref.kl_k3"
    assert len(run.reads) == 1, "one pass over the run"


def test_steps_without_a_finite_number_are_not_compared() -> None:
    rows = make_rows()
    for row in rows:
        if row.keys["step"] <= 3:
            row.tokens["advantage"] = np.full_like(row.tokens["advantage"], np.nan)
    whole, found = compared(trl_run(1)), compared(trl_run(1, rows))
    assert whole["clip_ratio/high_mean"].steps.tolist() == list(range(1, STEPS + 1))
    assert found["clip_ratio/high_mean"].steps.tolist() == list(range(4, STEPS + 1))
    assert found["kl"].steps.tolist() == list(range(1, STEPS + 1))


@pytest.mark.parametrize("run", [trl_run(), relogged(KINDS["two_epochs"](0))], ids=["trl", "verl"])
def test_keys_correspond_to_metrics_that_exist(run: Any) -> None:
    metrics = metrics_for(run.columns)
    for item in reconcile.plan(run.info, run.columns, run.log).logged:
        assert item.metric is None or metrics[item.metric].unit == item.unit


def test_any_split_into_batches_gives_the_same_bits() -> None:
    runs = [compared(replace(trl_run(), size=size)) for size in (1, 3, 100)]
    for name, item in runs[0].items():
        for other in runs[1:]:
            np.testing.assert_array_equal(item.recomputed, other[name].recomputed, err_msg=name)
            np.testing.assert_array_equal(item.tolerance, other[name].tolerance, err_msg=name)


def test_tolerance_is_about_a_millionth_of_the_summands() -> None:
    found = compared(trl_run())
    entropy = found["entropy"]
    assert (entropy.tolerance <= 1.1e-6 * entropy.logged).all()
    assert (found["loss"].tolerance <= 1e-5).all()


def test_generation_keys_are_compared_only_where_they_were_logged() -> None:
    found = compared(trl_run(every=1))
    np.testing.assert_array_equal(found["reward"].steps, [1, 3, 5, 7])
    np.testing.assert_array_equal(found["entropy"].steps, range(1, 8))


@pytest.mark.parametrize(
    ("lost", "left"),
    [
        (lambda row: row.keys["step"] == 4, [3, 7]),
        (lambda row: row.keys["step"] < 3, [6, 7]),
        (lambda row: row.keys["step"] == 5 and row.keys["rank"] == 1, [3, 7]),
        (lambda row: row.keys["step"] == 5 and row.keys["microbatch"] == 1 and row.keys["uid"] == "2/0/3", [3, 7]),
    ],
    ids=["a step", "the first steps", "a rank", "a row"],
)
def test_windows_that_were_not_recorded_completely_are_not_compared(lost: Any, left: list[int]) -> None:
    found = compared(trl_run(rows=[row for row in make_rows() if not lost(row)]))
    for name in ("kl", "entropy", "clip_ratio/low_min", "loss"):
        np.testing.assert_array_equal(found[name].steps, left, err_msg=name)
    for item in found.values():
        np.testing.assert_allclose(item.recomputed, item.logged, rtol=1e-12, atol=1e-13, err_msg=item.name)


def test_a_missing_micro_batch_is_noticed_where_their_number_is_recorded() -> None:
    rows = make_rows()
    for row in rows:
        row.keys["grad_accumulation"] = 2
    kept = [row for row in rows if not (row.keys["step"] == 2 and row.keys["microbatch"] == 1)]
    np.testing.assert_array_equal(compared(trl_run(1, kept))["kl"].steps, [1, 3, 4, 5, 6, 7])


def test_a_nan_entry_is_left_out_as_the_trainer_leaves_it_out() -> None:
    rows = make_rows()
    for row in rows:
        if row.keys["rollout_step"] == 1:
            row.keys["reward"] = row.keys["reward/a"] = math.nan
    run = trl_run(rows=rows)
    found = compared(run)
    start = expected(make_rows(), 2, 3)  # the only other generation batch of the first window
    assert found["reward"].recomputed[0] == pytest.approx(start["reward"], abs=1e-15)
    assert found["rewards/a/std"].recomputed[0] == pytest.approx(start["rewards/a/std"], abs=1e-15)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"trainer": None}, "not known"),
        ({"trainer": "other", "trainer_version": "0.8.0"}, "other 0.8.0"),
        ({"writing_ranks": (0,)}, "rank 1 is not recorded, of 2"),
        ({"config": RunConfig()}, "needs config.native.epsilon, config.native.beta"),
        ({"trainer_version": "0.15.2"}, "TRL 0.15.2"),
    ],
)
def test_what_cannot_be_judged_is_not_compared_and_says_why(change: dict[str, Any], words: str) -> None:
    run = trl_run()
    run.info = replace(run.info, **change)
    assert compared(run) == {}
    assert words in reconcile.plan(run.info, run.columns, run.log).reason


def test_missing_columns_are_named() -> None:
    rows = make_rows()
    for row in rows:
        row.keys = {name: row.keys[name] for name in ("step", "uid", "group", "finish_reason")}
    run = trl_run(rows=rows)
    run.log = logged({1: {"kl": 0.1, "reward": 0.5, "unheard_of": 1.0}})
    assert "columns that the run lacks: microbatch, reward" in reconcile.plan(run.info, run.columns, run.log).reason
    assert reconcile.plan(run.info, run.columns, MetricLog()).reason == "the run has no logged metrics"


def test_canonical_names_are_compared_step_by_step_for_any_trainer() -> None:
    run = trl_run()
    run.info = RunInfo(trainer="custom")
    steps = np.array([1, 2, 5, 9])
    means = []
    for step in (1, 2, 5):
        tokens = [token for micro in micro_batches(run.rows, step) for row in micro for token in masked(row)]
        means.append(sum(math.exp(token[0] - token[1]) for token in tokens) / len(tokens))
    run.log = MetricLog({("policy.ratio_mean", "train"): (steps, np.array([*means, 1.0]))})
    (item,) = compared(run).values()
    np.testing.assert_array_equal(item.steps, [1, 2, 5])
    np.testing.assert_allclose(item.recomputed, means, rtol=1e-12)
    assert item.metric == item.name == "policy.ratio_mean"


def test_a_logged_number_that_cannot_be_recomputed_is_not_compared_with_itself() -> None:
    run = trl_run()
    run.info = RunInfo(trainer="custom")
    run.log = logged({1: {"mismatch.abs": 0.1}})
    assert compared(run) == {}


@pytest.mark.parametrize(
    ("values", "rounding"),
    [
        ([0.1234, 12.5671, 3.0], 0.5e-4),
        ([0.12, 0.5, 0.25], 0.5e-2),
        ([0.0, 1.0, 12.0], 0.5e-4),
    ],
)
def test_decimals_of_a_rounded_log(values: list[float], rounding: float) -> None:
    np.testing.assert_allclose(log_rounding(np.array(values)), rounding)


def test_significant_digits_and_full_precision() -> None:
    np.testing.assert_allclose(log_rounding(np.array([0.947411, 1.05218, 12.3417])), [0.5e-6, 0.5e-5, 0.5e-4])
    np.testing.assert_allclose(log_rounding(np.array([1.234e-9, 5.67])), [0.5e-12, 0.5e-3])
    np.testing.assert_allclose(log_rounding(np.array([1.5e-9, 0.25])), [0.5e-11, 0.5e-3])
    full = np.array([1 / 3, 2 / 7])
    np.testing.assert_allclose(log_rounding(full), full * 2**-24)
    assert log_rounding(np.zeros(0)).size == 0


@pytest.mark.parametrize("kind", ["two_epochs", "gspo", "partial_and_aborted"])
def test_verl_keys_equal_what_an_honest_trainer_logs(kind: str) -> None:
    run = relogged(KINDS[kind](0))
    found = compared(run)
    assert {"actor/ppo_kl", "actor/pg_clipfrac", "actor/kl_loss", "critic/rewards/mean", "response_length/max"} <= set(found)
    for item in found.values():
        assert (np.abs(item.logged - item.recomputed) <= item.tolerance).all(), item.name


def test_gspo_is_known_by_the_algorithm_or_by_the_configured_loss() -> None:
    run = relogged(KINDS["gspo"](0))
    config = replace(run.info.config, native={**(run.info.config.native or {}), "loss_mode": "gspo"})
    plain = replace(run.info, algorithm="grpo", config=config)
    named, configured = (compared(replace(run, info=info)) for info in (run.info, plain))
    assert "actor/pg_clipfrac" in named
    for name, item in named.items():
        np.testing.assert_array_equal(item.recomputed, configured[name].recomputed, err_msg=name)


def test_verl_averages_micro_batches_and_ranks_without_weights_and_then_mini_batches() -> None:
    run = trl_run(every=1)
    run.info = RunInfo(trainer="verl", trainer_version="0.9.1", algorithm="grpo", world_size=RANKS, writing_ranks=(0, 1))
    for row in run.rows:  # the first mini-batch has two micro-batches on each rank, the second one
        last = row.keys["uid"].endswith("/3")
        row.keys |= {"minibatch": int(last), "microbatch": 0 if last else int(row.keys["uid"].endswith(("/1", "/2")))}
    values = {}
    for step in range(1, STEPS + 1):
        parts: dict[int, list[float]] = {}
        for mini, micro, rank in ((0, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1), (1, 0, 0), (1, 0, 1)):
            place = {"step": step, "minibatch": mini, "microbatch": micro, "rank": rank}
            rows = [row for row in run.rows if place.items() <= row.keys.items()]
            parts.setdefault(mini, []).append(token_mean(rows, lambda token: token[1] - token[0]))
        values[step] = {"actor/ppo_kl": sum(sum(part) / len(part) for part in parts.values()) / 2}
    run.log = logged({step: row for step, row in values.items() if step != 3})
    item = compared(run)["actor/ppo_kl"]
    np.testing.assert_array_equal(item.steps, [1, 2, 4, 5, 6, 7])
    np.testing.assert_allclose(item.recomputed, item.logged, rtol=1e-12, atol=1e-15)


def test_distance_from_the_sampler_is_a_plain_mean_over_ranks_without_unscored_tokens() -> None:
    run = trl_run(every=1)
    native = NATIVE | {
        "use_vllm": True,
        "vllm_importance_sampling_correction": True,
        "vllm_importance_sampling_mode": "token_truncate",
    }
    run.info = replace(run.info, config=RunConfig(native=native))
    random = np.random.default_rng(1)
    sampled: dict[str, Any] = {}
    for row in run.rows:
        size = len(row.tokens["logprob"])
        noise, weight = sampled.setdefault(row.keys["uid"], (random.normal(0, 0.1, size), random.random(size)))
        row.tokens["rollout_logprob"] = (row.tokens["old_logprob"] + noise).astype(np.float32)
        row.tokens["rollout_logprob"][noise > 0.15] = np.nan
        row.tokens["is_weight"] = weight.astype(np.float32)
    batch = [row for row in run.rows if row.keys["rollout_step"] == 3 and row.keys["epoch"] == 0]
    distances, weights = [], []
    for rank in range(RANKS):
        mine = [row for row in batch if row.keys["rank"] == rank]
        covered = [(row, row.tokens["response_mask"]) for row in mine]
        distance = np.concatenate(
            [np.abs(row.tokens["old_logprob"] - row.tokens["rollout_logprob"])[mask] for row, mask in covered]
        )
        distances.append(distance[~np.isnan(distance)])
        weights.append(np.concatenate([row.tokens["is_weight"][mask] for row, mask in covered]))
    prefix = "sampling/sampling_logp_difference"
    values = {
        f"{prefix}/mean": float(np.mean([part.mean() for part in distances])),
        f"{prefix}/max": float(max(part.max() for part in distances)),
        "sampling/importance_sampling_ratio/mean": float(np.mean([part.mean() for part in weights])),
    }
    run.log = logged({2: {"entropy": 1.0}, 3: values})
    found = compared(run)
    for name in values:
        np.testing.assert_allclose(found[name].recomputed, found[name].logged, rtol=1e-6, err_msg=name)


def of_rank(rank: int, *, world_size: int | None, **settings: Any) -> Memory:
    """A run of which one rank alone was recorded, without being told that there were two."""
    run = trl_run(1, [row for row in make_rows() if row.keys["rank"] == rank])
    config = replace(run.info.config, group_size=settings.get("group_size"), native={**NATIVE, **settings.get("native", {})})
    run.info = replace(run.info, world_size=world_size, writing_ranks=None, config=config)
    return run


def found_by_the_rule(run: Memory) -> Any:
    plan = reconcile.plan(run.info, run.columns, run.log)
    limits = rules()["RLD801"].limits
    items = reconcile.compare(plan, analyze(run, [], plan.metrics).series)
    told = explained(plan, run, items, limits)
    (result,) = run_rules([rules()["RLD801"]], View(run.info, {}, comparisons=told))
    return {(finding.evidence[0].where or {})["logged_name"]: finding for finding in result.findings}


@pytest.mark.parametrize("world_size", [None, 1])
@pytest.mark.parametrize(
    ("rank", "settings", "words"),
    [
        (1, {}, "the ranks that wrote are not numbered from 0"),
        (0, {"group_size": 8}, "most groups have fewer sequences than config.group_size, 8"),
        (0, {"native": {"generation_batch_size": 8}}, "generation batches have fewer sequences than the 8 that are configured"),
        (0, {}, ""),
        (0, {"group_size": 4, "native": {"generation_batch_size": 4}}, ""),
    ],
)
def test_what_may_lack_a_rank_is_a_warning(world_size: int | None, rank: int, settings: dict[str, Any], words: str) -> None:
    found = found_by_the_rule(of_rank(rank, world_size=world_size, **settings))
    assert {"kl", "entropy"} <= set(found)
    for name in ("kl", "entropy"):
        assert found[name].severity == ("warning" if words else "error")
        assert ("may lack a rank" in (found[name].cause or "")) == bool(words)
        assert words in (found[name].cause or "")


def test_what_is_reproduced_is_an_error_though_a_rank_may_be_lacking() -> None:
    run = of_rank(0, world_size=None, group_size=8)
    values = {step: expected(run.rows, step - 1, step, ranks=1) for step in range(1, STEPS + 1)}
    run.log = logged({step: {**row, "kl": -row["kl"]} for step, row in values.items()})
    assert compared(run)["kl"].doubt
    (finding,) = found_by_the_rule(run).values()
    assert finding.severity == "error"
    assert "opposite sign" in finding.cause


def test_nothing_is_in_doubt_where_the_ranks_are_told() -> None:
    run = trl_run(1)
    run.info = replace(run.info, config=replace(run.info.config, group_size=8))
    assert {item.doubt for item in compared(run).values()} == {""}
