"""TRL's ``DPOTrainer`` since 0.29: what it logs of pairs, from the log-probabilities of their responses.

Each key has one entry per micro-batch, the mean over the pairs of all ranks; a row of the log is the mean of its entries.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import Floats, per_sequence_sums, selected
from rl_doctor.analyzer.dialects.registry import bounds_of
from rl_doctor.analyzer.formulas.preference import (
    dpo_loss,
    hinge_loss,
    implicit_reward,
    ipo_loss,
    prefers_chosen,
    robust_dpo_loss,
)
from rl_doctor.analyzer.recompute.native import Native, contradictions
from rl_doctor.analyzer.recompute.registry import EPSILON32, TOLERANCE, UNKNOWN, Entries, Logged, dialect, entry
from rl_doctor.analyzer.recompute.trl.rows import value
from rl_doctor.analyzer.registry import Reduction, sequence_value
from rl_doctor.frozen import frozen
from rl_doctor.schema import RunInfo
from rl_doctor.store.batch import Batch
from rl_doctor.store.codes import codes

_FIRST: Final = (0, 29)
_SUM: Final = value("logprob_sum")
_REFERENCE: Final = value("ref_logprob_sum")
_TOKENS: Final = value("tokens")
_NEEDS: Final = ("pair", "chosen", _SUM, _REFERENCE, _TOKENS)
_PLACE: Final = ("microbatch",)
_NORMALISED: Final = frozenset({"ipo", "sigmoid_norm"})


@sequence_value("trl_logprob_sum", needs=("logprob", "response_mask"))
def _logprob_sum(batch: Batch) -> Floats:
    return per_sequence_sums(batch, selected(batch, "logprob"))


@sequence_value("trl_ref_logprob_sum", needs=("ref_logprob", "response_mask"))
def _reference_sum(batch: Batch) -> Floats:
    return per_sequence_sums(batch, selected(batch, "ref_logprob"))


@frozen
class Pairs:
    """Pairs of a step: float64 ``[pairs]`` of the chosen and the rejected response; ``part`` numbers their micro-batch.

    ``size`` is what float32 sums of the log-probabilities are exact to, in units of the tolerance.
    """

    chosen: Floats
    rejected: Floats
    ref_chosen: Floats
    ref_rejected: Floats
    chosen_tokens: Floats
    rejected_tokens: Floats
    size: Floats
    part: NDArray[np.int64]


def pairs_of(batch: Batch) -> Pairs | None:
    """The pairs of a batch of whole steps; None where one lacks a side or has two of it."""
    preferred = batch.columns["chosen"].astype(np.bool_)
    number = codes(batch.columns["pair"])
    order = np.lexsort((~preferred, number))
    if len(order) % 2 or (number[order[::2]] != number[order[1::2]]).any() or len(np.unique(number)) * 2 != len(order):
        return None
    first, second = order[::2], order[1::2]
    if not preferred[first].all() or preferred[second].any():
        return None
    summed, reference, tokens = (batch.columns[name].astype(np.float64) for name in (_SUM, _REFERENCE, _TOKENS))
    size = EPSILON32 / TOLERANCE * sum(np.abs(part[side]) for part in (summed, reference) for side in (first, second))
    place = batch.get("microbatch")
    part = np.zeros(len(first), np.int64) if place is None else codes(place)[first]
    return Pairs(
        summed[first], summed[second], reference[first], reference[second], tokens[first], tokens[second],
        np.asarray(size), part,
    )  # fmt: skip


Value = Callable[[Pairs], tuple[Floats, Floats]]
"""Pairs -> value of each, and the size of its summands."""


def _plain(values: Floats, size: Floats) -> tuple[Floats, Floats]:
    return values, np.abs(values) + size


@frozen
class Settings:
    """What of ``DPOConfig`` the keys depend on; None where it is not known.

    ``kind`` is the loss type, None for several, and where the loss is not a plain mean over the pairs; ``tail`` whether the
    tail of the longer response counts less.
    """

    beta: float | None
    kind: str | None
    smoothing: float | None
    weight: float | None
    tail: bool

    @classmethod
    def of(cls, info: RunInfo) -> Settings:
        """Read the settings."""
        return cls.read(info, Native(info.config.native))

    @classmethod
    def read(cls, info: RunInfo, native: Native) -> Settings:
        """Read the settings from a configuration, which notes what does not fit."""
        kinds = native.words("loss_type") or ()
        plain = "use_weighting" not in native or native.flag("use_weighting") is False
        one = len(kinds) == 1 and plain and native.word("f_divergence_type") == "reverse_kl"
        weights = native.numbers("loss_weights", 1) if one and "loss_weights" in native else (1.0,)
        return cls(
            beta=native.number("beta", info.config.kl_coef),
            kind=kinds[0] if one else None,
            smoothing=native.number("label_smoothing", 0.0),
            weight=weights[0] if weights else None,
            tail="ld_alpha" in native,
        )


def _doubts(info: RunInfo) -> Iterator[str]:
    """What of the configuration does not fit, or says two things."""
    native = Native(info.config.native)
    Settings.read(info, native)
    yield from native.told()
    yield from contradictions(native, info.config, ((("beta",), "kl_coef"),))


def _applies(info: RunInfo) -> bool:
    known = (info.trainer or "").lower() == "trl" and (info.algorithm or "").lower() == "dpo"
    return known and bounds_of(info.trainer_version).at_least(_FIRST)


@dialect("TRL DPO", _applies, source="trl 0.29 to 1.16, trainer/dpo_trainer.py", settings=Settings.of, doubts=_doubts)
def dpo(info: RunInfo, _columns: Collection[str], names: Collection[str]) -> tuple[Logged, ...]:
    """What ``DPOTrainer`` logs."""
    settings = Settings.of(info)
    beta = settings.beta
    if info.partial or settings.tail:
        return ()
    found = dict(_logprobs())
    if beta is not None:
        found |= _rewards(beta)
        loss = _loss(beta, settings)
        if loss is not None and "aux_loss" not in names:
            found["loss"] = loss
    return tuple(_logged(name, of_pair) for name, of_pair in found.items())


def _logprobs() -> Iterator[tuple[str, Value]]:
    yield "logps/chosen", lambda pairs: _plain(pairs.chosen, 0.0 * pairs.size)
    yield "logps/rejected", lambda pairs: _plain(pairs.rejected, 0.0 * pairs.size)


def _rewards(beta: float) -> Mapping[str, Value]:
    def chosen(pairs: Pairs) -> Floats:
        return implicit_reward(pairs.chosen, pairs.ref_chosen, beta)

    def rejected(pairs: Pairs) -> Floats:
        return implicit_reward(pairs.rejected, pairs.ref_rejected, beta)

    def prefers(pairs: Pairs) -> tuple[Floats, Floats]:
        margin = np.abs(chosen(pairs) - rejected(pairs))
        near = margin <= TOLERANCE * abs(beta) * pairs.size
        return prefers_chosen(chosen(pairs), rejected(pairs)).astype(np.float64), 1.0 + near / TOLERANCE

    return {
        "rewards/chosen": lambda pairs: _plain(chosen(pairs), abs(beta) * pairs.size),
        "rewards/rejected": lambda pairs: _plain(rejected(pairs), abs(beta) * pairs.size),
        "rewards/margins": lambda pairs: _plain(chosen(pairs) - rejected(pairs), abs(beta) * pairs.size),
        "rewards/accuracies": prefers,
    }


def _loss(beta: float, settings: Settings) -> Value | None:
    """The loss of one loss type; None where it is not one of those that are recomputed."""
    kind, smoothing, weight = settings.kind, settings.smoothing, settings.weight
    if kind is None or smoothing is None or weight is None or (kind == "ipo" and not beta):
        return None
    losses: Mapping[str, Callable[[Floats], Floats]] = {
        "sigmoid": lambda logits: dpo_loss(logits, beta),
        "sigmoid_norm": lambda logits: dpo_loss(logits, beta),
        "robust": lambda logits: robust_dpo_loss(logits, beta, smoothing),
        "hinge": lambda logits: hinge_loss(logits, beta),
        "ipo": lambda logits: ipo_loss(logits, beta),
    }
    if kind not in losses:
        return None

    def of_pair(pairs: Pairs) -> tuple[Floats, Floats]:
        chosen, rejected = pairs.chosen - pairs.ref_chosen, pairs.rejected - pairs.ref_rejected
        size = abs(beta) * pairs.size
        if kind in _NORMALISED:
            chosen, rejected = chosen / np.maximum(pairs.chosen_tokens, 1), rejected / np.maximum(pairs.rejected_tokens, 1)
        if kind == "ipo":
            size = 2.0 * np.abs(chosen - rejected - 0.5 / beta) * pairs.size
        found = weight * losses[kind](chosen - rejected)
        return _plain(found, abs(weight) * size)

    return of_pair


_METRICS: Final[Mapping[str, tuple[str, str]]] = {
    "loss": ("pref.loss", "nat"),
    "rewards/chosen": ("pref.chosen_reward", "reward"),
    "rewards/rejected": ("pref.rejected_reward", "reward"),
    "rewards/margins": ("pref.margin", "reward"),
    "rewards/accuracies": ("pref.accuracy", "1"),
    "logps/chosen": ("pref.chosen_logprob", "nat"),
    "logps/rejected": ("pref.rejected_logprob", "nat"),
}


def _logged(name: str, of_pair: Value) -> Logged:
    def fold(batch: Batch) -> Entries:
        pairs = pairs_of(batch)
        if pairs is None:
            return UNKNOWN
        values, sizes = of_pair(pairs)
        total = Entries()
        for number in range(int(pairs.part.max()) + 1 if len(pairs.part) else 0):
            own = pairs.part == number
            total += entry(float(values[own].mean()), TOLERANCE * float(sizes[own].mean()))
        return total

    metric, unit = _METRICS[name]
    return Logged(name, metric, unit, Reduction(fold, Entries(), _NEEDS, _PLACE, "rollout"), lambda state: state)
