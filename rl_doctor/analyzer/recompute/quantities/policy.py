"""Losses of the policy other than PPO's, errors of the value, and what they clip."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import per_sequence_counts, per_sequence_sums, selected, selected_splits
from rl_doctor.analyzer.formulas.entropy import sampled_entropy
from rl_doctor.analyzer.formulas.importance import probability_change
from rl_doctor.analyzer.formulas.kl import k3
from rl_doctor.analyzer.formulas.policy_loss import dual_binds, reinforce_loss, sapo_loss
from rl_doctor.analyzer.formulas.segments import spread
from rl_doctor.analyzer.formulas.value import clipped_value_errors, value_moved
from rl_doctor.analyzer.recompute.quantities.registry import (
    Arguments,
    Values,
    advantage_column,
    advantage_of,
    bounded,
    close,
    difference,
    estimated,
    flagged,
    number,
    pair,
    quantity,
    ratio_of,
    word,
)
from rl_doctor.analyzer.recompute.registry import EPSILON32, TOLERANCE
from rl_doctor.analyzer.recompute.stages import Flags
from rl_doctor.store.batch import Batch

_VALUE: Final = ("value", "old_value", "return")


def _bound(arguments: Arguments, name: str) -> float:
    return number(arguments, name) or 0.0


@quantity("clipped_ratio", pair, difference=difference)
def _clipped_ratio(batch: Batch, arguments: Arguments) -> Values:
    """The ratio kept within [1 - low, 1 + high]."""
    found = ratio_of(batch, arguments)
    low, high = 1.0 - _bound(arguments, "low"), 1.0 + _bound(arguments, "high")
    return Values(np.clip(found.values, low, high), np.minimum(found.sizes, 2.0 * high))


@quantity("reinforce", lambda _: ("logprob", "advantage"))
def _reinforce(batch: Batch, _: Arguments) -> Values:
    """-A logprob."""
    return Values.plain(reinforce_loss(selected(batch, "logprob"), selected(batch, "advantage")))


@quantity("sapo", lambda a: (*pair(a), *advantage_column(a)), difference=difference)
def _sapo(batch: Batch, arguments: Arguments) -> Values:
    """SAPO's loss per token: see ``sapo_loss``."""
    ratio, advantage = ratio_of(batch, arguments), advantage_of(batch, arguments)
    value = sapo_loss(ratio.values, advantage, _bound(arguments, "positive"), _bound(arguments, "negative"))
    return Values(value, np.abs(advantage) * 4.0 + np.abs(value))


@quantity("sapo_gate", pair, difference=difference)
def _sapo_gate(batch: Batch, arguments: Arguments) -> Values:
    """SAPO's gate 4 / tau sigmoid(tau (r - 1))."""
    ratio, tau = ratio_of(batch, arguments), _bound(arguments, "tau")
    value = -sapo_loss(ratio.values, np.ones(ratio.values.size), tau, tau)
    return Values(value, np.abs(value) + 1.0)


@quantity("sapo_soft_gate", lambda a: (*pair(a), *advantage_column(a)), difference=difference)
def _sapo_soft_gate(batch: Batch, arguments: Arguments) -> Values:
    """SAPO's gate, with the temperature that goes with the sign of the advantage."""
    ratio, advantage = ratio_of(batch, arguments), advantage_of(batch, arguments)
    sign = np.where(advantage > 0, 1.0, -1.0)
    value = -sign * sapo_loss(ratio.values, sign, _bound(arguments, "positive"), _bound(arguments, "negative"))
    return Values(value, np.abs(value) + 1.0)


@quantity("dual_binds", lambda a: (*pair(a), *advantage_column(a)), difference=difference)
def _dual_binds(batch: Batch, arguments: Arguments) -> Values:
    """Whether dual clip binds; never where ``dual`` is None."""
    ratio, advantage, dual = ratio_of(batch, arguments).values, advantage_of(batch, arguments), number(arguments, "dual")
    if dual is None:
        return Values.plain(np.zeros(ratio.size))
    return flagged(dual_binds(ratio, advantage, _bound(arguments, "low"), dual), close(ratio, dual) & (advantage < 0))


@quantity("opsm_kept", lambda _: ("logprob", "old_logprob", "advantage"), additive=False)
def _opsm_kept(batch: Batch, arguments: Arguments) -> Values:
    """Whether off-policy sequence masking keeps the token: A >= 0 or mean(old - new) of its sequence at most ``delta``."""
    behind, near = _behind(batch, _bound(arguments, "delta"))
    splits, advantage = selected_splits(batch), selected(batch, "advantage")
    return flagged((advantage >= 0) | ~spread(behind, splits), spread(near, splits) & (advantage < 0))


def _behind(batch: Batch, delta: float) -> tuple[Flags, Flags]:
    """Whether mean(old - new) of each sequence is above delta, and whether float32 cannot tell, ``[n_sequences]``."""
    x = selected(batch, "old_logprob") - selected(batch, "logprob")
    counts = np.maximum(per_sequence_counts(batch), 1)
    mean, size = (per_sequence_sums(batch, part) / counts for part in (x, np.abs(x)))
    return mean > delta, np.abs(mean - delta) < 4 * EPSILON32 * (size + delta)


@quantity("opsm_share", lambda _: ("logprob", "old_logprob", "advantage", "stored_length"), additive=False, rows=True)
def _opsm_share(batch: Batch, arguments: Arguments) -> Values:
    """All tokens with A < 0 of a sequence that off-policy sequence masking drops, the masked ones too, over those trained on."""
    behind, near = _behind(batch, _bound(arguments, "delta"))
    lengths = batch.lengths
    negative = np.add.reduceat(np.append(batch.columns["advantage"] < 0, False), batch.splits[:-1]) * (lengths > 0)
    share = negative / np.maximum(per_sequence_counts(batch), 1)
    return Values(np.where(behind, share, 0.0), share, near * share)


def _reference(arguments: Arguments) -> tuple[str, ...]:
    weighted = () if not arguments.get("weighted") else (word(arguments, "sampler", "old_logprob"),)
    return ("logprob", "ref_logprob", *weighted)


@quantity("reference_kl", _reference)
def _reference_kl(batch: Batch, arguments: Arguments) -> Values:
    """Estimate ``kind`` of the KL to the reference policy; ``input`` bounds the log-ratio, ``most`` the estimate.

    With ``weighted`` it is times exp(logprob - ``sampler``) before it is bounded. slime calls k3 within 10 nat low_var_kl.
    """
    x = selected(batch, "ref_logprob") - selected(batch, "logprob")
    limit, kind, most = number(arguments, "input"), word(arguments, "kind", "k1"), number(arguments, "most")
    if limit is not None:
        x = np.clip(x, -limit, limit)
    if kind == "low_var_kl":
        kind, most = "k3", 10.0
    found = estimated(x, kind)
    if arguments.get("weighted"):
        ratio = ratio_of(batch, {"first": "logprob", "second": word(arguments, "sampler", "old_logprob")})
        with np.errstate(over="ignore", invalid="ignore"):
            value = found.values * ratio.values
            found = Values(value, found.sizes * ratio.values + np.abs(found.values) * ratio.sizes)
    return found if most is None else bounded(found, most)


@quantity("sampled_entropy", pair, difference=difference)
def _sampled_entropy(batch: Batch, arguments: Arguments) -> Values:
    """-exp(logprob - second) logprob: the entropy as an average over samples of another policy."""
    x = difference(batch, arguments)
    value = sampled_entropy(selected(batch, word(arguments, "first", "logprob")), x)
    return Values(value, np.abs(value) * (1.0 + EPSILON32 / TOLERANCE * np.abs(x)))


@quantity("probability_change", pair)
def _probability_change(batch: Batch, arguments: Arguments) -> Values:
    """exp(abs(first - second))."""
    first, second = (selected(batch, name) for name in pair(arguments))
    value = probability_change(first, second)
    return Values(value, value * (1.0 + EPSILON32 / TOLERANCE * np.abs(first - second)))


@quantity("jensen_shannon", pair)
def _jensen_shannon(batch: Batch, arguments: Arguments) -> Values:
    """Half of k3(p - m) plus half of k3(q - m), m the logarithm of the mean of exp(p) and exp(q)."""
    p, q = (selected(batch, name) for name in pair(arguments))
    mixture = np.logaddexp(p, q) - math.log(2.0)
    value = 0.5 * (k3(p - mixture) + k3(q - mixture))
    return Values(value, value + EPSILON32 / TOLERANCE * (2.0 + np.abs(mixture)))


@quantity("value_error", lambda _: _VALUE)
def _value_error(batch: Batch, arguments: Arguments) -> Values:
    """The larger of the squared errors of the value and of the value within ``clip`` of the old one; None or 0 does not clip."""
    value, old, returns = (selected(batch, name) for name in _VALUE)
    plain, clipped = clipped_value_errors(value, old, returns, number(arguments, "clip") or np.inf)
    error = np.maximum(plain, clipped)
    scale = np.abs(value) + np.abs(old) + np.abs(returns)
    return Values(error, error + scale * np.sqrt(error))


@quantity("value_clipped", lambda _: _VALUE)
def _value_clipped(batch: Batch, arguments: Arguments) -> Values:
    """Whether the error of the clipped value is the larger one."""
    value, old, returns = (selected(batch, name) for name in _VALUE)
    plain, clipped = clipped_value_errors(value, old, returns, number(arguments, "clip") or np.inf)
    near = (np.abs(clipped - plain) < 8 * EPSILON32 * (plain + clipped)) & (clipped != plain)
    return flagged(clipped > plain, near | (np.abs(np.abs(value - old) - _bound(arguments, "clip")) < 4 * EPSILON32))


@quantity("value_moved", lambda _: ("value", "old_value"))
def _value_moved(batch: Batch, arguments: Arguments) -> Values:
    """Whether the value is farther than ``clip`` from the old one."""
    value, old, clip = selected(batch, "value"), selected(batch, "old_value"), _bound(arguments, "clip")
    near = np.abs(np.abs(value - old) - clip) < 4 * EPSILON32 * (1.0 + np.abs(value) + np.abs(old))
    return flagged(value_moved(value, old, clip), near)
