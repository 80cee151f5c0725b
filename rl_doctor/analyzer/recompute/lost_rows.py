"""Signs that a recording lacks rows of some rank, where nothing tells how many ranks there were."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import known
from rl_doctor.analyzer.dialects.recognise import find_trainer
from rl_doctor.analyzer.recompute.native import Native
from rl_doctor.analyzer.registry import Metric, Reduction
from rl_doctor.analyzer.series import Series
from rl_doctor.analyzer.states import Keyed, Sum, Sums
from rl_doctor.schema import RunInfo
from rl_doctor.store.batch import Batch
from rl_doctor.store.codes import codes

_MOST: Final = 0.5
"""Share of the steps, and of the groups of a step, from which a sign is one."""
_PREFIX: Final = "reconcile.lost."
_GENERATED: Final[Mapping[str, tuple[str, ...]]] = {
    "verl": ("data.train_batch_size", "actor_rollout_ref.rollout.n"),
    "TRL": ("generation_batch_size",),
    "OpenRLHF": ("rollout.batch_size", "rollout.n_samples_per_prompt"),
    "slime": ("rollout_batch_size", "n_samples_per_prompt"),
    "SkyRL": ("trainer.train_batch_size", "generator.n_samples_per_prompt"),
    "NeMo-RL": ("grpo.num_prompts_per_step", "grpo.num_generations_per_prompt"),
}
"""Settings whose product is the number of sequences of a generation batch over all ranks."""


def lost_rows(info: RunInfo, columns: Collection[str]) -> tuple[Metric, ...]:
    """What is counted to tell whether rows of a rank are missing; nothing where the number of ranks is told.

    A world of one rank says no more than none: each process of a launcher may have written that of itself.
    """
    if (info.world_size or 1) > 1:
        return ()
    return tuple(
        Metric(f"{_PREFIX}{sign}", "1", reduction, final, "", "")
        for sign, reduction, final in _signs(info)
        if set(reduction.needs) <= set(columns)
    )


def sign_of_lost_rows(info: RunInfo, series: Mapping[str, Series]) -> str:
    """What shows at most of the steps that rows of a rank may be missing; "" for nothing.

    Args:
        info: the run's description.
        series: what the pass gave of ``lost_rows``.
    """
    rows = _generated(info)
    words = {
        "ranks": "the ranks that wrote are not numbered from 0 without a gap",
        "groups": f"most groups have fewer sequences than config.group_size, {info.config.group_size}",
        "rows": f"generation batches have fewer sequences than the {rows:g} that are configured" if rows else "",
    }
    for sign, told in words.items():
        found = series.get(f"{_PREFIX}{sign}")
        if found is not None and len(found.values) and np.mean(found.values > 0) >= _MOST:
            return told
    return ""


def _signs(info: RunInfo) -> Iterator[tuple[str, Reduction, Callable[[Keyed], float] | Callable[[Sum], float]]]:
    """The name of each sign, what is folded of a step for it, and whether it is there, 1 or 0."""
    yield "ranks", Reduction(_ranks, Keyed({}), ("rank",), (), "token"), _has_gap
    size, rows = info.config.group_size, _generated(info)
    if size is not None and size > 1:
        yield "groups", Reduction(partial(_small, size=size), Sum(), ("group",), (), "rollout"), _mostly
    if rows:
        yield "rows", Reduction(_rows, Sum(), ("rollout_step",), (), "rollout"), partial(_fewer, expected=rows)


def _generated(info: RunInfo) -> float | None:
    """Sequences of a generation batch, as its trainer was configured; None where that is not known."""
    trainer, native = find_trainer(info.trainer), Native(info.config.native)
    numbers = [native.whole(name) for name in _GENERATED.get(trainer.label if trainer else "", ())]
    known_ = [number for number in numbers if number]
    return float(np.prod(known_)) if numbers and len(known_) == len(numbers) else None


def _ranks(batch: Batch) -> Keyed:
    return Keyed({(int(rank),): Sums((Sum(0, 1),)) for rank in np.unique(batch.columns["rank"]).tolist()})


def _has_gap(state: Keyed) -> float:
    """Whether ranks are missing between or before others; those that write may be every second, fourth, ... from 0 on."""
    ranks = sorted(rank for (rank,) in state.groups)
    return float(ranks[0] != 0 or len(set(np.diff(ranks).tolist())) > 1)


def _small(batch: Batch, size: int) -> Sum:
    names = batch.columns["group"]
    sizes = np.bincount(codes(names[known(names)]))
    return Sum.counted(int(np.count_nonzero(sizes < size)), len(sizes))


def _mostly(state: Sum) -> float:
    return float(state.count > 0 and state.mean > _MOST)


def _rows(batch: Batch) -> Sum:
    return Sum(0, batch.n_sequences)


def _fewer(state: Sum, expected: float) -> float:
    return float(state.count < expected)
