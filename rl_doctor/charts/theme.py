"""Colours and layout of every chart: told apart by the colour-blind, drawn as SVG, readable on light and dark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import plotly.graph_objects as go

BLUE: Final = "#0072B2"
VERMILION: Final = "#D55E00"
GREEN: Final = "#009E73"
PURPLE: Final = "#CC79A7"
SKY: Final = "#56B4E9"
ORANGE: Final = "#E69F00"
GREY: Final = "#8A8F98"
CATEGORICAL: Final = (BLUE, VERMILION, GREEN, PURPLE, SKY, ORANGE)
"""Okabe and Ito's palette without black and yellow, which are lost on one of the two backgrounds."""

SEQUENTIAL: Final = "Cividis"
"""Name of the scale for quantities that start at 0."""
DIVERGING: Final = (
    (0.0, "#0B4C8C"), (0.25, "#5B9BD0"), (0.5, "#EDEDED"), (0.75, "#F0A35C"), (1.0, "#B34700"),
)  # fmt: skip
"""Blue to orange, for quantities with a sign: the middle stands for 0."""

SEVERITY_COLOURS: Final[Mapping[str, str]] = {"error": VERMILION, "warning": ORANGE, "info": SKY}
SEVERITY_SYMBOLS: Final[Mapping[str, str]] = {"error": "x", "warning": "triangle-up", "info": "circle"}
"""Severity is never told by colour alone."""

BASELINE_FILL: Final = "rgba(128, 134, 145, .20)"
BASELINE_LINE: Final = "rgba(128, 134, 145, .75)"
_GRID: Final = "rgba(128, 134, 145, .16)"
_AXIS: Final = "rgba(128, 134, 145, .45)"
_FAINT: Final = ".14"
_FONT: Final = "Source Sans, Source Sans Pro, system-ui, 'PingFang SC', 'Microsoft YaHei', 'Noto Sans CJK SC', sans-serif"

CONFIG: Final[Mapping[str, Any]] = {
    "displaylogo": False,
    "scrollZoom": False,
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
    "doubleClick": "autosize",
}
"""What plotly's own buttons offer."""


def figure(height: int, state: str, *, legend: bool = False) -> go.Figure:
    """An empty figure in the common style.

    Args:
        height: in pixels.
        state: what zoom and selection belong to: as long as it stays the same, new data leave both alone.
        legend: whether to show a legend, above the drawing.
    """
    made = go.Figure()
    made.update_layout(
        height=height,
        uirevision=state,
        selectionrevision=state,
        showlegend=legend,
        margin={"l": 56, "r": 16, "t": 28 if legend else 12, "b": 36},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"size": 12, "family": _FONT},
        colorway=list(CATEGORICAL),
        hovermode="x unified",
        hoverlabel={"font": {"size": 12}},
        legend={"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom", "font": {"size": 12}},
        dragmode="zoom",
    )
    axis = {
        "gridcolor": _GRID, "zeroline": False, "linecolor": _AXIS, "showline": True, "ticks": "outside", "tickcolor": _AXIS,
        "ticklen": 4, "automargin": True,
    }  # fmt: skip
    made.update_xaxes(axis | {"showgrid": False})
    made.update_yaxes(axis | {"showline": False, "ticks": ""})
    return made


def titled(text: str) -> dict[str, Any]:
    """The title of an axis of steps, close to its numbers: charts that are low have little room under them."""
    return {"text": text, "standoff": 4, "font": {"size": 12}}


def faint(colour: str, opacity: str = _FAINT) -> str:
    """A colour of this module, see-through."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def colour_of(number: int) -> str:
    """The colour of the ``number``-th of several things; they repeat after six."""
    return CATEGORICAL[number % len(CATEGORICAL)]
