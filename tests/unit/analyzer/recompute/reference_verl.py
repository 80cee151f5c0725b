"""A run of verl in memory, and what verl would have logged of it, row by row in plain Python."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from rl_doctor.schema import RunConfig, RunInfo
from tests.unit.analyzer.memory import Row
from tests.unit.analyzer.memory import batch as made_batch

RANKS, MINIS, MICROS, SIZE, STEPS = 2, 2, 2, 3, 3
BATCH_SIZE = RANKS * MICROS * SIZE
NATIVE: dict[str, Any] = {
    "actor_rollout_ref": {
        "actor": {
            "clip_ratio": 0.2, "clip_ratio_low": 0.15, "clip_ratio_high": 0.3, "clip_ratio_c": 2.0, "loss_agg_mode": "token-mean",
            "use_kl_loss": True, "kl_loss_type": "low_var_kl", "kl_loss_coef": 0.05, "entropy_coeff": 0.01,
            "policy_loss": {"loss_mode": "vanilla"},
        }
    },
    "critic": {"cliprange_value": 0.25, "loss_agg_mode": "token-mean"},
    "trainer": {"use_v1": True},
}  # fmt: skip
Value = Callable[[Row, int], float]


def info(version: str = "0.9.1", **native: Any) -> RunInfo:
    """The description of a run; ``native`` replaces settings by their path with two underscores between the names."""
    tree = _copy(NATIVE)
    for path, value in native.items():
        *sections, name = path.split("__")
        at = tree
        for section in sections:
            at = at.setdefault(section, {})
        at[name] = value
    return RunInfo(trainer="verl", trainer_version=version, algorithm="grpo", config=RunConfig(native=tree))


def _copy(tree: Any) -> Any:
    return {name: _copy(value) for name, value in tree.items()} if isinstance(tree, dict) else tree


def single(value: float) -> float:
    return float(np.float32(value))


def make_rows(seed: int = 0) -> list[Row]:
    """Rows of all passes; the last row of a batch only fills it, and some tokens are left out after the batch was counted."""
    rng = random.Random(seed)
    rows = []
    for step in range(1, STEPS + 1):
        samples = [_sample(rng, step, index) for index in range(MINIS * BATCH_SIZE)]
        for epoch in range(2):
            order = rng.sample(samples, len(samples))
            for mini in range(MINIS):
                part = order[mini * BATCH_SIZE : (mini + 1) * BATCH_SIZE]
                tokens = sum(sum(sample["loss_mask"]) for sample in part)
                for at, sample in enumerate(part):
                    micro = part[at // SIZE * SIZE : at // SIZE * SIZE + SIZE]
                    row = {
                        **sample, "epoch": epoch, "minibatch": mini, "microbatch": at // SIZE % MICROS, "sequence": len(rows),
                        "rank": at // SIZE // MICROS, "batch_num_tokens": tokens, "global_batch_size": BATCH_SIZE,
                        "padded_width": max(1, *(len(other["logprob"]) for other in micro)), "grad_accumulation": MICROS,
                    }  # fmt: skip
                    row["logprob"] = [single(old + rng.gauss(0, 0.4)) for old in row["old_logprob"]]
                    row["value"] = [single(old + rng.gauss(0, 0.4)) for old in row["old_value"]]
                    rows.append(row)
    return rows


def _sample(rng: random.Random, step: int, index: int) -> Row:
    padding = index == MINIS * BATCH_SIZE - 1
    length = 1 if padding else 0 if index == 2 else rng.randint(1, 7)
    loss_mask = [not padding and rng.random() < 0.8 for _ in range(length)]
    old = [single(-rng.expovariate(1.0)) for _ in range(length)]
    version = step - 1 - rng.randint(0, 2)
    row: Row = {
        "step": step, "uid": f"{step}-{index}", "is_padding": padding, "response_length": length, "stored_length": length,
        "prompt_length": 127 if padding else rng.randint(2, 9), "reward": rng.gauss(0, 1), "score": rng.gauss(0, 1),
        "turns": rng.randint(1, 3), "weight_version": version, "first_weight_version": version - index % 3,
        "loss_mask": loss_mask, "response_mask": [kept and index != 3 for kept in loss_mask], "old_logprob": old,
        "rollout_logprob": [single(x + rng.gauss(0, 0.1)) for x in old], "logprob": old,
        "ref_logprob": [single(x + rng.gauss(0, 0.5)) for x in old],
    }  # fmt: skip
    for name in ("advantage", "return", "old_value", "entropy", "old_entropy"):
        row[name] = [single(rng.gauss(0.5, 1)) for _ in range(length)]
    return row


def positions(row: Row, mask: str = "response_mask") -> list[int]:
    return [at for at, kept in enumerate(row[mask]) if kept]


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def grouped(rows: list[Row], *names: str) -> list[list[Row]]:
    """The rows by the values of these columns."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in names), []).append(row)
    return list(found.values())


def micro_mean(rows: list[Row], value: Value) -> float:
    """Masked mean per micro-batch and rank, their plain mean, and the plain mean over mini-batches."""
    minis = grouped(rows, "epoch", "minibatch")
    return mean([mean([token_mean(micro, value) for micro in grouped(mini, "rank", "microbatch")]) for mini in minis])


def token_mean(rows: list[Row], value: Value) -> float:
    return mean([value(row, at) for row in rows for at in positions(row)])


def aggregated(rows: list[Row], value: Value, mode: str) -> float:
    """``agg_loss`` per mini-batch, over all ranks and micro-batches; the plain mean over mini-batches."""
    return mean([_mini(mini, value, mode) for mini in grouped(rows, "epoch", "minibatch")])


def _mini(rows: list[Row], value: Value, mode: str) -> float:
    sums = [math.fsum(value(row, at) for at in positions(row)) for row in rows]
    if mode == "token-mean":
        return math.fsum(sums) / rows[0]["batch_num_tokens"]
    if mode == "token-sum":
        return math.fsum(sums)
    if mode == "seq-mean-token-mean":
        sums = [total / max(len(positions(row)), 1) for total, row in zip(sums, rows, strict=True)]
    if mode == "seq-mean-token-sum-norm":
        sums = [total / row["padded_width"] for total, row in zip(sums, rows, strict=True)]
    return math.fsum(sums) / BATCH_SIZE


def log_ratio(row: Row, at: int) -> float:
    return min(max(row["logprob"][at] - row["old_logprob"][at], -20.0), 20.0)


def vanilla(row: Row, at: int) -> float:
    ratio, advantage = math.exp(log_ratio(row, at)), row["advantage"][at]
    loss = max(-advantage * ratio, -advantage * min(max(ratio, 0.85), 1.3))
    return min(loss, -advantage * 2.0) if advantage < 0 else loss


def sequence_ratio(row: Row) -> float:
    return math.exp(min(mean([row["logprob"][at] - row["old_logprob"][at] for at in positions(row)]), 10.0))


def gspo(row: Row, at: int) -> float:
    ratio, advantage = sequence_ratio(row), row["advantage"][at]
    return max(-advantage * ratio, -advantage * min(max(ratio, 0.85), 1.3))


def k3(row: Row, at: int) -> float:
    x = row["ref_logprob"][at] - row["logprob"][at]
    return min(math.exp(x) - 1 - x, 10.0)


def value_loss(row: Row, at: int) -> float:
    value, old, returns = row["value"][at], row["old_value"][at], row["return"][at]
    return max((value - returns) ** 2, (min(max(value, old - 0.25), old + 0.25) - returns) ** 2)


def batches(rows: list[Row], size: int, described: RunInfo) -> list[Any]:
    """The rows of each step in batches of ``size``."""
    found = []
    for of_step in grouped(rows, "step"):
        found += [made_batch(of_step[at : at + size], described) for at in range(0, len(of_step), size)]
    return found
