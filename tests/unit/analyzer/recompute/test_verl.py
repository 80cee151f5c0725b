"""What verl logs, row by row in plain Python, against its dialect: without verl, in any version that is known."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from rl_doctor.analyzer import reconcile
from rl_doctor.analyzer.comparison import Comparison
from rl_doctor.analyzer.engine import analyze
from rl_doctor.analyzer.explain import explained
from rl_doctor.analyzer.recompute.registry import find_dialect
from rl_doctor.analyzer.registry import metrics
from rl_doctor.rules.registry import rules
from rl_doctor.schema import RunInfo
from rl_doctor.store.batch import Batch
from rl_doctor.store.metric_log import MetricLog
from tests.unit.analyzer.memory import Row, log
from tests.unit.analyzer.recompute.reference_verl import (
    STEPS,
    Value,
    aggregated,
    batches,
    grouped,
    gspo,
    info,
    k3,
    log_ratio,
    make_rows,
    mean,
    micro_mean,
    positions,
    token_mean,
    value_loss,
    vanilla,
)

ROWS = make_rows()
ACTOR = "actor_rollout_ref__actor__"
MODES = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


@dataclass
class Memory:
    """Rows with a log, read in batches of ``size``."""

    rows: list[Row]
    info: RunInfo
    log: MetricLog
    size: int = 5

    @property
    def columns(self) -> Collection[str]:
        return set(self.rows[0])

    def metrics(self) -> MetricLog:
        return self.log

    def batches(self, columns: Collection[str]) -> Iterator[Batch]:
        for made in batches(self.rows, self.size, self.info):
            yield replace(made, columns={name: made.columns[name] for name in columns}, scratch={})


def compared(rows: list[Row], described: RunInfo, values: Mapping[str, Any], size: int = 5) -> dict[str, Comparison]:
    """Compare a log that holds, by key, a function of the rows of each step."""
    of_steps = {of_step[0]["step"]: of_step for of_step in grouped(ROWS, "step")}
    logged = log({name: {step: value(of_step) for step, of_step in of_steps.items()} for name, value in values.items()})
    return compare(Memory(rows, described, logged, size))


def compare(run: Memory) -> dict[str, Comparison]:
    """What is recomputed of a run against its log."""
    plan = reconcile.plan(run.info, run.columns, run.log)
    return {item.name: item for item in reconcile.compare(plan, analyze(run, [], plan.metrics).series)}


def assert_equal(found: Mapping[str, Comparison], names: Collection[str]) -> None:
    assert set(found) == set(names)
    for item in found.values():
        np.testing.assert_allclose(item.recomputed, item.logged, rtol=1e-11, atol=1e-12, err_msg=item.name)
        assert (item.tolerance <= 1e-3 * np.abs(item.logged) + 1e-4).all(), item.name


def once(rows: list[Row]) -> list[Row]:
    """Each sampled sequence once, without those that only fill the batch."""
    return [row for row in rows if row["epoch"] == 0 and not row["is_padding"]]


@pytest.mark.parametrize("mode", MODES)
def test_losses_under_each_aggregation(mode: str) -> None:
    def whole(rows: list[Row]) -> float:
        return (
            aggregated(rows, vanilla, mode)
            - 0.01 * aggregated(rows, lambda row, at: row["entropy"][at], mode)
            + 0.05 * aggregated(rows, k3, mode)
        )

    values = {
        "actor/pg_loss": lambda rows: aggregated(rows, vanilla, mode),
        "actor/entropy_loss": lambda rows: aggregated(rows, lambda row, at: row["entropy"][at], mode),
        "actor/kl_loss": lambda rows: aggregated(rows, k3, mode),
        "actor/loss": whole,
        "critic/vf_loss": lambda rows: 0.5 * aggregated(rows, value_loss, mode),
    }
    described = info(**{f"{ACTOR}loss_agg_mode": mode, "critic__loss_agg_mode": mode})
    assert_equal(compared(ROWS, described, values), values)


def test_means_of_micro_batches_over_ranks_and_mini_batches() -> None:
    def clipped(row: Row, at: int) -> float:
        ratio, advantage = math.exp(log_ratio(row, at)), row["advantage"][at]
        return float((ratio < 0.85 and advantage < 0) or (ratio > 1.3 and advantage > 0))

    def dual(row: Row, at: int) -> float:
        return float(math.exp(log_ratio(row, at)) > 2.0 and row["advantage"][at] < 0)

    def flat(rows: list[Row], value: Value) -> float:
        return mean([token_mean(micro, value) for micro in grouped(rows, "epoch", "minibatch", "rank", "microbatch")])

    values = {
        "actor/ppo_kl": lambda rows: micro_mean(rows, lambda row, at: -log_ratio(row, at)),
        "actor/pg_clipfrac": lambda rows: micro_mean(rows, clipped),
        "actor/pg_clipfrac_lower": lambda rows: micro_mean(rows, dual),
        "critic/vpred_mean": lambda rows: flat(rows, lambda row, at: row["value"][at]),
    }
    assert_equal(compared(ROWS, info(), values), values)


def test_a_loss_averages_with_its_own_mode_in_versions_that_fix_it() -> None:
    gspo_loss = {f"{ACTOR}policy_loss__loss_mode": "gspo"}
    for version, mode in (("0.8.0", "seq-mean-token-mean"), ("0.9.0", "seq-mean-token-mean"), ("0.9.1", "token-mean")):
        values = {"actor/pg_loss": lambda rows, mode=mode: aggregated(rows, gspo, mode)}
        assert_equal(compared(ROWS, info(version, **gspo_loss), values), values)


def test_the_value_loss_of_the_first_version_is_local_to_its_micro_batch() -> None:
    def local(rows: list[Row]) -> float:
        return mean([0.5 * token_mean(micro, value_loss) for micro in grouped(rows, "epoch", "minibatch", "rank", "microbatch")])

    values = {"critic/vf_loss": local}
    assert_equal(compared(ROWS, info("0.8.0"), values), values)


def test_statistics_of_the_batch() -> None:
    def over(value: Any, pick: Any) -> Any:
        return lambda rows: pick([value(row) for row in once(rows)])

    def tokens(name: str, pick: Any) -> Any:
        return lambda rows: pick([row[name][at] for row in once(rows) for at in positions(row)])

    def explained(rows: list[Row]) -> float:
        returns, old = tokens("return", np.array)(rows), tokens("old_value", np.array)(rows)
        return 1 - (returns - old).var(ddof=1) / (returns.var(ddof=1) + 1e-5)

    def longest(name: str, padding: int) -> Any:
        def share(rows: list[Row]) -> float:
            width = max(padding, *(row[name] for row in once(rows)))
            return mean([float(row[name] == width) for row in once(rows)])

        return share

    values: dict[str, Any] = {"critic/vf_explained_var": explained}
    for statistic, pick in (("mean", mean), ("max", max), ("min", min)):
        present = lambda name, pick=pick: lambda rows: pick([row[name] for row in once(rows) if row["response_length"]])  # noqa: E731
        values |= {
            f"critic/score/{statistic}": present("score"), f"critic/rewards/{statistic}": present("reward"),
            f"critic/advantages/{statistic}": tokens("advantage", pick), f"critic/returns/{statistic}": tokens("return", pick),
            f"critic/values/{statistic}": tokens("old_value", pick),
            f"response_length/{statistic}": over(lambda row: row["response_length"], pick),
            f"response_length_non_aborted/{statistic}": present("response_length"),
            f"prompt_length/{statistic}": over(lambda row: row["prompt_length"], pick),
            f"num_turns/{statistic}": over(lambda row: row["turns"], pick),
            f"training/off_policy/trajectory_staleness/{statistic}": over(lambda r: r["step"] - 1 - r["weight_version"], pick),
            f"training/off_policy/trajectory_staleness_worst/{statistic}": over(
                lambda r: r["step"] - 1 - r["first_weight_version"], pick
            ),
            f"training/off_policy/trajectory_spans/{statistic}": over(
                lambda r: r["weight_version"] - r["first_weight_version"] + 1, pick
            ),
        }  # fmt: skip
    values |= {
        "response/aborted_ratio": over(lambda row: float(row["response_length"] == 0), mean),
        "response_length/clip_ratio": longest("response_length", 1),
        "prompt_length/clip_ratio": longest("prompt_length", 127),
    }
    assert_equal(compared(ROWS, info(), values), values)


def test_what_a_length_is_held_against_depends_on_the_trainer() -> None:
    limit = 5
    values = {"response_length/clip_ratio": lambda rows: mean([float(row["response_length"] == limit) for row in once(rows)])}
    old = info("0.8.0")
    for described in (info(trainer__use_v1=False), old):
        configured = replace(described, config=replace(described.config, max_response_length=limit))
        assert_equal(compared(ROWS, configured, values), values)
    assert compared(ROWS, info(trainer={}), values) == {}


def test_the_old_pass_sees_tokens_that_are_rejected_later() -> None:
    def tokens(rows: list[Row], name: str) -> Any:
        return np.array([row[name][at] for row in once(rows) for at in positions(row, "loss_mask")])

    def apart(rows: list[Row]) -> Any:
        return np.abs(np.exp(tokens(rows, "old_logprob")) - np.exp(tokens(rows, "rollout_logprob")))

    def rows_mean(rows: list[Row]) -> float:
        first = [row for row in rows if row["epoch"] == 0]
        kls = [[row["old_logprob"][at] - row["ref_logprob"][at] for at in positions(row, "loss_mask")] for row in first]
        return mean([mean(values) for values in kls])

    def perplexity(rows: list[Row]) -> float:
        first = [row for row in rows if row["epoch"] == 0]
        return mean([math.exp(-mean([row["old_logprob"][at] for at in positions(row, "loss_mask")])) for row in first])

    values = {
        "actor/entropy": lambda rows: float(tokens(rows, "old_entropy").mean()),
        "training/rollout_probs_diff_mean": lambda rows: float(apart(rows).mean()),
        "training/rollout_probs_diff_max": lambda rows: float(apart(rows).max()),
        "training/rollout_probs_diff_std": lambda rows: float(apart(rows).std(ddof=1)),
        "training/rollout_actor_probs_pearson_corr": lambda rows: float(
            np.corrcoef(np.exp(tokens(rows, "old_logprob")), np.exp(tokens(rows, "rollout_logprob")))[0, 1]
        ),
        "actor/reward_kl_penalty": rows_mean,
        "rollout_corr/training_ppl": perplexity,
    }
    assert_equal(compared(ROWS, info(algorithm__kl_penalty="kl", algorithm__rollout_correction={}), values), values)


@pytest.mark.parametrize("size", [1, 4, 100])
def test_any_split_into_batches_gives_the_same_bits(size: int) -> None:
    values = {name: lambda _: 1.0 for name in ("actor/pg_loss", "actor/ppo_kl", "critic/returns/mean", "rollout_corr/chi2_seq")}
    first, other = compared(ROWS, info(), values), compared(ROWS, info(), values, size)
    assert set(first) == set(values)
    for name, item in first.items():
        np.testing.assert_array_equal(item.recomputed, other[name].recomputed, err_msg=name)


@pytest.mark.parametrize(
    "lost", [lambda row: row["rank"] == 1, lambda row: row["sequence"] % 24 == 7, lambda row: row["is_padding"]],
    ids=["a rank", "a row", "rows that fill the batch"],
)  # fmt: skip
def test_steps_without_all_their_rows_are_not_compared(lost: Any) -> None:
    kept = [row for row in ROWS if not (row["step"] == 2 and lost(row))]
    values = {name: lambda _: 1.0 for name in ("actor/pg_loss", "actor/ppo_kl", "critic/returns/mean", "num_turns/mean")}
    found = compared(kept, info(), values)
    assert set(found) == set(values)
    for item in found.values():
        np.testing.assert_array_equal(item.steps, [step for step in range(1, STEPS + 1) if step != 2])


def test_what_is_not_known_is_not_compared() -> None:
    def left(described: RunInfo, *names: str) -> set[str]:
        return set(compared(ROWS, described, {name: lambda _: 1.0 for name in names}))

    assert left(info(**{f"{ACTOR}loss_agg_mode": None}), "actor/pg_loss", "actor/kl_loss", "actor/entropy") == set()
    assert left(info(**{f"{ACTOR}clip_ratio_c": None}), "actor/pg_loss", "actor/pg_clipfrac_lower", "actor/pg_clipfrac") == {
        "actor/pg_clipfrac"
    }
    assert left(info(**{f"{ACTOR}policy_loss__loss_mode": "own"}), "actor/pg_loss", "actor/ppo_kl", "critic/score/max") == {
        "critic/score/max"
    }
    several = info(trainer__v1={"trainer_mode": "separate_async", "separate_async": {"parameter_sync_step": 4}})
    assert left(several, "actor/ppo_kl", "actor/entropy", "critic/score/max") == {"critic/score/max"}
    assert left(replace(info(), world_size=4, writing_ranks=(0,)), "actor/ppo_kl", "critic/score/max") == set()


@pytest.mark.parametrize(("version", "known"), [
    ("0.4.1", False), ("0.5.0", True), ("0.8.0", True), ("0.9.1", True), ("0.10.0", True), ("1.0", False), (None, True),
])  # fmt: skip
def test_only_versions_whose_definitions_are_known(version: str | None, known: bool) -> None:
    assert (find_dialect(replace(info(), trainer_version=version)) is not None) == known


def test_every_key_corresponds_to_a_metric_that_exists() -> None:
    dialect = find_dialect(info())
    assert dialect is not None

    class Anything(set[str]):
        def __contains__(self, _: object) -> bool:
            return True

    correction = {"rollout_is": "token", "rollout_is_threshold": 2.0, "rollout_rs": "token_k1", "rollout_rs_threshold": "2"}
    known, found = metrics(), 0
    for kind in ("kl", "abs", "mse", "low_var_kl"):
        described = info(**{f"{ACTOR}kl_loss_type": kind}, algorithm__kl_penalty=kind, algorithm__rollout_correction=correction)
        for item in dialect.logged(described, Anything(), Anything()):
            assert item.metric is None or known[item.metric].unit == item.unit, item.name
            found += 1
    assert found > 300


def test_another_aggregation_of_the_loss_is_named() -> None:
    of_steps = {of_step[0]["step"]: aggregated(of_step, vanilla, "seq-mean-token-mean") for of_step in grouped(ROWS, "step")}
    run = Memory(ROWS, info(), log({"actor/pg_loss": of_steps}))
    plan = reconcile.plan(run.info, run.columns, run.log)
    found = reconcile.compare(plan, analyze(run, [], plan.metrics).series)
    (item,) = explained(plan, run, found, rules()["RLD801"].limits)
    (one,) = [one for one in item.explanations if one.name == "seq-mean-token-mean"]
    assert (np.abs(item.logged - item.recomputed) > item.tolerance).all()
    fits = np.abs(item.logged - one.values) <= one.tolerance
    assert fits[~np.isnan(one.values)].all()
    assert fits.any()
