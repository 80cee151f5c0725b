"""Mistaken ways to compute an advantage, against the recorded one: read where no right way gives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import Floats, derived, known, per_sequence_counts
from rl_doctor.analyzer.exact import exact_quotient
from rl_doctor.analyzer.formulas import advantage
from rl_doctor.analyzer.metrics.advantage import PER_SEQUENCE
from rl_doctor.analyzer.registry import metric, reduction, sequence_value
from rl_doctor.analyzer.states import Sum, Sums
from rl_doctor.store.batch import Batch
from rl_doctor.store.codes import codes

_TRAINED: Final = "per_sequence.trained_tokens"
_EPS: Final = 1e-6
_Rows = NDArray[np.int64]


@sequence_value("trained_tokens", optional=("response_mask", "is_padding"), needs=("advantage",))
def trained_tokens(batch: Batch) -> NDArray[np.int64]:
    """Number of tokens trained on per sequence, int64 ``[n_sequences]``."""
    return per_sequence_counts(batch)


def _whitened(values: Floats) -> Floats:
    return advantage.standardised(values, ddof=1, eps=_EPS)


def _raw(batch: Batch, rows: _Rows, reward: Floats, labels: _Rows) -> Floats:  # noqa: ARG001 - all have the same arguments
    return reward


def _twice(batch: Batch, rows: _Rows, reward: Floats, labels: _Rows) -> Floats:  # noqa: ARG001
    return _whitened(_plain(batch))


def _others(batch: Batch, rows: _Rows, reward: Floats, labels: _Rows) -> Floats:  # noqa: ARG001
    return advantage.leave_one_out(reward, labels, eps=_EPS)


def _by_rank(batch: Batch, rows: _Rows, reward: Floats, labels: _Rows) -> Floats:
    rank = codes(batch.columns["rank"][rows]) if "rank" in batch.columns else np.zeros(len(rows), np.int64)
    return advantage.grpo(reward, labels * (int(rank.max(initial=0)) + 1) + rank, ddof=1, eps=_EPS)


def _rank_whitened(batch: Batch, rows: _Rows, reward: Floats, labels: _Rows) -> Floats:  # noqa: ARG001
    return advantage.grpo(reward, codes(batch.columns["rank"][rows]), ddof=1, eps=_EPS)


def _by_place(batch: Batch, rows: _Rows, reward: Floats, labels: _Rows) -> Floats:
    """Groups are blocks of neighbours, as large as the groups are."""
    size = int(np.median(np.bincount(labels)))
    order = np.argsort(batch.columns["sequence"][rows], kind="stable")
    blocks = np.empty(len(rows), np.int64)
    blocks[order] = np.arange(len(rows)) // max(size, 1)
    return advantage.grpo(reward, blocks, ddof=1, eps=_EPS)


def _trained(batch: Batch, rows: _Rows, reward: Floats, labels: _Rows) -> Floats:
    """Responses without a token that is trained on count in no baseline."""
    trained = batch.columns[_TRAINED][rows] > 0
    return _plain(batch) if trained.all() else advantage.grpo(np.where(trained, reward, np.nan), labels, ddof=1, eps=_EPS)


def _finished(batch: Batch, rows: _Rows, reward: Floats, labels: _Rows) -> Floats:
    """Responses that did not end by themselves count in no baseline."""
    counted = np.where(np.equal(batch.columns["finish_reason"][rows], "stop").astype(np.bool_), reward, np.nan)
    return advantage.grpo(counted, labels, ddof=1, eps=_EPS)


_Compute = Callable[[Batch, _Rows, Floats, _Rows], Floats]
_OTHERS: Final[dict[str, tuple[_Compute, tuple[str, ...], str]]] = {
    "raw": (_raw, (), "the reward itself"),
    "twice": (_twice, (), "GRPO's advantage, standardised over the batch once more"),
    "leave_one_out": (_others, (), "(reward - mean of the others) / std of the others of the group"),
    "group_in_rank": (_by_rank, ("rank",), "GRPO's advantage over the part of the group that a rank has"),
    "rank_whitened": (_rank_whitened, ("rank",), "(reward - mean of the rank) / std of the rank: no groups"),
    "neighbours": (_by_place, ("sequence",), "GRPO's advantage over blocks of neighbouring rows as groups"),
    "trained_only": (_trained, (_TRAINED,), "GRPO's advantage over the responses that are trained on"),
    "finished_only": (_finished, ("finish_reason",), "GRPO's advantage over the responses with finish_reason stop"),
}


@derived
def _grouped(batch: Batch) -> tuple[_Rows, Floats, _Rows]:
    """Rows with a group and a reward, by group and reward; their rewards, and the codes of their groups."""
    reward = batch.columns["reward"].astype(np.float64)
    rows = np.flatnonzero(known(batch.columns["group"]) & np.isfinite(reward))
    rows = rows[np.lexsort((reward[rows], codes(batch.columns["group"][rows])))]
    return rows, reward[rows], codes(batch.columns["group"][rows])


@derived
def _plain(batch: Batch) -> Floats:
    """GRPO's advantage of the rows of ``_grouped``."""
    _, reward, labels = _grouped(batch)
    return advantage.grpo(reward, labels, ddof=1, eps=_EPS)


def _declare(name: str, compute: _Compute, needs: tuple[str, ...], what: str) -> None:
    @reduction(zero=Sums(), needs=("reward", "group", PER_SEQUENCE, *needs), level="rollout")
    def sums(batch: Batch) -> Sums:
        rows, reward, labels = _grouped(batch)
        if not len(rows):
            return Sums((Sum(), Sum()))
        recorded = batch.columns[PER_SEQUENCE][rows].astype(np.float64)
        expected = compute(batch, rows, reward, labels)
        fine = np.isfinite(recorded) & np.isfinite(expected)
        return Sums((Sum.of(np.abs(recorded - expected)[fine]), Sum.of(np.abs(recorded)[fine])))

    metric(
        f"advantage.other_{name}", sums, _ratio, unit="1", source="how implementations have gone wrong",
        formula=f"sum_i |A - A'| / sum_i |A|, A' = {what}",
        doc=f"Difference of the recorded advantage and this one, over the size of the recorded: {what}.",
    )  # fmt: skip


def _ratio(sums: Sums) -> float:
    off, size = sums[0], sums[1]
    return exact_quotient(off.total, size.total) if off.finite and size.finite and size.total > 0 else np.nan


for _name, (_compute, _needs, _what) in _OTHERS.items():
    _declare(_name, _compute, _needs, _what)
