"""Colours of tokens: what is neutral has none, so that the eye finds what is not."""

from __future__ import annotations

from typing import Final

from rl_doctor.charts.theme import BLUE, ORANGE, PURPLE, VERMILION, faint
from rl_doctor.views.quantities import Scale
from rl_doctor.views.tokens import LEVELS

Colour = tuple[str, str]
"""Background, and colour of the text on it; "" for that of the page."""

_STRONGEST: Final = 0.92
_WHITE_FROM: Final = 0.6
"""Opacity from which on the page's text colour cannot be read."""
_ON_STRONG: Final = "#FFFFFF"


def palette(scale: Scale, name: str) -> list[Colour]:
    """A colour for each level of a scale: blue below neutral, vermilion above it; of flags by their number.

    Args:
        scale: of the quantity.
        name: of the quantity.
    """
    if scale == "flags":
        if name == "masked":
            return [("transparent", ""), _colour(BLUE, 0.18), _colour(PURPLE, 0.6), _colour(VERMILION, 0.85)]
        return [("transparent", ""), _colour(BLUE, 0.85), _colour(VERMILION, 0.85), _colour(ORANGE, 0.5)]
    if scale == "sequential":
        return [_colour(BLUE, _STRONGEST * level / LEVELS) for level in range(LEVELS + 1)]
    found = []
    for level in range(LEVELS + 1):
        place = 2.0 * level / LEVELS - 1.0
        found.append(_colour(VERMILION if place > 0 else BLUE, _STRONGEST * abs(place)))
    return found


def _colour(colour: str, opacity: float) -> Colour:
    return faint(colour, f"{opacity:.2f}"), _ON_STRONG if opacity > _WHITE_FROM else ""
