"""Advantages that a known formula gives in all rows but some, which have something else, the same in all of them."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.report.model import Hit, Severity
from rl_doctor.rules.registry import Limits
from rl_doctor.rules.spans import Breach, above, at, pooled
from rl_doctor.rules.view import View

_FACTOR: Final = "advantage.rows_off_factor"
_STEADY: Final = 0.02
"""Share of the factor within which it is the same at every step."""
_KINDS: Final = {
    "negated": "advantage-sign-turned-in-some-rows",
    "of_group": "advantage-of-another-in-group",
    "scaled": "advantage-scaled-in-some-rows",
    "zeroed": "advantage-zeroed-in-some-rows",
}


def in_some_rows(
    view: View, steps: NDArray[np.int64], family: str, limits: Limits, *, asked: bool, small: bool, since: str
) -> Hit | None:
    """What some rows have in place of the advantage that the others have, if it is one thing.

    Args:
        view: the run.
        steps: steps that are judged.
        family: the formula, in words.
        limits: ``some`` rows at least, at most the share ``part`` of all (but where they are exchanged within groups);
            ``alike`` of them have the same in its place; a share ``off`` of all is told whatever they have.
        asked: whether the configuration names a formula of this kind.
        small: whether the advantages, taken together, are those of the formula: then zeros are no finding, and without a
            configuration nothing but a turned sign is.
        since: when it began, in words, where that is known already.
    """
    off = above(at(view.get("advantage.rows_off_frac"), steps), 0.0)
    if off is None or off.items < limits["some"]:
        return None
    share = off.items / float(off.series.counts.sum())
    turned = at(view.get("advantage.rows_off_negated_frac"), off.series.steps)
    for name, suspect in _KINDS.items():
        found = at(view.get(f"advantage.rows_off_{name}_frac"), off.series.steps)
        if found is None or not pooled(found) >= limits["alike"] or (share > limits["part"] and name != "of_group"):
            continue
        if name == "of_group" and share > limits["part"] and turned is not None and pooled(turned) >= limits["alike"]:
            continue  # in a group of two the other's advantage is minus one's own: told for all rows together
        if small and (name == "zeroed" or not (asked or name == "negated")):
            continue
        factor = _steady(view, off.series.steps) if name == "scaled" else 0.0
        if factor is None:
            continue
        severity: Severity = "error" if asked or name == "negated" else "info"
        return Hit(
            _told(name, off, share, family, since, factor),
            severity,
            (off.evidence(value=share),),
            ruled_out=(f"another formula: {family} gives {1.0 - share:.1%} of the responses what they have",),
            suspect=suspect,
        )
    if not small or not asked or share < limits["off"] or _incomplete(view, off):
        return None
    return Hit(_told("", off, share, family, since, 0.0), "error", (off.evidence(value=share),))


def _incomplete(view: View, off: Breach) -> bool:
    """Whether groups of these steps lack rows: what is left of them has advantages that were computed with all."""
    small, large = (at(view.get(name), off.series.steps[off.marked]) for name in ("group.size_min", "group.size_max"))
    return small is not None and large is not None and bool((small.values < large.values).any())


def _told(name: str, off: Breach, share: float, family: str, since: str, factor: float) -> str:
    number, when = off.items, since.strip() or off.when
    if name == "negated":
        return f"{share:.1%} of the responses ({number:.0f}) have minus the advantage that {family} gives, {when}"
    if name == "of_group":
        return f"{share:.1%} of the responses ({number:.0f}) have what {family} gives another response of their group, {when}"
    if name == "scaled":
        return f"{share:.1%} of the responses ({number:.0f}) have {factor:.3g} times the advantage that {family} gives, {when}"
    if name == "zeroed":
        return f"{share:.1%} of the responses ({number:.0f}) have an advantage of 0 where {family} gives another, {when}"
    return f"{share:.1%} of the responses ({number:.0f}) have another advantage than {family} gives, {when}"


def _steady(view: View, steps: NDArray[np.int64]) -> float | None:
    """The factor, if it is the same at nearly all steps."""
    found = at(view.get(_FACTOR), steps)
    if found is None:
        return None
    middle = float(np.median(found.values))
    same = np.abs(found.values - middle) <= _STEADY * abs(middle)
    return middle if float(np.average(same, weights=found.counts)) >= 0.9 else None
