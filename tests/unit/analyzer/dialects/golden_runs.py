"""Runs recorded from the tensors of a golden file, with what the trainer made of them logged under its own names."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from rl_doctor import Recorder, Run, check, open_run
from rl_doctor.analyzer import reconcile
from rl_doctor.analyzer.comparison import Comparison
from rl_doctor.analyzer.dialects.registry import Trainer, matching, plain
from rl_doctor.analyzer.engine import analyze

HERE: Final = Path(__file__).parents[3] / "golden" / "trainers"
TOKENS: Final = frozenset({
    "response_mask", "loss_mask", "logprob", "old_logprob", "rollout_logprob", "ref_logprob", "advantage", "return", "value",
    "old_value", "entropy", "old_entropy", "token_reward",
})  # fmt: skip
PLACE: Final = ("epoch", "minibatch", "microbatch", "rank")
Row = dict[str, Any]


def golden(name: str) -> dict[str, Any]:
    """The content of a golden file."""
    document: dict[str, Any] = json.loads((HERE / f"{name}.json").read_text("utf-8"))
    return document


def logged_in(document: Mapping[str, Any], case: Mapping[str, Any]) -> dict[str, float]:
    """What the trainer logged in a case: that of the first one but for what differs."""
    return {name: value for name, value in {**document["logged"], **case["logged"]}.items() if name not in case["absent"]}


def parts(rows: Iterable[Row]) -> Iterator[tuple[tuple[int, ...], list[Row]]]:
    """Rows of each micro-batch of each rank, in order."""
    found: dict[tuple[int, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row.get(name, 0) for name in PLACE), []).append(row)
    yield from sorted(found.items(), key=lambda item: item[0])


def recorded(folder: Path, info: Mapping[str, Any], steps: Mapping[int, tuple[list[Row], Mapping[str, float]]]) -> Run:
    """Record the rows of each step, padded as one tensor per micro-batch, and what was logged at it."""
    with Recorder(folder, info=info) as recorder:
        for step, (rows, logged) in steps.items():
            for _, some in parts(rows):
                recorder.log_batch(step=step, **padded(some))
            recorder.log_metrics(step, logged)
    return open_run(folder)


def padded(rows: list[Row]) -> dict[str, Any]:
    """Columns of some rows, tokens padded on the right."""
    width = max(1, *(row["response_length"] for row in rows))
    columns: dict[str, Any] = {}
    for name in rows[0]:
        if name == "sequence":  # the recorder counts them
            continue
        if name in TOKENS:
            kind = np.bool_ if name.endswith("mask") else np.float32
            made = np.zeros((len(rows), width), kind)
            for at, row in enumerate(rows):
                made[at, : len(row[name])] = row[name]
            columns["returns" if name == "return" else name] = made
        else:
            columns[name] = [row[name] for row in rows]
    return columns


def comparisons(run: Run) -> dict[str, Comparison]:
    """What was logged against what is recomputed, by native name."""
    plan = reconcile.plan(run.info, run.columns, run.metrics())
    analysis = analyze(run, [], plan.metrics)
    return {item.name: item for item in reconcile.compare(plan, analysis.series, analysis.partial_steps)}


def findings(run: Run) -> dict[str, str]:
    """Messages of RLD801 by the name that they begin with."""
    messages = [found.message for result in check(run).results if result.code == "RLD801" for found in result.findings]
    return {message.split()[0]: message for message in messages}


def without_recipe(table: Trainer, names: Collection[str]) -> set[str]:
    """Those of the logged names that the table does not know, or defines without saying how they are recomputed or why not."""
    unknown = set()
    for name in names:
        items = [item for item in table.names if matching(item.native, [plain(name)])]
        if not any(item.definition is not None and (item.definition.recipes or item.definition.reason) for item in items):
            unknown.add(name)
    return unknown


def unequal(found: Mapping[str, Comparison], bound: float = 1e-6, ties: Collection[str] = ()) -> dict[str, tuple[float, float]]:
    """The keys whose recomputed numbers differ from the logged ones by more than rounding, with both at the worst step.

    That is what the key's own tolerance says, and ``bound`` of the larger of 1 and the number. For the keys ``ties``, which count
    tokens that lie on a threshold, only the first: float32 may put these on either side.
    """
    wrong = {}
    for name, item in found.items():
        difference = np.abs(item.logged - item.recomputed)
        bad = difference > item.tolerance
        if name not in ties:
            bad |= difference > bound * np.maximum(1.0, np.abs(item.logged))
        if bad.any():
            worst = int(np.argmax(difference))
            wrong[name] = (float(item.logged[worst]), float(item.recomputed[worst]))
    return wrong
