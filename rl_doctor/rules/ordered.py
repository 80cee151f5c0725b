"""Order among statistics of one quantity: smallest, mean and largest value, deviation, and what is configured as the largest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Hit, Severity
from rl_doctor.rules.reading import logged
from rl_doctor.rules.registry import Limits
from rl_doctor.rules.shares import impossible
from rl_doctor.rules.spans import Breach, among
from rl_doctor.rules.trend import Floats
from rl_doctor.rules.view import View

ORDERED: Final = (
    ("reward.min", "reward.mean", "reward.max"), ("reward.score_min", "reward.score_mean", "reward.score_max"),
    ("adv.min", "adv.mean", "adv.max"), ("return.min", "return.mean", "return.max"),
    ("length.min", "length.mean", "length.max"), ("policy.ratio_min", "policy.ratio_mean", "policy.ratio_max"),
    ("stale.min", "stale.mean", "stale.max"), ("", "mismatch.abs", "mismatch.abs_max"),
    ("", "mismatch.prob_abs", "mismatch.prob_max"), ("length.ended_min", "length.ended_mean", "length.ended_max"),
    ("policy.clip_frac_low_min", "policy.clip_frac_low", ""), ("", "policy.clip_frac_high", "policy.clip_frac_high_max"),
)  # fmt: skip
"""Names of the smallest, mean and largest value of a quantity; "" where there is none."""

_LIMITED: Final[Mapping[str, Severity]] = {"verl": "error", "trl": "warning"}
"""Trainers whose responses, as they count them, end at the limit; in TRL but for a rollout function of the user's own."""
_FEW: Final = 32
"""Values that tell of most logs that they have more digits."""


def grain(values: Floats) -> float:
    """The last digit that a log has, of two to six decimals; 0 if it has more."""
    few = values[:_FEW]
    for digits in range(2, 7):
        if _rounded(few, digits) and _rounded(values, digits):
            return 10.0**-digits
    return 0.0


def _rounded(values: Floats, digits: int) -> bool:
    return np.allclose(values, np.round(values, digits), rtol=0.0, atol=1e-12)


def slack(limits: Limits, *series: Series) -> float:
    """What rounding can do: half a last digit of each, and a share of the largest."""
    largest = max(float(np.max(np.abs(one.values))) for one in series)
    return sum(0.5 * grain(one.values) for one in series) + limits["rounding"] * largest


def hit(found: Breach, words: str, value: float, severity: Severity = "error", cause: str | None = None) -> Hit:
    """A finding about the rows of a breach, with ``value`` as its evidence."""
    rows = int(np.count_nonzero(found.marked))
    return Hit(
        f"{found.series.metric} {words} {found.when} ({rows} of {len(found.series)} rows)",
        severity,
        (found.evidence(value=value),),
        cause=cause,
        ruled_out=("rounding: the log has more digits",) if severity == "error" else (),
    )


def in_common(one: Series, other: Series) -> tuple[Series, Floats] | None:
    """The first at the steps of both, and the values of the second there."""
    _, here, there = np.intersect1d(one.steps, other.steps, return_indices=True)
    if here.size == 0:
        return None
    kept = Series(one.metric, one.unit, one.steps[here], one.values[here], one.counts[here])
    return kept, other.values[there]


def _measured(view: View, name: str) -> Series | None:
    """The measured steps of a metric; None where there are none, there is no such metric, or it is a share above 1."""
    found = view.raw(name) if name else None
    kept = None if found is None else found.measured()
    return None if kept is None or not len(kept) or impossible(kept) else kept


def order(view: View, ends: tuple[str, str, str], limits: Limits) -> Iterator[Hit]:
    """A mean outside its smallest and largest value, or without one these two out of order; of logged series."""
    low, middle, high = ends
    mean, smallest, largest = (_measured(view, name) for name in (middle, low, high))
    pairs: tuple[tuple[Series | None, Series | None, str, str], ...] = (
        (mean, smallest, "below the smallest value", low), (mean, largest, "above the largest value", high),
    ) if mean is not None else ((smallest, largest, "above the largest value", high),)  # fmt: skip
    for one, other, words, name in pairs:
        joined = None if one is None or other is None else in_common(one, other)
        if joined is None or one is None or other is None or not (logged(one) and logged(other)):
            continue
        kept, bound = joined
        beyond = bound - kept.values if words.startswith("below") else kept.values - bound
        found = among(kept, beyond > slack(limits, one, other), float(bound[int(np.argmax(beyond))]))
        if found is not None:
            worst = int(np.argmax(beyond))
            cause = f"{kept.metric} and {name} are not over the same responses, or not of the same quantity."
            yield hit(found, f"is {kept.values[worst]:.3g}, {words} {bound[worst]:.3g},", float(kept.values[worst]), cause=cause)


def beyond_limit(view: View, limits: Limits) -> Iterator[Hit]:
    """A response longer than the configured limit, where the trainer logged its length."""
    longest, most = view.get("length.max"), view.config.max_response_length
    if longest is None or not most or not logged(longest):
        return
    found = among(longest, longest.values > most + slack(limits, longest), float(most))
    if found is None:
        return
    turns, name = view.get("turns.mean"), None if view.trainer is None else view.trainer.name
    several = turns is not None and float(turns.values.max()) > limits["turns"]
    severity: Severity = "info" if several or name is None else _LIMITED.get(name, "info")
    cause = (
        "Another limit is in force than the configuration says, it is one of each turn, or the length counts tokens that were "
    )
    cause += "not generated."
    value = float(longest.values.max())
    yield hit(found, f"is {value:.5g}, above the {most} that max_response_length allows,", value, severity, cause)


def spread(view: View, limits: Limits) -> Iterator[Hit]:
    """A standard deviation of 0 although the smallest and the largest value differ."""
    std, low, high = (view.get(f"reward.{name}") for name in ("std", "min", "max"))
    if std is None or low is None or high is None or not all(map(logged, (std, low, high))):
        return
    joined = in_common(std, low)
    both = None if joined is None else in_common(joined[0], high)
    if joined is None or both is None or len(both[0]) != len(joined[0]):
        return
    kept, top = both
    apart = top - joined[1] > slack(limits, low, high)
    flat = view.get("group.zero_std_frac")
    within = flat is not None and float(np.median(flat.values)) > 0.99
    found = among(kept, apart & (kept.values == 0.0), 0.0)
    if found is not None and not within and grain(std.values) <= float(np.min((top - joined[1])[found.marked])):
        cause = "It is the mean of the groups' own standard deviations, not that of the batch, or it is not computed."
        yield hit(found, "is 0 although rewards differ,", 0.0, "warning", cause)
