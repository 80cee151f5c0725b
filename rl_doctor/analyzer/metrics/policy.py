"""Importance ratio and KL of the policy being trained to the policy of old_logprob."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from rl_doctor.analyzer import estimators
from rl_doctor.analyzer.derive import (
    FIRST_STEP,
    Bools,
    Floats,
    derived,
    first_rows,
    later_rows,
    selected,
    share,
    token_sum,
    tokens_of,
)
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Extremes, Histogram, Sum, Sums, mean
from rl_doctor.store.batch import Batch

NEEDS: Final = ("logprob", "old_logprob")
PASS_NEEDS: Final = ("epoch", "minibatch")
PASS_OPTIONAL: Final = (FIRST_STEP,)
SCHULMAN: Final = "J. Schulman, Approximating KL divergence, 2020"
KL_FORMULAS: Final = {"k1": "-x", "k2": "x^2 / 2", "k3": "exp(x) - 1 - x", "abs": "|x|"}

_PPO: Final = "PPO, arXiv:1707.06347, eq. 6"
_COUNT: Final = "counting over the tokens trained on"


@derived
def log_ratio(batch: Batch) -> Floats:
    """Logprob - old_logprob at the selected tokens, float64 ``[n_selected]``, clamped as the trainer clamps it."""
    difference = selected(batch, "logprob") - selected(batch, "old_logprob")
    clamp = batch.info.config.log_ratio_clamp
    return difference if clamp is None else np.clip(difference, -clamp, clamp)


@derived
def ratio(batch: Batch) -> Floats:
    """exp(log ratio) at the selected tokens."""
    return np.exp(log_ratio(batch))


@derived
def _size(batch: Batch) -> Floats:
    """Absolute log-ratio at the selected tokens."""
    return np.abs(log_ratio(batch))


@derived
def _k3(batch: Batch) -> Floats:
    return estimators.k3(log_ratio(batch))


@derived
def _zero(batch: Batch) -> Bools:
    zero: Bools = log_ratio(batch) == 0.0
    return zero


@reduction(zero=Sum(), needs=NEEDS)
def _ratio_sum(batch: Batch) -> Sum:
    return token_sum(batch, ratio(batch))


@reduction(zero=Extremes(), needs=NEEDS)
def _ratio_extremes(batch: Batch) -> Extremes:
    return Extremes.of(ratio(batch))


@reduction(zero=Histogram.zero(), needs=NEEDS)
def _histogram(batch: Batch) -> Histogram:
    return Histogram.of(log_ratio(batch))


@reduction(zero=Sum(), needs=NEEDS)
def _zeros(batch: Batch) -> Sum:
    return share(_zero(batch), log_ratio(batch))


@reduction(zero=Sums(), needs=NEEDS)
def _kl(batch: Batch) -> Sums:
    x = log_ratio(batch)
    return Sums(tuple(token_sum(batch, term) for term in (estimators.k1(x), estimators.k2(x), _k3(batch), _size(batch))))


def _quantile(q: float) -> Callable[[Histogram], float]:
    return lambda state: state.quantile(q)


def _ratio_quantile(q: float) -> Callable[[Histogram], float]:
    return lambda state: float(np.exp(state.quantile(q)))


metric(
    "policy.ratio_mean", _ratio_sum, mean, unit="1", source=_PPO,
    doc="Mean of exp(logprob - old_logprob) over the tokens trained on.",
)  # fmt: skip
metric("policy.ratio_min", _ratio_extremes, lambda s: s.min, unit="1", source=_PPO, doc="Smallest ratio trained on.")
metric("policy.ratio_max", _ratio_extremes, lambda s: s.max, unit="1", source=_PPO, doc="Largest ratio trained on.")
for _name, _q in (("p01", 0.01), ("p50", 0.5), ("p99", 0.99)):
    metric(
        f"policy.ratio_{_name}", _histogram, _ratio_quantile(_q), unit="1", source=_PPO,
        doc=f"Quantile {_q} of the ratio over the tokens trained on; its logarithm is right within .4%.",
    )  # fmt: skip
metric(
    "policy.ratio_zero_frac", _zeros, mean, unit="1", source=_COUNT,
    doc="Share of tokens whose log-ratio is exactly 0.",
)  # fmt: skip
for _index, (_name, _formula) in enumerate(KL_FORMULAS.items()):
    metric(
        f"policy.kl_old_{_name}", _kl, mean, part=_index, unit="nat", source=SCHULMAN,
        doc=f"Mean of {_formula} with x = logprob - old_logprob over the tokens trained on: estimates KL(old||new).",
    )  # fmt: skip


def _declare(prefix: str, rows: Callable[[Batch], Bools], when: str) -> None:
    """Register the ratio metrics over the rows that ``rows`` picks."""

    @reduction(zero=Sums(), needs=(*NEEDS, *PASS_NEEDS), optional=PASS_OPTIONAL)
    def sums(batch: Batch) -> Sums:
        chosen = rows(batch)
        return Sums(tuple(token_sum(batch, term(batch), chosen) for term in (_size, _k3, ratio)))

    @reduction(zero=Sum(), needs=(*NEEDS, *PASS_NEEDS), optional=PASS_OPTIONAL)
    def zeros(batch: Batch) -> Sum:
        chosen = tokens_of(batch, rows(batch))
        return share(_zero(batch)[chosen], log_ratio(batch)[chosen])

    @reduction(zero=Histogram.zero(), needs=(*NEEDS, *PASS_NEEDS), optional=PASS_OPTIONAL)
    def sizes(batch: Batch) -> Histogram:
        return Histogram.of(_size(batch)[tokens_of(batch, rows(batch))])

    metric(f"policy.{prefix}_ratio_mean", sums, mean, part=2, unit="1", source=_PPO, doc=f"Mean ratio {when}.")
    metric(f"policy.{prefix}_ratio_abs_mean", sums, mean, part=0, unit="nat", source=_PPO, doc=f"Mean absolute log-ratio {when}.")
    metric(
        f"policy.{prefix}_ratio_abs_p99", sizes, _quantile(0.99), unit="nat", source=_PPO,
        doc=f"Quantile .99 of the absolute log-ratio {when}, right within .4%.",
    )  # fmt: skip
    metric(f"policy.{prefix}_kl_k3", sums, mean, part=1, unit="nat", source=SCHULMAN, doc=f"policy.kl_old_k3 {when}.")
    metric(
        f"policy.{prefix}_zero_frac", zeros, mean, unit="1", source=_COUNT,
        doc=f"Share of tokens whose log-ratio is exactly 0 {when}.",
    )  # fmt: skip


_declare("first", first_rows, "in the first mini-batch, before any optimizer step on the generation batch")
_declare("later", later_rows, "in mini-batches before which an optimizer step was taken on the generation batch")
