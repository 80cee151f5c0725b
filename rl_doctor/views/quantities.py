"""Quantities of single tokens, by the analyzer's formulas: what a response is coloured by and rows are ranked by."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import known, per_sequence_counts, per_sequence_sums, positions, selection, spread
from rl_doctor.analyzer.formulas import kl, policy_loss
from rl_doctor.analyzer.metrics.mismatch import IMPOSSIBLE
from rl_doctor.schema import RunConfig
from rl_doctor.store.batch import Batch

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Scale = Literal["diverging", "sequential", "flags"]

IN_RANGE, CUT_LOW, CUT_HIGH, CUT_DUAL = 0.0, 1.0, 2.0, 3.0
"""Values of the quantity ``clipped``."""
NOT_TRAINED, TRAINED, ONLY_NORMALISED, BEYOND = 0.0, 1.0, 2.0, 3.0
"""Values of the quantity ``masked``: the third is in the loss mask alone, the last one trained on beyond the response's end."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number of each token.

    Attributes:
        name: of the quantity.
        metric: canonical metric that stands for it in links.
        needs: columns and ``config.`` fields that it needs; ``a|b`` is one of several.
        unit: of the values.
        scale: diverging around 0 (a ratio around 1), sequential from the smallest value, or flags.
        values: float64 ``[n_tokens]`` of a batch; NaN where unknown.
    """

    name: str
    metric: str
    needs: tuple[str, ...]
    unit: str
    scale: Scale
    values: Callable[[Batch], Floats]

    def lacks(self, columns: Collection[str], config: RunConfig) -> tuple[str, ...]:
        """What a run does not have of what the quantity needs."""
        return tuple(need for need in self.needs if not any(_has(one, columns, config) for one in need.split("|")))

    def columns(self) -> tuple[str, ...]:
        """Columns that reading it takes, where a run has them."""
        named = [one for need in self.needs for one in need.split("|") if not one.startswith("config.")]
        more = ("loss_mask", "response_length") if self.name == "masked" else ()
        return tuple(dict.fromkeys([*named, "response_mask", "is_padding", *more]))

    def distance(self, values: Floats) -> Floats:
        """How far values ``[n]`` are from neutral: abs of the logarithm of a ratio, abs of the others; flags as 0 or 1."""
        if self.scale == "flags":
            return np.where(np.isnan(values), np.nan, (values != self.neutral).astype(np.float64))
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.abs(np.log(values) if self.name == "ratio" else values)

    @property
    def neutral(self) -> float:
        """The value of a token that nothing happened to."""
        return {"ratio": 1.0, "masked": TRAINED}.get(self.name, 0.0)


def _has(name: str, columns: Collection[str], config: RunConfig) -> bool:
    if name.startswith("config."):
        return getattr(config, name.removeprefix("config.")) is not None
    return name in columns


def _wide(batch: Batch, name: str) -> Floats:
    return batch.columns[name].astype(np.float64)


def log_ratio(batch: Batch) -> Floats:
    """Logprob - old_logprob at each token, clamped where the trainer clamps it, float64 ``[n_tokens]``, nat."""
    x = _wide(batch, "logprob") - _wide(batch, "old_logprob")
    clamp = batch.info.config.log_ratio_clamp
    return x if clamp is None else np.clip(x, -clamp, clamp)


def ratio(batch: Batch) -> Floats:
    """exp(logprob - old_logprob) at each token, else the recorded ratio, float64 ``[n_tokens]``."""
    if batch.get("logprob") is None or batch.get("old_logprob") is None:
        return _wide(batch, "ratio")
    with np.errstate(over="ignore"):
        return np.exp(log_ratio(batch))


def mismatch(batch: Batch) -> Floats:
    """The trainer's logprob (old_logprob, else logprob) - rollout_logprob, ``[n_tokens]``; NaN where one is impossible."""
    of_trainer = _wide(batch, "logprob" if batch.get("old_logprob") is None else "old_logprob")
    of_engine = _wide(batch, "rollout_logprob")
    possible = (of_trainer < IMPOSSIBLE) & (of_engine < IMPOSSIBLE)
    with np.errstate(invalid="ignore"):
        return np.where(possible, of_trainer - of_engine, np.nan)


def reference_kl(batch: Batch) -> Floats:
    """The KL estimate to the reference at each token, by the run's own estimator, else k3; the recorded one without a reference.

    Returns:
        float64 ``[n_tokens]``, nat.
    """
    if batch.get("ref_logprob") is None or batch.get("logprob") is None:
        return _wide(batch, "kl")
    config = batch.info.config
    x = _wide(batch, "ref_logprob") - _wide(batch, "logprob")
    estimator = {"k1": kl.k1, "k2": kl.k2, "abs": kl.absolute}.get(config.kl_estimator or "")
    if estimator is not None:
        return estimator(x)
    k3 = kl.k3(x if config.kl_input_clamp is None else np.clip(x, -config.kl_input_clamp, config.kl_input_clamp))
    return k3 if config.kl_output_clamp is None else kl.bounded(k3, config.kl_output_clamp)


def contribution(batch: Batch) -> Floats:
    """Advantage times ratio at each token, float64 ``[n_tokens]``: what the token adds to the gain before anything is clipped."""
    with np.errstate(over="ignore", invalid="ignore"):
        return _wide(batch, "advantage") * ratio(batch)


def clipped(batch: Batch) -> Floats:
    """Which bound of the run's clip range removes the token's gradient, float64 ``[n_tokens]``; NaN where that is unknown."""
    config, r, advantage = batch.info.config, ratio(batch), _wide(batch, "advantage")
    found = np.full(batch.n_tokens, IN_RANGE)
    if config.clip_low is None or config.clip_high is None:
        return np.full(batch.n_tokens, np.nan)
    found[policy_loss.binds_below(r, advantage, config.clip_low)] = CUT_LOW
    found[policy_loss.binds_above(r, advantage, config.clip_high)] = CUT_HIGH
    if config.dual_clip is not None:
        found[policy_loss.dual_binds(r, advantage, config.clip_low, config.dual_clip)] = CUT_DUAL
    found[np.isnan(r) | np.isnan(advantage)] = np.nan
    return found


def masked(batch: Batch) -> Floats:
    """Whether the token is trained on, float64 ``[n_tokens]``."""
    found = np.where(selection(batch), TRAINED, NOT_TRAINED)
    normaliser = batch.get("loss_mask")
    if normaliser is not None:
        found[(found == NOT_TRAINED) & normaliser.astype(np.bool_)] = ONLY_NORMALISED
    length = batch.get("response_length")
    if length is not None:
        ends = spread(batch, np.where(known(length), length, np.iinfo(np.int32).max))
        found[(found == TRAINED) & (positions(batch) >= ends)] = BEYOND
    return found


def _old_kl(batch: Batch) -> Floats:
    return kl.k3(log_ratio(batch))


def _column(name: str) -> Callable[[Batch], Floats]:
    return lambda batch: _wide(batch, name)


_PAIR: Final = ("logprob", "old_logprob")
QUANTITIES: Final[Mapping[str, Quantity]] = MappingProxyType({
    one.name: one
    for one in (
        Quantity("ratio", "policy.ratio_mean", ("logprob|ratio", "old_logprob|ratio"), "1", "diverging", ratio),
        Quantity("mismatch", "mismatch.abs", ("rollout_logprob", "old_logprob|logprob"), "nat", "diverging", mismatch),
        Quantity("kl", "ref.kl", ("ref_logprob|kl", "logprob|kl"), "nat", "diverging", reference_kl),
        Quantity("kl_old", "policy.kl_old_k3", _PAIR, "nat", "sequential", _old_kl),
        Quantity("entropy", "policy.entropy", ("entropy",), "nat", "sequential", _column("entropy")),
        Quantity(
            "contribution", "policy.loss_pg", ("advantage", "logprob|ratio", "old_logprob|ratio"), "1", "diverging", contribution
        ),
        Quantity(
            "clipped", "policy.clip_frac",
            ("advantage", "logprob|ratio", "old_logprob|ratio", "config.clip_low", "config.clip_high"), "", "flags", clipped,
        ),
        Quantity("masked", "mask.wrong_rows", ("response_mask|loss_mask",), "", "flags", masked),
        Quantity("logprob", "mismatch.trainer_mean", ("logprob|old_logprob",), "nat", "sequential", lambda batch: _wide(
            batch, "old_logprob" if batch.get("logprob") is None else "logprob"
        )),
    )
})  # fmt: skip
"""All quantities by name, in the order in which they are offered."""

_FAMILIES: Final = (
    ("policy.clip", "clipped"), ("policy.outside", "ratio"), ("policy.kl_old", "kl_old"), ("policy.entropy", "entropy"),
    ("policy.loss", "contribution"), ("policy.", "ratio"), ("inner.", "ratio"),
    ("mismatch.first", "ratio"), ("mismatch.", "mismatch"), ("stale.", "mismatch"), ("ref.", "kl"),
    ("entropy", "entropy"), ("mask.", "masked"),
    ("adv", "contribution"),
)  # fmt: skip


def quantity_of(metric: str | None) -> Quantity | None:
    """The quantity that a metric is made of; None where it is made of none."""
    if metric is None:
        return None
    exact = next((one for one in QUANTITIES.values() if one.metric == metric), None)
    if exact is not None:
        return exact
    name = next((name for prefix, name in _FAMILIES if metric.startswith(prefix)), None)
    return None if name is None else QUANTITIES[name]


def row_means(quantity: Quantity, batch: Batch) -> Floats:
    """Mean distance from neutral over the trained tokens of each row at which it is known, ``[n_sequences]``; NaN without any.

    Of ``entropy`` and ``logprob`` it is the mean itself, of ``masked`` how many tokens the mask is off the response's length, or
    off the stored tokens where that is not known.
    """
    if quantity.name == "masked":
        trained, length = per_sequence_counts(batch), batch.get("response_length")
        stored = batch.lengths
        return np.abs(trained - (stored if length is None else np.where(known(length), length, stored))).astype(np.float64)
    chosen = selection(batch)
    values = quantity.values(batch)[chosen]
    values = values if quantity.name in {"entropy", "logprob"} else quantity.distance(values)
    fine = np.isfinite(values)
    sums = per_sequence_sums(batch, np.where(fine, values, 0.0))
    counts = per_sequence_sums(batch, fine)
    with np.errstate(invalid="ignore"):
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
