"""A run whose prompts and responses hold what must never become markup, and a tokenizer for its ids."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np

from rl_doctor.schema import RunConfig, RunInfo
from rl_doctor.store.rows import Rows, splits_of
from rl_doctor.store.writer import RunWriter

SCRIPT = "<script>alert(1)</script>"
IMAGE = "<img src=x onerror=alert(1)>"
VOCABULARY = (
    "<|end|>", SCRIPT, IMAGE, "\n", " the", " answer", " is", " **4**", " [a](javascript:alert(1))", " $x^2$", " so", " we",
    " add", "{", "}", " é", " 答案", " two", " and", " :red[hot]",
)  # fmt: skip
LONG = 9_000
"""Tokens of the longest response, more than are shown at once."""
GROUP = 4
STEPS = 3
PLACEHOLDER = -999.0
"""What stands at tokens that a tool wrote, which are not trained on."""


def lengths_of(step: int) -> list[int]:
    """Tokens of each response of a step."""
    return [LONG if step == STEPS else 40, 60, 25, 8] * 2


def write(folder: Path) -> Path:
    """Write the run."""
    config = RunConfig(clip_low=0.2, clip_high=0.28, kl_coef=0.01, kl_estimator="k3", adv_norm="group")
    writer = RunWriter(folder, RunInfo(trainer="custom", algorithm="grpo", eos_token_ids=(0,), config=config))
    for step in range(1, STEPS + 1):
        writer.write_part(_rows(step), completes=[step])
    writer.close()
    return folder


def _rows(step: int) -> Rows:
    generator = np.random.default_rng(step)
    lengths = np.array(lengths_of(step))
    n, splits = len(lengths), splits_of(lengths)
    total = int(splits[-1])
    ids = generator.integers(1, len(VOCABULARY), total).astype(np.int32)
    ids[splits[:-1]], ids[splits[:-1] + 1], ids[splits[1:] - 1] = 1, 2, 0
    old = -generator.exponential(0.8, total).astype(np.float32)
    noise = {"logprob": 0.15, "rollout_logprob": 0.03, "ref_logprob": 0.3}
    columns = {name: (old + size * generator.normal(size=total)).astype(np.float32) for name, size in noise.items()}
    position = np.arange(total) - np.repeat(splits[:-1], lengths)
    tool = (position >= 10) & (position < 16)
    columns["old_logprob"] = old
    for values in columns.values():
        values[tool] = PLACEHOLDER
    columns["logprob"][splits[:-1] + 5] = np.nan
    reward = np.tile([0.0, 1.0, 0.5, 1.0], 2)
    texts = ["".join(VOCABULARY[one] for one in ids[start:stop]) for start, stop in pairwise(splits.tolist())]
    return Rows(
        {
            "step": np.full(n, step), "rollout_step": np.full(n, step), "epoch": np.zeros(n, np.int32),
            "minibatch": np.zeros(n, np.int32), "uid": np.array([f"{step}:{row}" for row in range(n)], object),
            "group": np.array([f"{step}:p{row // GROUP}" for row in range(n)], object), "reward": reward,
            "reward/right": reward, "reward/format": np.full(n, 0.1), "response_length": lengths.astype(np.int32),
            "finish_reason": np.array(["stop"] * n, object),
            "prompt": np.array([f"What is {SCRIPT} 2 + 2?\n**Think.**"] * n, object),
            "response": np.array(texts, object), "token_id": ids, "response_mask": ~tool,
            "advantage": np.repeat(reward - 0.6, lengths).astype(np.float32),
            "entropy": generator.exponential(0.6, total).astype(np.float32), **columns,
        },
        splits,
    )  # fmt: skip


def write_tokenizer(path: Path) -> Path:
    """Write a ``tokenizer.json`` whose texts are those of ``VOCABULARY``."""
    document = {
        "version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": {text: at for at, text in enumerate(VOCABULARY)}, "unk_token": VOCABULARY[0]},
    }  # fmt: skip
    path.write_text(json.dumps(document))
    return path
