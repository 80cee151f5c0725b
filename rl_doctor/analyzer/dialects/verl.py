"""verl: what each logged key means, from version 0.8 on.

Each step logs itself. Ratios, clipped shares and KL to the old policy are masked means per micro-batch, averaged without
weights over micro-batches and ranks and then over mini-batches. Losses, and with them the KL to the reference, are means over
whole mini-batches. Statistics of the batch are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import Floats, derived, per_sequence_counts, per_sequence_sums, selected
from rl_doctor.analyzer.dialects.hypotheses import Part, other_estimators, other_means, parted
from rl_doctor.analyzer.dialects.registry import TOLERANCE, Entries, Logged, at_least, dialect, entry
from rl_doctor.analyzer.dialects.stages import (
    MICROBATCH_OF_RANK,
    MINIBATCH,
    Shares,
    clip_flags,
    k3_size,
    means,
    means_of_means,
    sums_by,
    token_shares,
)
from rl_doctor.analyzer.estimators import k3
from rl_doctor.analyzer.registry import Reduction
from rl_doctor.schema import RunInfo
from rl_doctor.store.batch import Batch

_RATIO: Final = ("logprob", "old_logprob")
_CLAMP: Final = 20.0
_KL_CLAMP: Final = 10.0
_GSPO_CLAMP: Final = 10.0
_FIRST: Final = (0, 8)
_STATISTICS: Final[tuple[tuple[str, Callable[[Floats], float]], ...]] = (("mean", np.mean), ("max", np.max), ("min", np.min))


def _applies(info: RunInfo) -> bool:
    return (info.trainer or "").lower() == "verl" and at_least(info.trainer_version, *_FIRST)


@dialect("verl", _applies, source="verl 0.9.1, workers/utils/losses.py, trainer/ppo/core_algos.py, trainer/ppo/metric_utils.py")
def verl(info: RunInfo, columns: Collection[str], names: Collection[str]) -> tuple[Logged, ...]:
    """What the actor and the driver log, for the vanilla policy loss and GSPO."""
    if info.partial:
        return ()
    config = info.config
    found = list(_batch_keys())
    if _loss_mode(info) in {"vanilla", "gspo"}:
        others = (*other_means(_old_minus_new), *other_estimators(_difference, "k1", "k1 reversed"))
        found.append(_micro("actor/ppo_kl", "policy.kl_old_k1", "nat", _old_minus_new, _RATIO, others))
        if config.clip_low is not None and config.clip_high is not None:
            shares = derived(partial(_clipped, low=1.0 - config.clip_low, high=1.0 + config.clip_high))
            others = other_means(shares, additive=_loss_mode(info) != "gspo")
            found.append(_micro("actor/pg_clipfrac", "policy.clip_frac", "1", shares, (*_RATIO, "advantage"), others))
    if config.loss_agg == "token-mean" and config.kl_estimator == "k3" and "loss_mask" not in columns:
        needs = ("logprob", "ref_logprob")
        others = (*other_means(_reference_kl), *other_estimators(_reference_difference, "k3"))
        hypotheses = parted(MINIBATCH, partial(means, None), needs, others)
        kl = sums_by(MINIBATCH, _reference_kl, needs=needs)
        found.append(Logged("actor/kl_loss", "ref.kl_k3", "nat", kl, means(None), "step", hypotheses))
    return tuple(item for item in found if item.name in names)


def _micro(
    name: str, metric: str, unit: str, shares: Callable[[Batch], Shares], needs: tuple[str, ...], others: tuple[Part, ...]
) -> Logged:
    hypotheses = parted(MICROBATCH_OF_RANK, lambda terms: partial(means_of_means, terms=terms), needs, others)
    reduction = sums_by(MICROBATCH_OF_RANK, shares, needs=needs)
    return Logged(name, metric, unit, reduction, means_of_means, "step", hypotheses)


def _loss_mode(info: RunInfo) -> str:
    """The policy loss: as configured; else GSPO's where that is the algorithm."""
    algorithm = (info.algorithm or "").lower()
    return str((info.config.native or {}).get("loss_mode") or ("gspo" if algorithm == "gspo" else "vanilla"))


def _gspo(batch: Batch) -> bool:
    return _loss_mode(batch.info) == "gspo"


@derived
def _difference(batch: Batch) -> Floats:
    """Logprob minus old logprob at the selected tokens; the vanilla loss clamps it, GSPO does not."""
    values = selected(batch, "logprob") - selected(batch, "old_logprob")
    return values if _gspo(batch) else np.clip(values, -_CLAMP, _CLAMP)


@derived
def _old_minus_new(batch: Batch) -> Shares:
    return token_shares(batch, -_difference(batch))


def _clipped(batch: Batch, low: float, high: float) -> Shares:
    log_ratio = _difference(batch)
    if _gspo(batch):
        counts = per_sequence_counts(batch)
        mean = per_sequence_sums(batch, log_ratio) / np.maximum(counts, 1)
        log_ratio = np.minimum(np.repeat(mean, counts), _GSPO_CLAMP)
    below, above, near = clip_flags(np.exp(log_ratio), selected(batch, "advantage"), low, high)
    values = (below | above).astype(np.float64)
    return token_shares(batch, values, values, near)


@derived
def _reference_difference(batch: Batch) -> Floats:
    return np.asarray(np.clip(selected(batch, "ref_logprob") - selected(batch, "logprob"), -_CLAMP, _CLAMP))


@derived
def _reference_kl(batch: Batch) -> Shares:
    x = _reference_difference(batch)
    value = np.clip(k3(x), -_KL_CLAMP, _KL_CLAMP)
    return token_shares(batch, value, k3_size(x, value))


def _batch_keys() -> Iterator[Logged]:
    """Exact statistics over the sequences of a step, those without a token left out of scores and rewards."""
    for statistic, function in _STATISTICS:
        for name, column, metric in (("critic/score", "score", "reward.score_"), ("critic/rewards", "reward", "reward.")):
            values = partial(_present, column=column, function=function)
            yield _once(f"{name}/{statistic}", f"{metric}{statistic}", "reward", values, (column, "response_length"))
        lengths = partial(_all, column="response_length", function=function)
        yield _once(f"response_length/{statistic}", f"length.{statistic}", "tokens", lengths, ("response_length",))


def _once(name: str, metric: str, unit: str, function: Callable[[Batch], Entries], needs: tuple[str, ...]) -> Logged:
    return Logged(name, metric, unit, Reduction(function, Entries(), needs, (), "rollout"), lambda state: state, "step")


def _present(batch: Batch, column: str, function: Callable[[Floats], float]) -> Entries:
    return _statistic(batch.columns[column][batch.columns["response_length"] > 0], function)


def _all(batch: Batch, column: str, function: Callable[[Floats], float]) -> Entries:
    return _statistic(batch.columns[column], function)


def _statistic(values: NDArray[Any], function: Callable[[Floats], float]) -> Entries:
    if not values.size:
        return Entries()
    numbers = values.astype(np.float64)
    return entry(float(function(numbers)), TOLERANCE * float(np.abs(numbers).mean()))
