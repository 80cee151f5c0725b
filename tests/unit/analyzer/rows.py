"""Random rows that have every column and what can befall a run: padding rows, empty rows, masks, nulls, several passes."""

from __future__ import annotations

import math
import random
from typing import Final

import numpy as np

from rl_doctor.schema import RunConfig
from tests.unit.analyzer.memory import Row

CONFIG: Final = RunConfig(
    clip_low=0.2, clip_high=0.3, dual_clip=1.5, log_ratio_clamp=0.6, kl_coef=0.05, kl_estimator="k3", kl_in_reward=False,
    kl_input_clamp=0.7, kl_output_clamp=0.1, entropy_coef=0.01, loss_agg="token-mean", adv_estimator="grpo", adv_eps=1e-4,
    adv_ddof=1, adv_norm="group", gamma=0.97, lam=0.9, value_clip=0.2, max_response_length=5, max_grad_norm=1.0,
    reward_weights={"fmt": 0.5},
)  # fmt: skip
_REWARDS: Final = (0.0, 1.0, 1.0, 0.1, 0.1 + 1e-5, -2.0, math.nan)
_LOGPROBS: Final = ("logprob", "old_logprob", "rollout_logprob", "ref_logprob", "teacher_logprob")


def single(value: float) -> float:
    """The nearest float32."""
    return float(np.float32(value))


def _tokens(rng: random.Random, size: int, *, spoiled: bool) -> Row:
    mask = [rng.random() < 0.7 for _ in range(size)]
    old = [single(-rng.expovariate(1.0)) for _ in range(size)]
    near = [single(x + rng.choice([0.0, rng.gauss(0, 0.01), rng.gauss(0, 0.4)])) for x in old]
    row: Row = {name: [single(x + rng.gauss(0, 0.3)) for x in old] for name in _LOGPROBS}
    row |= {
        "response_mask": mask,
        "logprob": near,
        "old_logprob": old,
        "advantage": rng.choice([[single(rng.gauss(0, 1))] * size, [single(rng.gauss(0, 1)) for _ in range(size)], [0.0] * size]),
        "token_version": [rng.randint(0, 3) for _ in range(size)],
        "token_id": [rng.randint(0, 9) for _ in range(size)],
    }
    for name in ("return", "value", "old_value", "entropy", "old_entropy", "is_weight", "ratio", "kl"):
        row[name] = [single(rng.random()) for _ in range(size)]
    for name in row:
        if spoiled and name not in ("response_mask", "token_version", "token_id"):
            row[name] = [x if kept else rng.choice([x, math.nan, math.inf]) for x, kept in zip(row[name], mask, strict=True)]
    return row


def random_rows(seed: int, rollouts: int = 3, *, spoiled: bool = True) -> list[Row]:
    """Rows of some generation batches; those trained on twice reach into the next step."""
    rng = random.Random(seed)
    rows: list[Row] = []
    for rollout in range(rollouts):
        for item in range(rng.randint(1, 7)):
            size = rng.choice([0, 1, 2, 5, 6])
            about = {
                "rollout_step": rollout,
                "uid": f"{rollout}-{item}",
                "group": rng.choice(["a", "a", "b", "b", "c", None]),
                "is_padding": rng.random() < 0.1,
                "response_length": rng.choice([size, size, size, None]),
                "finish_reason": rng.choice(["stop", "length", "abort", None]),
                "turns": rng.choice([1, 2, None]),
                "reward": rng.choice(_REWARDS),
                "score": rng.choice(_REWARDS),
                "reward/fmt": rng.choice(_REWARDS),
                "reward/task": rng.choice(_REWARDS),
                "weight_version": rng.choice([rollout, None]),
            }
            for passed in range(rng.randint(1, 3)):
                rows.append(
                    about
                    | {
                        "sequence": len(rows),
                        "step": 10 * rollout + 5 * passed,
                        "epoch": passed,
                        "minibatch": rng.randint(0, 1),
                        "policy_version": rng.choice([rollout + passed, None]),
                        "grad_norm": rng.choice([0.5, 2.0, math.nan]),
                        "learning_rate": 1e-3,
                        "loss_scale_factor": 8.0,
                    }
                    | _tokens(rng, size, spoiled=spoiled)
                )
    return rows


def annotated(rows: list[Row]) -> list[Row]:
    """The rows with what references may know beside the columns: the first step of the generation batch."""
    started: dict[int, int] = {}
    for row in sorted(rows, key=lambda row: row["step"]):
        started.setdefault(row["rollout_step"], row["step"])
    return [row | {"started": started[row["rollout_step"]]} for row in rows]


def by_step(rows: list[Row]) -> dict[int, list[Row]]:
    """The rows of each step."""
    found: dict[int, list[Row]] = {}
    for row in annotated(rows):
        found.setdefault(row["step"], []).append(row)
    return dict(sorted(found.items()))


def by_rollout(rows: list[Row]) -> dict[int, list[Row]]:
    """The rows of each generation batch, each uid once, by the first step that trained on it."""
    found: dict[int, dict[str, list[Row]]] = {}
    for row in sorted(annotated(rows), key=lambda row: (row["step"], row["epoch"], row["minibatch"])):
        uids = found.setdefault(row["started"], {})
        if not row["is_padding"]:
            uids.setdefault(row["uid"], []).append(row)
    return {step: [passes[0] | {"passes": len(passes)} for passes in uids.values()] for step, uids in sorted(found.items())}
