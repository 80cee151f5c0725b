"""A reward that is cut off at a bound which its components go beyond."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Evidence, Hit, Severity
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.spans import Breach, at, pooled
from rl_doctor.rules.stretch import stretch
from rl_doctor.rules.view import View

_SIDES: Final = (("clip.high_frac", "reward.max"), ("clip.low_frac", "reward.min"))
_COMPONENT: Final = "reward.component."


@rule(
    "RLD428", "reward-clipped",
    severity="warning", since="0.2.0",
    optional=("clip.", "reward.max", "reward.min", _COMPONENT),
    limits={"share": 0.02, "large": 0.1, "steps": 3, "rows": 48},
    cause="The reward is clipped: its components go beyond a bound at which it stands still.",
    advice=(
        "Widen or remove the clip, or rescale the components so that their sum falls inside.",
        "If one data source is on another scale than the rest, normalise it by itself: a clip that fits one flattens the other.",
    ),
    avoids=(
        "rewards whose largest value is that of all components together: right or wrong, with or without format",
        "rewards that are no weighted sum of what is recorded",
        "single responses beyond the bound",
    ),
    source="Reproduced by clipping the sum of two components",
)  # fmt: skip
def reward_clipped(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The reward is a weighted sum of its components between two bounds, and stands at a bound where that sum goes beyond it.

    Better and worse answers beyond the bound earn the same: groups that are all there have no variance, and what the components
    say is lost. With a component that is earned on top, such as a format score, the rest may have no effect at all.

    In each generation batch the weights are found that give every reward between the smallest and the largest one exactly. It
    fires if with these weights the components of `share` of the responses (of `rows` responses at `steps` steps) would give more
    than the largest reward, or less than the smallest; a warning from `large` on, else it is worth knowing.
    """
    measured = [(series, bound) for name, bound in _SIDES if (series := view.get(name)) is not None]
    if not measured:
        if not view.named(_COMPONENT):
            yield Skip("column", "no reward components are recorded", ("reward/<component>",))
        else:
            yield Skip("data", "the reward is no weighted sum of its components, or has too few values between its ends")
        return
    found = [(breach, bound) for series, bound in measured if (breach := _lasting(series, limits)) is not None]
    if not found:
        return
    told = [_told(view, bound, breach) for breach, bound in found]
    proof = [breach.evidence() for breach, *_ in found]
    excess = at(view.get("clip.excess"), found[0][0].series.steps[found[0][0].marked])
    if excess is not None:
        first, last = int(excess.steps[0]), int(excess.steps[-1])
        proof.append(Evidence("clip.excess", first, last, pooled(excess), None, None, "reward", int(excess.counts.sum())))
    worst = max(breach.value for breach, *_ in found)
    severity: Severity = "warning" if worst >= limits["large"] else "info"
    yield Hit(
        f"The reward is clipped: by their components {' and '.join(told)}, {found[0][0].when}", severity, tuple(proof),
        ruled_out=("a reward that has no more to give: its components go on to differ at the bound",),
        suspect="reward-clipped-below-its-parts",
    )  # fmt: skip


def _told(view: View, bound: str, breach: Breach) -> str:
    """How many responses lie beyond a bound, and which it is at the steps of the finding."""
    ends = at(view.get(bound), breach.series.steps[breach.marked])
    value = "the bound" if ends is None else f"{float(np.median(ends.values)):.3g}"
    return f"{breach.value:.0%} would be above {value}" if bound == "reward.max" else f"{breach.value:.0%} would be below {value}"


def _lasting(series: Series, limits: Limits) -> Breach | None:
    """The steps at which enough rewards are cut off, if these go on to the last one at which any is."""
    share = limits["share"]
    return stretch(series, series.values > share, share, steps=int(limits["steps"]), items=int(limits["rows"]))
