"""A run in which everything that says whose it is can be recognised, and markup stands wherever a text may."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rl_doctor.schema import RunConfig, RunInfo
from rl_doctor.store.rows import Rows, splits_of
from rl_doctor.store.writer import RunWriter

CANARY = "canary"
"""In whatever case, it stands in everything that must not leave."""
FIRST_ID = 8_675_309
"""Token ids are this and the following ones."""
SCRIPT = "<script>alert('x')</script>"
STEPS = 12
ROWS = 16
TOKENS = 20


def write(folder: Path, mark: str = CANARY, *, script: str = "") -> Path:
    """Write the run: its mask covers padding, so that there are findings."""
    config = RunConfig(
        clip_low=0.2, clip_high=0.2, loss_agg="token-mean", adv_estimator=f"{mark}Estimator", is_correction=f"{mark} weights",
        reward_weights={f"{mark}_judge": 1.0},
        native={
            f"{mark}_key": f"/{mark}/models/{mark}-7b", "nested": {"list": [f"https://{mark}.example/x", {"host": f"{mark}01"}]},
        },
    )  # fmt: skip
    info = RunInfo(
        run_id=f"{mark}-run", trainer=f"{mark}Trainer", trainer_version=f"1.0+{mark}", algorithm=f"{mark}po",
        logprob_dtype=f"{mark}16", eos_token_ids=(FIRST_ID,), pad_token_id=FIRST_ID + 1, vocab_size=9_000_000,
        sessions=({"session": 0, "host": f"{mark}-host", "started": 1.7e9, "user": f"{mark}user"},), config=config,
        extra={"note": f"{mark} note", f"{mark}Extra": 1},
    )  # fmt: skip
    writer = RunWriter(folder, info)
    for step in range(1, STEPS + 1):
        writer.write_part(_rows(step, mark, script), completes=[step])
        names = (
            f"val-core/{mark}/source/reward/mean@4",
            f"{mark}/metric",
            f"rewards/{mark}_judge/mean",
            f"actor/{script}",
            "actor/grad_norm",
        )
        writer.write_metrics([{"step": step, "name": name, "value": 0.1 * step} for name in names])
    writer.close()
    return folder


def _rows(step: int, mark: str, script: str) -> Rows:
    generator = np.random.default_rng(step)
    lengths = np.full(ROWS, TOKENS)
    splits, total = splits_of(lengths), ROWS * TOKENS
    old = -generator.exponential(0.8, total).astype(np.float32)
    own = np.arange(ROWS)

    def names(kind: str, number: int) -> object:
        return np.array([f"{mark}{kind}{step if kind == 'uid' else ''}-{at % number}{script}" for at in own], object)

    reward = generator.integers(0, 2, ROWS).astype(np.float64)
    return Rows(
        {
            "step": np.full(ROWS, step), "uid": names("uid", ROWS), "group": names("group", 4), "session_id": names("session", 4),
            "data_source": names("source", 2), "finish_reason": names("finish", 2), "prompt": names("prompt", 4),
            "response": names("response", ROWS), "reward": reward, f"reward/{mark}_judge": reward,
            "response_length": np.full(ROWS, 12, np.int32), "response_mask": np.ones(total, bool),
            "token_id": (FIRST_ID + generator.integers(0, 50, total)).astype(np.int32), "old_logprob": old,
            "logprob": (old + 0.3 * generator.normal(size=total)).astype(np.float32),
            "rollout_logprob": (old + 0.1 * generator.normal(size=total)).astype(np.float32),
            "advantage": np.repeat(reward - 0.5, lengths).astype(np.float32),
            "entropy": generator.exponential(0.6, total).astype(np.float32),
        },
        splits,
    )  # fmt: skip
