"""A run of TRL in memory, and what TRL would have logged of it, row by row in plain Python."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rl_doctor.schema import RunConfig, RunInfo
from rl_doctor.store.batch import Batch
from rl_doctor.store.metric_log import MetricLog

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


def make_rows(seed: int = 0, ranks: int = RANKS) -> list[Row]:
    """Every generation batch is trained on for two steps; the last one only for one."""
    random = np.random.default_rng(seed)
    rows = []
    for generation in range((STEPS + 1) // 2):
        samples: dict[tuple[int, int], dict[str, Any]] = {}
        for rank in range(ranks):
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


def expected(rows: list[Row], first: int, last: int, ranks: int = RANKS) -> dict[str, float]:
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
        for name, value in generation(batch).items() if len(batch) == 4 * ranks else ():
            entries.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in entries.items()} | {"loss": total / (last - first)}


def generation(batch: list[Row]) -> dict[str, float]:
    size = len(batch)
    lengths = [len(masked(row)) for row in batch]
    ended = [len(masked(row)) for row in batch if row.keys["finish_reason"] == "stop"] or [0]
    groups = {row.keys["group"] for row in batch}
    flat = [group for group in groups if len({row.keys["reward"] for row in batch if row.keys["group"] == group}) == 1]
    return {
        "reward": sum(row.keys["reward"] for row in batch) / size,
        "rewards/a/mean": sum(row.keys["reward/a"] for row in batch) / size,
        "rewards/a/std": float(np.std([row.keys["reward/a"] for row in batch], ddof=1)),
        "reward_std": float(np.std([row.keys["reward"] for row in batch], ddof=1)),
        "frac_reward_zero_std": len(flat) / len(groups),
        "completions/mean_length": sum(lengths) / size, "completions/min_length": min(lengths),
        "completions/max_length": max(lengths),
        "completions/mean_terminated_length": sum(ended) / len(ended), "completions/min_terminated_length": min(ended),
        "completions/max_terminated_length": max(ended),
        "completions/clipped_ratio": sum(row.keys["finish_reason"] != "stop" for row in batch) / size,
    }  # fmt: skip


def logged(values: dict[int, dict[str, float]]) -> MetricLog:
    return MetricLog.of((step, name, value, "train") for step, row in values.items() for name, value in row.items())


def trl_run(every: int = 3, rows: list[Row] | None = None) -> Memory:
    rows = make_rows() if rows is None else rows
    info = RunInfo(
        trainer="trl", trainer_version="1.16.0", algorithm="grpo", world_size=RANKS, writing_ranks=(0, 1),
        config=RunConfig(native=NATIVE),
    )  # fmt: skip
    ends = [*range(every, STEPS, every), STEPS]
    starts = [0, *ends[:-1]]
    return Memory(info, rows, logged({end: expected(make_rows(), start, end) for start, end in zip(starts, ends, strict=True)}))
