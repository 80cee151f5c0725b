"""Windows, stages and tolerances of the reconciliation, against plain Python over rows."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from rl_doctor.analyzer import reconcile
from rl_doctor.analyzer.engine import analyze
from rl_doctor.analyzer.reconcile import Comparison, log_rounding
from rl_doctor.schema import RunConfig, RunInfo
from rl_doctor.store.batch import Batch
from rl_doctor.store.metric_log import MetricLog
from tests.simulation.healthy import KINDS
from tests.simulation.logs import relogged

NATIVE: dict[str, Any] = {
    "loss_type": "dapo", "importance_sampling_level": "token", "use_bias_correction_kl": True, "beta": 0.1, "epsilon": 0.2,
    "epsilon_high": 0.3, "delta": None, "scale_rewards": "group", "multi_objective_aggregation": "sum_then_normalize",
    "gradient_accumulation_steps": 2, "steps_per_generation": 2, "per_device_train_batch_size": 2,
}  # fmt: skip
RANKS = 2
STEPS = 7


@dataclass
class Row:
    """One sequence in one pass."""

    keys: dict[str, Any]
    tokens: dict[str, Any]


@dataclass
class Memory:
    """A run in memory that satisfies the engine's Source; ``size`` rows to a batch."""

    info: RunInfo
    rows: list[Row]
    log: MetricLog
    size: int = 3
    reads: list[set[str]] = field(default_factory=list)

    @property
    def columns(self) -> Collection[str]:
        return frozenset([*self.rows[0].keys, *self.rows[0].tokens])

    def metrics(self) -> MetricLog:
        return self.log

    def batches(self, columns: Collection[str]) -> Iterator[Batch]:
        self.reads.append(set(columns))
        for step in sorted({row.keys["step"] for row in self.rows}):
            chosen = [row for row in self.rows if row.keys["step"] == step]
            for start in range(0, len(chosen), self.size):
                part = chosen[start : start + self.size]
                made: dict[str, Any] = {name: np.array([row.keys[name] for row in part]) for name in part[0].keys}
                made |= {name: made[name].astype(object) for name in ("uid", "group", "finish_reason")}
                made |= {name: np.concatenate([row.tokens[name] for row in part]) for name in part[0].tokens}
                splits = np.cumsum([0, *(len(row.tokens["logprob"]) for row in part)]).astype(np.int64)
                yield Batch(step, {name: made[name] for name in columns if name in made}, splits, self.info)


def make_rows(seed: int = 0) -> list[Row]:
    """Every generation batch is trained on for two steps; the last one only for one."""
    random = np.random.default_rng(seed)
    rows = []
    for generation in range((STEPS + 1) // 2):
        samples: dict[tuple[int, int], dict[str, Any]] = {}
        for rank in range(RANKS):
            for index in range(4):
                length = int(random.integers(1, 9))
                samples[rank, index] = {
                    "response_length": length, "finish_reason": str(random.choice(["stop", "length"])),
                    "reward": float(random.choice([0.0, 1.0])), "reward/a": float(random.normal()),
                    "mask": random.random(length) < 0.8, "old": random.normal(-2, 1, length), "ref": random.normal(-2, 1, length),
                    "advantage": float(random.normal()),
                }  # fmt: skip
        items = sum(int(sample["mask"].sum()) for sample in samples.values())
        for epoch in range(2 if 2 * generation + 2 <= STEPS else 1):
            for (rank, index), sample in samples.items():
                step, length = 2 * generation + 1 + epoch, sample["response_length"]
                keys = {
                    "step": step, "rollout_step": 2 * generation + 1, "epoch": epoch, "minibatch": 0, "microbatch": index // 2,
                    "rank": rank, "uid": f"{generation}/{rank}/{index}", "group": f"{generation}/{rank}",
                    "num_items_in_batch": items,
                    **{name: sample[name] for name in ("response_length", "finish_reason", "reward", "reward/a")},
                }  # fmt: skip
                tokens = {
                    "response_mask": sample["mask"], "old_logprob": sample["old"].astype(np.float32),
                    "ref_logprob": sample["ref"].astype(np.float32), "entropy": random.random(length).astype(np.float32),
                    "logprob": (sample["old"] + random.normal(0, 0.3, length)).astype(np.float32),
                    "advantage": np.full(length, sample["advantage"], np.float32),
                }  # fmt: skip
                rows.append(Row(keys, tokens))
    return rows


def micro_batches(rows: list[Row], step: int) -> list[list[Row]]:
    of_step = [row for row in rows if row.keys["step"] == step]
    return [[row for row in of_step if row.keys["microbatch"] == index] for index in range(2)]


def masked(row: Row) -> list[tuple[float, ...]]:
    names = ("logprob", "old_logprob", "ref_logprob", "entropy", "advantage")
    return [
        tuple(float(row.tokens[name][t]) for name in names)
        for t in range(len(row.tokens["logprob"]))
        if row.tokens["response_mask"][t]
    ]


def kl_of(token: tuple[float, ...]) -> float:
    x = token[2] - token[0]
    return (math.exp(x) - 1 - x) * math.exp(token[0] - token[1])


def low(token: tuple[float, ...]) -> float:
    return float(math.exp(token[0] - token[1]) < 0.8 and token[4] < 0)


def high(token: tuple[float, ...]) -> float:
    return float(math.exp(token[0] - token[1]) > 1.3 and token[4] > 0)


def loss_of(token: tuple[float, ...]) -> float:
    ratio = math.exp(token[0] - token[1])
    return -min(ratio * token[4], min(max(ratio, 0.8), 1.3) * token[4]) + 0.1 * kl_of(token)


def token_mean(rows: list[Row], value: Any) -> float:
    values = [value(token) for row in rows for token in masked(row)]
    return sum(values) / max(len(values), 1)


def fractions(rows: list[Row], value: Any) -> list[float]:
    return [sum(map(value, masked(row))) / len(masked(row)) for row in rows if masked(row)]


def expected(rows: list[Row], first: int, last: int) -> dict[str, float]:
    """What TRL logs at step ``last`` after a log at ``first``, row by row."""
    entries: dict[str, list[float]] = {}
    total = 0.0
    for step in range(first + 1, last + 1):
        for micro in micro_batches(rows, step):
            for name, value in {
                "kl": token_mean(micro, kl_of), "entropy": token_mean(micro, lambda token: token[3]),
                "clip_ratio/low_mean": token_mean(micro, low), "clip_ratio/high_mean": token_mean(micro, high),
                "clip_ratio/region_mean": token_mean(micro, lambda token: low(token) + high(token)),
                "clip_ratio/low_min": min(fractions(micro, low)), "clip_ratio/high_max": max(fractions(micro, high)),
            }.items():  # fmt: skip
                entries.setdefault(name, []).append(value)
            items = micro[0].keys["num_items_in_batch"]
            total += sum(loss_of(token) for row in micro for token in masked(row)) / items
    for step in range(first + 1, last + 1):
        batch = [row for row in rows if row.keys["rollout_step"] == step and row.keys["epoch"] == 0]
        for name, value in generation(batch).items() if len(batch) == 8 else ():
            entries.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in entries.items()} | {"loss": total / (last - first)}


def generation(batch: list[Row]) -> dict[str, float]:
    lengths = [row.keys["response_length"] for row in batch]
    ended = [row.keys["response_length"] for row in batch if row.keys["finish_reason"] == "stop"] or [0]
    groups = {row.keys["group"] for row in batch}
    flat = [group for group in groups if len({row.keys["reward"] for row in batch if row.keys["group"] == group}) == 1]
    return {
        "reward": sum(row.keys["reward"] for row in batch) / 8, "rewards/a/mean": sum(row.keys["reward/a"] for row in batch) / 8,
        "rewards/a/std": float(np.std([row.keys["reward/a"] for row in batch], ddof=1)),
        "reward_std": float(np.std([row.keys["reward"] for row in batch], ddof=1)),
        "frac_reward_zero_std": len(flat) / len(groups),
        "completions/mean_length": sum(lengths) / 8, "completions/min_length": min(lengths),
        "completions/max_length": max(lengths),
        "completions/mean_terminated_length": sum(ended) / len(ended), "completions/min_terminated_length": min(ended),
        "completions/max_terminated_length": max(ended),
        "completions/clipped_ratio": sum(row.keys["finish_reason"] != "stop" for row in batch) / 8,
    }  # fmt: skip


def logged(values: dict[int, dict[str, float]]) -> MetricLog:
    flat = [(step, name, value) for step, row in sorted(values.items()) for name, value in row.items()]
    steps, names, numbers = zip(*flat, strict=True)
    return MetricLog(np.array(steps), np.array(names, object), np.array(numbers, float), np.full(len(flat), "train", object))


def trl_run(every: int = 3, rows: list[Row] | None = None) -> Memory:
    rows = make_rows() if rows is None else rows
    info = RunInfo(
        trainer="trl", trainer_version="1.16.0", algorithm="grpo", world_size=RANKS, writing_ranks=(0, 1),
        config=RunConfig(native=NATIVE),
    )  # fmt: skip
    ends = [*range(every, STEPS, every), STEPS]
    starts = [0, *ends[:-1]]
    return Memory(info, rows, logged({end: expected(make_rows(), start, end) for start, end in zip(starts, ends, strict=True)}))


def compared(run: Memory) -> dict[str, Comparison]:
    plan = reconcile.plan(run.info, run.columns, run.log)
    return {item.name: item for item in reconcile.compare(plan, analyze(run, [], plan.metrics).series)}


@pytest.mark.parametrize("every", [1, 2, 3, 7])
def test_trl_keys_equal_the_definition_row_by_row(every: int) -> None:
    run = trl_run(every)
    found = compared(run)
    assert set(found) == set(run.log.names.tolist())
    for item in found.values():
        np.testing.assert_allclose(item.recomputed, item.logged, rtol=1e-12, atol=1e-13, err_msg=item.name)
    steps, _ = run.log.series("kl")
    np.testing.assert_array_equal(found["kl"].steps, steps)
    assert found["kl"].metric == "ref.kl_k3"
    assert len(run.reads) == 1, "one pass over the run"


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
        ({"trainer_version": "1.8.0"}, "trl 1.8.0"),
        ({"trainer_version": None}, "version unknown"),
        ({"algorithm": "dpo"}, "not known"),
        ({"writing_ranks": (0,)}, "not recorded completely"),
        ({"config": RunConfig()}, "not recorded completely"),
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
    names = np.full(4, "policy.ratio_mean", object)
    run.log = MetricLog(steps, names, np.array([*means, 1.0]), np.full(4, "train", object))
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
        ([0.1234, 12.5, 3.0], 0.5e-4),
        ([0.12, 0.5, 0.25], 0.5e-2),
        ([0.0, 1.0, 12.0], 0.5e-4),
    ],
)
def test_decimals_of_a_rounded_log(values: list[float], rounding: float) -> None:
    np.testing.assert_allclose(log_rounding(np.array(values)), rounding)


def test_significant_digits_and_full_precision() -> None:
    np.testing.assert_allclose(log_rounding(np.array([1.234e-9, 5.67])), [0.5e-12, 0.5e-3])
    np.testing.assert_allclose(log_rounding(np.array([1.5e-9, 0.25])), [0.5e-11, 0.5e-3])
    full = np.array([1 / 3, 2 / 7])
    np.testing.assert_allclose(log_rounding(full), full * 2**-24)
    assert log_rounding(np.zeros(0)).size == 0


@pytest.mark.parametrize("kind", ["two_epochs", "gspo", "partial_and_aborted"])
def test_verl_keys_equal_what_an_honest_trainer_logs(kind: str) -> None:
    run = relogged(KINDS[kind](0))
    plan = reconcile.plan(run.info, run.columns, run.metrics())
    found = {item.name: item for item in reconcile.compare(plan, analyze(run, [], plan.metrics).series)}
    assert {"actor/ppo_kl", "actor/pg_clipfrac", "actor/kl_loss", "critic/rewards/mean", "response_length/max"} <= set(found)
    for item in found.values():
        assert (np.abs(item.logged - item.recomputed) <= item.tolerance).all(), item.name


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
