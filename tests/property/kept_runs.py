"""Small recordings with what crosses steps and parts: generation batches over several steps, groups that come again, ranks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rl_doctor.api import open_run
from rl_doctor.checking.check import Judged, judged
from rl_doctor.checking.keeping import Keep
from rl_doctor.report import json_document
from rl_doctor.report.model import Report
from rl_doctor.rules.registry import rules
from rl_doctor.schema import RunConfig, RunInfo
from rl_doctor.store.rows import Rows, splits_of
from rl_doctor.store.writer import RunWriter

CONFIG = RunConfig(
    clip_low=0.2, clip_high=0.28, kl_coef=0.001, kl_estimator="k3", loss_agg="token-mean", adv_estimator="grpo", adv_norm="group",
    adv_ddof=1, adv_eps=1e-6, epochs=1, minibatches=2, max_response_length=12, group_size=4, temperature=1.0,
)  # fmt: skip
INFO = RunInfo(trainer="custom", algorithm="grpo", eos_token_ids=(2,), pad_token_id=0, vocab_size=1000, config=CONFIG)
ROWS = 8


def rows(step: int, *, seed: int = 0, rank: int = 0, per_rollout: int = 2, nan: bool = False) -> Rows:
    """The rows of one step on one rank: a generation batch serves ``per_rollout`` steps, and groups come again now and then."""
    rng = np.random.default_rng([seed, step, rank])
    rollout = (step - 1) // per_rollout * per_rollout + 1
    lengths = rng.integers(2, 12, ROWS)
    total = int(lengths.sum())
    group = np.arange(ROWS) // 4
    reward = (rng.random(ROWS) < 0.5).astype(np.float64)
    old = -rng.exponential(0.5, total).astype(np.float32)
    columns: dict[str, Any] = {
        "step": np.full(ROWS, step), "rollout_step": np.full(ROWS, rollout), "epoch": np.zeros(ROWS, np.int32),
        "minibatch": np.full(ROWS, (step - 1) % per_rollout, np.int32), "rank": np.full(ROWS, rank, np.int32),
        "uid": np.array([f"{rollout}-{rank}-{row}" for row in range(ROWS)], object),
        "group": np.array([f"{(rollout if rollout % 3 else 1)}-{rank}-{row}" for row in group], object),
        "data_source": np.array([("math", "code")[int(row % (1 + rollout % 2))] for row in range(ROWS)], object),
        "reward": reward, "response_length": lengths.astype(np.int32),
        "prompt_length": rng.integers(3, 9, ROWS).astype(np.int32),
        "finish_reason": np.where(lengths > 10, "length", "stop").astype(object),
        "policy_version": np.full(ROWS, step), "weight_version": np.full(ROWS, rollout),
        "old_logprob": old, "logprob": (old + rng.normal(0, 0.05, total) * (step != rollout)).astype(np.float32),
        "rollout_logprob": (old + rng.normal(0, 0.01, total)).astype(np.float32),
        "ref_logprob": (old + rng.normal(0, 0.1, total)).astype(np.float32),
        "entropy": rng.exponential(0.4, total).astype(np.float32), "token_id": rng.integers(3, 900, total).astype(np.int32),
        "advantage": np.repeat(reward - reward.mean(), lengths).astype(np.float32), "response_mask": np.ones(total, np.bool_),
    }  # fmt: skip
    if nan:
        columns["entropy"][0] = np.nan
    return Rows(columns, splits_of(lengths))


def joined(parts: Iterable[Rows]) -> Rows:
    """The rows of several steps as those of one part."""
    from rl_doctor.store.rows import concatenate

    return concatenate(list(parts))


def write(writer: RunWriter, cut: Sequence[Sequence[int]], *, wrong: bool = False, **options: Any) -> None:
    """Write parts, each with the steps that it has; the log may say what is ``wrong``, which is then looked into."""
    for steps in cut:
        writer.write_part(joined(rows(step, rank=writer.rank, **options) for step in steps), completes=list(steps))
        writer.write_metrics(
            [
                {"step": step, "time": float(step), "name": name, "value": value, "split": "train", "source": "log"}
                for step in steps
                for name, value in (
                    (("policy.entropy" if wrong else "actor/entropy_bonus"), 0.4),
                    ("actor/grad_norm", 1.0 / step),
                )
            ]
        )


def check(path: Path, *, keep: bool, everything: bool = True, verify: bool = False) -> Judged:
    """Judge a run from its files, as a process of its own would."""
    kept = Keep(path, verify=verify) if keep else None
    found = judged(open_run(path), tuple(rules().values()), everything=everything, keep=kept)
    if kept is not None:
        assert not [note for note in kept.notes if "could not be used" in note], kept.notes
    return found


def told(found: Judged) -> dict[str, Any]:
    """All that a check says, to the bit; without the time at which it was said."""
    numbers = {
        name: [array.tobytes() for array in (one.steps, one.values, one.counts)] for name, one in sorted(found.series.items())
    }
    histograms = {name: {step: one.to_row() for step, one in stack.items()} for name, stack in found.histograms.items()}
    return {"report": document(found.report), "series": numbers, "missing": dict(found.missing), "histograms": histograms}


def document(report: Report) -> dict[str, Any]:
    """A report as JSON, without the time at which it was made."""
    found: dict[str, Any] = json.loads(json_document.render([report], "error"))
    _without(found, "created_at")
    return found


def _without(document: Any, key: str) -> None:
    if isinstance(document, dict):
        document.pop(key, None)
    for value in document.values() if isinstance(document, dict) else document if isinstance(document, list) else ():
        _without(value, key)
