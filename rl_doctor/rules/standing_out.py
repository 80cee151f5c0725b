"""Parts of a batch that stand out from the others, step by step."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.frozen import frozen
from rl_doctor.rules.spans import at, pooled
from rl_doctor.rules.view import View

BY: Final = "mismatch.abs_by."
ALIKE: Final = ("rank", "microbatch")
"""Parts that hold the same kind of tokens, so that their differences are of one size."""
UNLIKE: Final = ("source", "turn")
TIMES: Final = 2.0
APART: Final = 4.0
SIZE: Final = 0.02
FAR: Final = 0.05
SIGMAS: Final = 6.0
TOKENS: Final = 200
REST: Final = 0.5
STANDING: Final = tuple(f"{BY}{by}." for by in (*ALIKE, *UNLIKE))


@frozen(eq=False)
class Part:
    """A part beside the others.

    Attributes:
        name: of the part.
        series: its mean |d| by step.
        inside: its mean |d| over its tokens.
        outside: that of the others at the same steps.
        tokens: of the part.
        share: of all tokens.
        steady: whether it stands out step by step.
    """

    name: str
    series: Series
    inside: float
    outside: float
    tokens: int
    share: float
    steady: bool


def standing_out(view: View, by: str) -> Part | None:
    """The part of a slice whose mean |d| stands out most from that of the others; None if none does."""
    prefix = f"{BY}{by}."
    parts = {name.removeprefix(prefix): series for name, series in view.named(prefix).items()}
    if len(parts) < 2:
        return None
    times, size = (TIMES, SIZE) if by in ALIKE else (APART, FAR)
    told = [_held(name, parts, times) for name in parts]
    off = [
        part for part in told if part is not None and part.steady and part.inside > max(times * part.outside, size)
        and part.tokens >= TOKENS and part.share <= REST
    ]  # fmt: skip
    return max(off, key=lambda part: part.inside, default=None)


def _held(name: str, parts: dict[str, Series], times: float) -> Part | None:
    mine = parts[name]
    total, items = np.zeros(len(mine)), np.zeros(len(mine))
    for other, series in parts.items():
        if other != name:
            place = np.searchsorted(mine.steps, series.steps)
            inside = (place < len(mine)) & (mine.steps[np.minimum(place, len(mine) - 1)] == series.steps)
            np.add.at(total, place[inside], series.values[inside] * series.counts[inside])
            np.add.at(items, place[inside], series.counts[inside])
    both = (items > 0.0) & (mine.values > 0.0) & (total > 0.0)
    kept = at(mine, mine.steps[both])
    if kept is None:
        return None
    around = total[both] / items[both]
    ratio = np.log(kept.values / around)
    if len(ratio) < 4:
        steady = bool(np.all(ratio > math.log(2.0 * times)))
    else:
        error = float(np.std(ratio, ddof=1)) / math.sqrt(len(ratio))
        steady = float(np.mean(ratio)) > SIGMAS * error and float(np.mean(ratio > 0.0)) >= 0.9
    tokens, others = int(kept.counts.sum()), float(items[both].sum())
    outside = float(total[both].sum()) / others
    return Part(name, kept, pooled(kept), outside, tokens, tokens / (tokens + others), steady)
