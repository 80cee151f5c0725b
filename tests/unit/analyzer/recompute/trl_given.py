"""Seeded tensors of a TRL step as a batch, and what the dialect makes of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from rl_doctor.analyzer.recompute.registry import Entries, Logged, find_dialect
from rl_doctor.schema import RunInfo
from rl_doctor.store.batch import Batch
from rl_doctor.store.info import info_from_json

Given = list[list[dict[str, Any]]]
"""Tensors by micro-batch and rank, as lists."""


def info_of(version: str | None, algorithm: str, native: dict[str, Any], ranks: int) -> RunInfo:
    return info_from_json(
        {"trainer": "trl", "trainer_version": version, "algorithm": algorithm, "world_size": ranks, "config": {"native": native}},
        "info",
    )


def batch_of(given: Given, info: RunInfo, ranks: int, rows: slice = slice(None)) -> Batch:
    """The batch of some of the rows of each micro-batch."""
    parts = [
        (step, rank, part, row)
        for step, of_ranks in enumerate(given)
        for rank, part in enumerate(of_ranks[:ranks])
        for row in range(len(part["advantage"]))[rows]
    ]
    tokens = sum(np.sum(part["response_mask"]) for of_ranks in given for part in of_ranks[:ranks])
    columns: dict[str, Any] = {"num_items_in_batch": np.full(len(parts), 2 * tokens), "step": np.ones(len(parts), np.int64)}
    for name in given[0][0]:
        values = [
            np.full(len(part["response_mask"][row]), part[name][row]) if name == "advantage" else np.array(part[name][row])
            for _, _, part, row in parts
        ]
        columns[name] = np.concatenate(values).astype(np.bool_ if name == "response_mask" else np.float32)
    columns |= {"microbatch": np.array([part[0] for part in parts]), "rank": np.array([part[1] for part in parts])}
    columns |= {"grad_accumulation": np.full(len(parts), len(given))}
    width = len(given[0][0]["response_mask"][0])
    return Batch(1, columns, np.arange(len(parts) + 1) * width, info)


def keys_of(info: RunInfo, names: set[str]) -> dict[str, Logged]:
    """What is recomputed of the names, from tokens."""
    dialect = find_dialect(info)
    if dialect is None:
        return {}
    return {item.name: item for item in dialect.logged(info, (), names) if item.name in names and item.reduction.level == "token"}


def folded(item: Logged, given: Given, info: RunInfo, ranks: int) -> Entries:
    """The entries of a key, from two parts of the batch."""
    state = item.reduction.zero
    for rows in (slice(3), slice(3, None)):
        state = state + item.reduction.partial(batch_of(given, info, ranks, rows))
    found: Entries = item.entries(state)
    return found
