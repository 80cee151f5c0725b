"""Importance ratio and KL of the policy being trained to the policy of old_logprob."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer import kernels
from rl_doctor.analyzer.derive import (
    FIRST_STEP,
    Bools,
    columns_of,
    derived,
    first_rows,
    later_rows,
    of_rows,
    per_sequence_counts,
    row_sums,
    tokens,
)
from rl_doctor.analyzer.histogram import Histogram
from rl_doctor.analyzer.kernels import Clipping, PolicyRows
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Extremes, Sum, Sums, mean
from rl_doctor.store.batch import Batch

NEEDS: Final = ("logprob", "old_logprob")
PASS_NEEDS: Final = ("epoch", "minibatch")
PASS_OPTIONAL: Final = (FIRST_STEP,)
SCHULMAN: Final = "J. Schulman, Approximating KL divergence, 2020"
KL_FORMULAS: Final = {"k1": "-x", "k2": "x^2 / 2", "k3": "exp(x) - 1 - x", "abs": "|x|"}

_PPO: Final = "PPO, arXiv:1707.06347, eq. 6"
_COUNT: Final = "counting over the tokens trained on"
_FIRST, _LATER = 1, 2


@derived
def policy_rows(batch: Batch) -> PolicyRows:
    """One pass over the selected tokens: the log-ratio, clamped as the trainer clamps it, its ratio, and the policy loss."""
    config = batch.info.config
    clipping = Clipping(config.clip_low, config.clip_high, config.dual_clip, config.log_ratio_clamp)
    others = {"advantage": "advantage", "weight": "is_weight"}
    given = {key: columns_of(batch, name)[0] for key, name in others.items() if batch.get(name) is not None}
    new, old = columns_of(batch, "logprob", "old_logprob")
    found: PolicyRows = kernels.of(batch.run_tokens).policy(new, old, tokens(batch), clipping, _classes(batch), **given)
    return replace(found, sums=of_rows(batch, found.sums), counts=of_rows(batch, found.counts))


def _classes(batch: Batch) -> NDArray[np.int8]:
    """Int8 ``[n_filled]``: which sequences with a selected token are of the first mini-batch, and which of later ones."""
    classes = np.zeros(batch.n_sequences, np.int8)
    if all(name in batch.columns for name in PASS_NEEDS):
        classes[first_rows(batch)] = _FIRST
        classes[later_rows(batch)] = _LATER
    return classes[per_sequence_counts(batch) > 0]


def share_of(batch: Batch, index: int, *unknown: int, rows: Bools | None = None) -> Sum:
    """Share of the tokens that ``PolicyRows.counts[index]`` counts; NaN where one of those that ``unknown`` count is there."""
    counts, trained = policy_rows(batch).counts, per_sequence_counts(batch)
    if rows is not None:
        counts, trained = counts[:, rows], trained[rows]
    return Sum.counted(int(counts[index].sum()), int(trained.sum()), int(counts[list(unknown)].sum()))


@reduction(zero=Sum(), needs=NEEDS)
def _ratio_sum(batch: Batch) -> Sum:
    return row_sums(batch, policy_rows(batch).sums[:1])[0]


@reduction(zero=Extremes(), needs=NEEDS)
def _ratio_extremes(batch: Batch) -> Extremes:
    return policy_rows(batch).ends


@reduction(zero=Histogram.zero(), needs=NEEDS)
def _histogram(batch: Batch) -> Histogram:
    tops = policy_rows(batch).tops
    return Histogram.of_counts(tops.sum(axis=0, dtype=tops.dtype))


@reduction(zero=Sum(), needs=NEEDS)
def _zeros(batch: Batch) -> Sum:
    return share_of(batch, 0, 6)


@reduction(zero=Sums(), needs=NEEDS)
def _kl(batch: Batch) -> Sums:
    return row_sums(batch, kl_rows(policy_rows(batch).sums[1:5]))


def kl_rows(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """K1, k2, k3 and abs per sequence from the sums of x, x^2, k3 and abs x, each ``[4, n_sequences]``."""
    return np.stack([-sums[0], 0.5 * sums[1], sums[2], sums[3]])


def _quantile(q: float) -> Callable[[Histogram], float]:
    return lambda state: state.quantile(q)


def _ratio_quantile(q: float) -> Callable[[Histogram], float]:
    return lambda state: float(np.exp(state.quantile(q)))


metric(
    "policy.ratio_mean", _ratio_sum, mean, unit="1", source=_PPO,
    formula="mean_T r",
    doc="Mean of exp(logprob - old_logprob) over the tokens trained on.",
)  # fmt: skip
metric(
    "policy.ratio_min",
    _ratio_extremes,
    lambda s: s.min,
    unit="1",
    source=_PPO,
    formula="min_T r",
    doc="Smallest ratio trained on.",
)
metric(
    "policy.ratio_max",
    _ratio_extremes,
    lambda s: s.max,
    unit="1",
    source=_PPO,
    formula="max_T r",
    doc="Largest ratio trained on.",
)
for _name, _q in (("p01", 0.01), ("p50", 0.5), ("p99", 0.99)):
    metric(
        f"policy.ratio_{_name}", _histogram, _ratio_quantile(_q), unit="1", source=_PPO,
        formula=f"quantile_T(r, {_q})",
        doc=f"Quantile {_q} of the ratio over the tokens trained on; its logarithm is right within .4%.",
    )  # fmt: skip
metric(
    "policy.ratio_zero_frac", _zeros, mean, unit="1", source=_COUNT,
    formula="share_T[x = 0]",
    doc="Share of tokens whose log-ratio is exactly 0.",
)  # fmt: skip
for _index, (_name, _formula) in enumerate(KL_FORMULAS.items()):
    metric(
        f"policy.kl_old_{_name}", _kl, mean, part=_index, unit="nat", source=SCHULMAN,
        formula=f"mean_T {_formula}",
        doc=f"Mean of {_formula} with x = logprob - old_logprob over the tokens trained on: estimates KL(old||new).",
    )  # fmt: skip


def _declare(prefix: str, letter: str, of_class: int, rows: Callable[[Batch], Bools], when: str) -> None:
    """Register the ratio metrics over the rows that ``rows`` picks, which are those ``of_class``."""

    @reduction(zero=Sums(), needs=(*NEEDS, *PASS_NEEDS), optional=PASS_OPTIONAL)
    def sums(batch: Batch) -> Sums:
        return row_sums(batch, policy_rows(batch).sums[[4, 3, 0]], rows(batch))

    @reduction(zero=Sum(), needs=(*NEEDS, *PASS_NEEDS), optional=PASS_OPTIONAL)
    def zeros(batch: Batch) -> Sum:
        return share_of(batch, 0, 6, rows=rows(batch))

    @reduction(zero=Histogram.zero(), needs=(*NEEDS, *PASS_NEEDS), optional=PASS_OPTIONAL)
    def sizes(batch: Batch) -> Histogram:
        tops = policy_rows(batch).tops
        if len(tops) <= of_class:
            return Histogram.zero()
        positive, negative = np.split(tops[of_class], 2)
        return Histogram.of_counts(np.concatenate([positive + negative, np.zeros_like(positive)]))

    metric(
        f"policy.{prefix}_ratio_mean",
        sums,
        mean,
        part=2,
        unit="1",
        source=_PPO,
        formula=f"mean_{letter} r",
        doc=f"Mean ratio {when}.",
    )
    metric(
        f"policy.{prefix}_ratio_abs_mean",
        sums,
        mean,
        part=0,
        unit="nat",
        source=_PPO,
        formula=f"mean_{letter} |x|",
        doc=f"Mean absolute log-ratio {when}.",
    )
    metric(
        f"policy.{prefix}_ratio_abs_p99", sizes, _quantile(0.99), unit="nat", source=_PPO,
        formula=f"quantile_{letter}(|x|, .99)",
        doc=f"Quantile .99 of the absolute log-ratio {when}, right within .4%.",
    )  # fmt: skip
    metric(
        f"policy.{prefix}_kl_k3",
        sums,
        mean,
        part=1,
        unit="nat",
        source=SCHULMAN,
        formula=f"mean_{letter} exp(x) - 1 - x",
        doc=f"policy.kl_old_k3 {when}.",
    )
    metric(
        f"policy.{prefix}_zero_frac", zeros, mean, unit="1", source=_COUNT,
        formula=f"share_{letter}[x = 0]",
        doc=f"Share of tokens whose log-ratio is exactly 0 {when}.",
    )  # fmt: skip


_declare("first", "F", _FIRST, first_rows, "in the first mini-batch, before any optimizer step on the generation batch")
_declare("later", "S", _LATER, later_rows, "in mini-batches before which an optimizer step was taken on the generation batch")
