"""Ways to damage a run in memory, simulated or recorded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rl_doctor.schema import MISSING_INT, REWARD_COMPONENT_PREFIX, RunInfo, column
from rl_doctor.store.batch import Batch
from rl_doctor.store.codes import codes
from rl_doctor.store.metric_log import MetricLog
from tests.simulation.run import Array, SimulatedRun, is_token
from tests.simulation.training import advantages

Floats = NDArray[np.float64]
_HIGHEST = -1e-4
_LOGGED_AS = {"grad_norm": ("grad_norm",), "learning_rate": ("learning_rate", "lr")}


class Readable(Protocol):
    """What is needed of a run to take it into memory."""

    path: Path
    info: RunInfo
    columns: Collection[str]

    def batches(self, columns: Collection[str]) -> Iterator[Batch]:
        """Batches in the order of steps."""

    def metrics(self) -> MetricLog:
        """What the trainer logged."""


def in_memory(run: Readable) -> SimulatedRun:
    """Take a whole run into memory."""
    names = sorted({*run.columns, "step"})
    parts = list(run.batches(names))
    arrays = {name: np.concatenate([part.columns[name] for part in parts]) for name in names if name in parts[0].columns}
    arrays["step"] = np.concatenate([np.full(part.n_sequences, part.step) for part in parts])
    splits = np.concatenate([[0], np.cumsum(np.concatenate([np.diff(part.splits) for part in parts]))]).astype(np.int64)
    return SimulatedRun(run.info, arrays, splits, run.metrics(), run.path)


def onset(run: SimulatedRun, share: float = 0.6) -> int:
    """The step by which ``share`` of the run has passed."""
    steps = np.unique(run.arrays["step"])
    return int(steps[int(share * len(steps))])


def passes(run: SimulatedRun) -> NDArray[np.bool_]:
    """Rows that are trained on after a step was taken since sampling, bool ``[n_sequences]``."""
    later = run.arrays["epoch"] + run.arrays["minibatch"] > 0
    if "rollout_step" in run.arrays:
        later |= run.arrays["step"] > run.arrays["rollout_step"]
    return np.asarray(later, np.bool_)


def with_values(run: SimulatedRun, **arrays: Array) -> SimulatedRun:
    """The run with columns replaced, in the stored type."""
    typed = {}
    for name, values in arrays.items():
        known = column(name)
        typed[name] = values if known is None or known.dtype == "string" else values.astype(known.dtype)
    return replace(run, arrays=run.arrays | typed)


def shifted(run: SimulatedRun, change: Array, *names: str) -> SimulatedRun:
    """The run with ``change`` (``[n_tokens]``) added to logprobs, as far as it has them and staying below 0."""
    found = {name: np.minimum(run.arrays[name].astype(np.float64) + change, _HIGHEST) for name in names if name in run.arrays}
    return with_values(run, **found)


def on_four_ranks(run: SimulatedRun) -> SimulatedRun:
    """The run with a column ``rank``: the groups are dealt out to four."""
    _, group = np.unique(run.arrays["group"], return_inverse=True)
    return with_values(run, rank=(group % 4).astype(np.int32))


def with_reward(run: SimulatedRun, reward: Floats) -> SimulatedRun:
    """The run with other rewards, and the advantages that follow; the first component takes the difference."""
    changed: dict[str, Array] = {"reward": reward}
    if "score" in run.arrays:
        changed["score"] = run.arrays["score"] + (reward - run.arrays["reward"])
    components = sorted(name for name in run.arrays if name.startswith(REWARD_COMPONENT_PREFIX))
    if components:
        changed[components[0]] = run.arrays[components[0]] + (reward - run.arrays["reward"])
    return with_advantages(with_values(run, **changed))


def with_advantages(run: SimulatedRun, estimator: str | None = None) -> SimulatedRun:
    """The run with the advantages that an estimator (by default the declared one) makes of its rewards."""
    config = run.info.config
    uid, group = (codes(run.arrays[name]) for name in ("uid", "group"))
    _, first, place = np.unique(uid, return_index=True, return_inverse=True)
    estimator = estimator or config.adv_estimator or "grpo"
    _, compact = np.unique(group[first], return_inverse=True)
    made = advantages(estimator, run.arrays["reward"][first], compact, config.adv_eps or 1e-6)
    return with_row_advantages(run, made[place])


def with_row_advantages(run: SimulatedRun, values: Floats) -> SimulatedRun:
    """The run with one advantage per row on its trained tokens, and 0 elsewhere."""
    return with_values(run, advantage=np.where(run.arrays["response_mask"], values[run.rows], 0.0))


def scaled(run: SimulatedRun, name: str, factor: Callable[[Array], Array]) -> SimulatedRun:
    """The run with a scalar of the optimizer multiplied by ``factor(step)``, in its column and in the log."""
    if name in run.arrays:
        run = with_values(run, **{name: run.arrays[name] * factor(run.arrays["step"])})
    for native in run.log.names():
        if native.rpartition("/")[2] in _LOGGED_AS[name]:
            run = run.relog(native, lambda steps, values: values * factor(steps))
    return run


def extended(run: SimulatedRun, extra: NDArray[np.int64], fill: dict[str, Any]) -> SimulatedRun:
    """The run with ``extra[i]`` stored tokens more at the end of row i, holding ``fill`` (0 or null elsewhere).

    ``response_length`` stays: what is added was not generated.
    """
    lengths = np.diff(run.splits)
    splits = np.concatenate([[0], np.cumsum(lengths + extra)]).astype(np.int64)
    old = np.arange(run.splits[-1]) + np.repeat(splits[:-1] - run.splits[:-1], lengths)
    arrays = dict(run.arrays)
    for name in filter(is_token, run.arrays):
        longer = np.zeros(splits[-1], run.arrays[name].dtype)
        known = column(name)
        longer[:] = fill.get(name, -1 if name == "role" else MISSING_INT.get(known.dtype if known else "", 0))
        longer[old] = run.arrays[name]
        arrays[name] = longer
    arrays["stored_length"] = (lengths + extra).astype(np.int32)
    return replace(run, arrays=arrays, splits=splits)


def rolled(run: SimulatedRun, name: str, lag: NDArray[np.int64]) -> SimulatedRun:
    """The run with a token column moved by ``lag[i]`` positions inside row i, around its ends."""
    lengths = np.diff(run.splits)[run.rows]
    start = run.splits[:-1][run.rows]
    place = np.arange(run.splits[-1]) - start
    source = start + (place - lag[run.rows]) % np.maximum(lengths, 1)
    return with_values(run, **{name: run.arrays[name][source]})


def by_group(run: SimulatedRun, values: Floats, reduce: Callable[[Floats], float]) -> Floats:
    """``reduce`` of the values ``[n_sequences]`` of each group, back on the rows."""
    group = codes(run.arrays["group"])
    order = np.argsort(group, kind="stable")
    cuts = np.flatnonzero(np.diff(group[order])) + 1
    reduced = np.array([reduce(part) for part in np.split(values[order], cuts)])
    return np.asarray(reduced[group], np.float64)
