"""Further quantities that recipes name: losses, trust regions, and what is the same at all tokens of a sequence."""

from __future__ import annotations

import numpy as np

from rl_doctor.analyzer.derive import Floats, per_sequence_counts, per_sequence_sums, selected, selected_splits
from rl_doctor.analyzer.formulas.divergence_loss import within_total_variation
from rl_doctor.analyzer.formulas.policy_loss import cispo_capped_loss, cispo_loss
from rl_doctor.analyzer.formulas.segments import segment_extremes
from rl_doctor.analyzer.recompute.quantities.registry import (
    Arguments,
    Values,
    evaluated,
    flagged,
    inner,
    log_ratio,
    number,
    pair,
    quantity,
    ratio_of,
    word,
)
from rl_doctor.analyzer.recompute.registry import EPSILON32
from rl_doctor.analyzer.recompute.stages import Flags
from rl_doctor.store.batch import Batch


def at_tokens(batch: Batch, rows: Floats) -> Floats:
    """A value per sequence ``[n_sequences]`` at each of its selected tokens, ``[n_selected]``."""
    return np.repeat(rows, per_sequence_counts(batch))


@quantity("one", lambda _: ())
def _one(batch: Batch, _: Arguments) -> Values:
    """1 at every token, so that sums count them."""
    return Values.plain(np.ones(int(per_sequence_counts(batch).sum())))


@quantity("abs", lambda a: (word(a, "name"),))
def _abs(batch: Batch, arguments: Arguments) -> Values:
    """The absolute value of a token column."""
    return Values.plain(np.abs(selected(batch, word(arguments, "name"))))


@quantity("positive", lambda a: (word(a, "name"),))
def _positive(batch: Batch, arguments: Arguments) -> Values:
    """Whether ``factor`` times a token column is above 0."""
    flags = (number(arguments, "factor") or 1.0) * selected(batch, word(arguments, "name")) > 0
    return flagged(flags, np.zeros(flags.size, np.bool_))


@quantity("of_row", lambda a: (word(a, "name"),))
def _of_row(batch: Batch, arguments: Arguments) -> Values:
    """At each token whether a column of its sequence has the value ``value``."""
    equal = np.asarray(batch.columns[word(arguments, "name")] == arguments["value"], np.bool_)
    flags = np.repeat(equal, per_sequence_counts(batch))
    return flagged(flags, np.zeros(flags.size, np.bool_))


@quantity("times", lambda _: ())
def _times(batch: Batch, arguments: Arguments) -> Values:
    """``weight`` times the quantity ``of``; with ``over`` divided by that number."""
    found = evaluated(batch, inner(arguments, "of"))
    weight, over = number(arguments, "weight"), number(arguments, "over")
    scale = (1.0 if weight is None else weight) / (1.0 if over is None else over)
    near: Floats | None = None if found.near is None else np.asarray(found.near * abs(scale), np.float64)
    return Values(scale * found.values, abs(scale) * found.sizes, near)


@quantity("sum", lambda _: ())
def _sum(batch: Batch, arguments: Arguments) -> Values:
    """The quantity ``first`` plus ``weight`` times the quantity ``second``."""
    first, second = evaluated(batch, inner(arguments, "first")), evaluated(batch, inner(arguments, "second"))
    weight = number(arguments, "weight")
    scale = 1.0 if weight is None else weight
    return Values(first.values + scale * second.values, first.sizes + abs(scale) * second.sizes, first.near)


@quantity("cispo", lambda a: (*pair(a), "advantage", "logprob"))
def _cispo(batch: Batch, arguments: Arguments) -> Values:
    """CISPO's loss, with the ratio within [1 - ``low``, 1 + ``high``], or at most ``cap``."""
    ratio, advantage, logprob = ratio_of(batch, arguments), selected(batch, "advantage"), selected(batch, "logprob")
    cap = number(arguments, "cap")
    if cap is None:
        value = cispo_loss(ratio.values, advantage, logprob, number(arguments, "low") or 0.0, number(arguments, "high") or 0.0)
    else:
        value = cispo_capped_loss(ratio.values, advantage, logprob, cap)
    return Values(value, np.abs(value) * relative(ratio))


def relative(values: Values) -> Floats:
    """How much larger the size of summands is than the values themselves, at least 1, ``[n]``."""
    with np.errstate(divide="ignore", invalid="ignore"):
        grown = values.sizes / np.abs(values.values)
    return np.where(np.isfinite(grown), np.maximum(grown, 1.0), 1.0)


@quantity("row_largest", lambda _: (), additive=False)
def _row_largest(batch: Batch, arguments: Arguments) -> Values:
    """At each token the largest value of the quantity ``of`` in its sequence."""
    found = evaluated(batch, inner(arguments, "of"))
    splits = selected_splits(batch)
    return Values(at_tokens(batch, segment_extremes(found.values, splits)[1]), found.sizes)


@quantity("row_average", lambda _: (), additive=False)
def _row_average(batch: Batch, arguments: Arguments) -> Values:
    """At each token the mean of the quantity ``of`` over its sequence."""
    found = evaluated(batch, inner(arguments, "of"))
    counts = np.maximum(per_sequence_counts(batch), 1)
    mean, size = (at_tokens(batch, per_sequence_sums(batch, part) / counts) for part in (found.values, found.sizes))
    return Values(mean, size)


@quantity("row_total", lambda _: (), additive=False)
def _row_total(batch: Batch, arguments: Arguments) -> Values:
    """At each token the sum of the quantity ``of`` over its sequence."""
    found = evaluated(batch, inner(arguments, "of"))
    total, size = (at_tokens(batch, per_sequence_sums(batch, part)) for part in (found.values, found.sizes))
    return Values(total, size)


@quantity("part", lambda _: (), additive=False)
def _part(batch: Batch, arguments: Arguments) -> Values:
    """The quantity ``of`` where the quantity ``where`` is not 0, scaled so that the mean over a sequence is over those."""
    found, where = evaluated(batch, inner(arguments, "of")), evaluated(batch, inner(arguments, "where"))
    flags = where.values > 0
    kept = np.maximum(per_sequence_sums(batch, flags), 1.0)
    scale = at_tokens(batch, per_sequence_counts(batch) / kept)
    near = None if where.near is None else where.near * scale * np.maximum(np.abs(found.values), 1.0)
    return Values(np.where(flags, scale * found.values, 0.0), np.where(flags, scale * found.sizes, 0.0), near)


def moved_too_far(batch: Batch, arguments: Arguments) -> tuple[Flags, Flags]:
    """Where a trust region leaves a token out, and where float32 cannot tell; each ``[n_selected]``.

    ``kind`` "signed": the probability rose above ``high`` where the advantage is positive, or fell below ``low`` elsewhere;
    "both": it moved by more than ``high``; "fallen": it fell by more than ``low``. ``first`` is the current policy, ``second``
    the one that sampled.
    """
    first, second = (selected(batch, name) for name in pair(arguments))
    low, high = number(arguments, "low") or 0.0, number(arguments, "high") or 0.0
    change, kind = np.exp(first) - np.exp(second), word(arguments, "kind", "signed")
    rose, fell = (np.abs(change - bound) < 4 * EPSILON32 for bound in (high, -low))
    if kind == "both":
        return np.abs(change) > high, rose | (np.abs(change + high) < 4 * EPSILON32)
    if kind == "fallen":
        return change < -low, fell
    near = np.where(selected(batch, "advantage") > 0, rose, fell)
    return ~within_total_variation(first, second, selected(batch, "advantage"), low, high), near


@quantity("moved", lambda a: (*pair(a), *(("advantage",) if word(a, "kind", "signed") == "signed" else ())))
def _moved(batch: Batch, arguments: Arguments) -> Values:
    """Whether the trust region leaves the token out; with ``sign`` only where ``sign`` times the advantage is positive."""
    flags, near = moved_too_far(batch, arguments)
    sign = number(arguments, "sign")
    if sign is not None:
        with_sign = sign * selected(batch, "advantage") > 0
        flags, near = flags & with_sign, near & with_sign
    return flagged(flags, near)


@quantity("stayed", lambda a: (*pair(a), *(("advantage",) if word(a, "kind", "signed") == "signed" else ())))
def _stayed(batch: Batch, arguments: Arguments) -> Values:
    """Whether the trust region keeps the token."""
    flags, near = moved_too_far(batch, arguments)
    return flagged(~flags, near)


@quantity("kept_ratio", lambda a: (*pair(a), "advantage"))
def _kept_ratio(batch: Batch, arguments: Arguments) -> Values:
    """-A r of the tokens that the trust region keeps, else 0."""
    flags, near = moved_too_far(batch, arguments)
    ratio = ratio_of(batch, arguments)
    whole = -selected(batch, "advantage") * ratio.values
    value = np.where(flags, 0.0, whole)
    return Values(value, np.abs(value) * relative(ratio), near * np.abs(whole))


@quantity("square", pair)
def _square(batch: Batch, arguments: Arguments) -> Values:
    """The square of the log-ratio."""
    x = log_ratio(batch, arguments)
    return Values(x.values**2, x.values**2)
