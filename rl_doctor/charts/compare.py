"""Metrics of several runs on one axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go

from rl_doctor.charts.theme import BASELINE_FILL, GREY, colour_of, figure, titled
from rl_doctor.charts.timeline import escaped
from rl_doctor.i18n.speaker import Speaker
from rl_doctor.views.compare import Compared, Panel

_COLUMNS: Final = 3
_ROW: Final = 190
_LARGE: Final = 340
_GAP: Final = 0.06
_TITLE: Final = 52
_DASHES: Final = ("solid", "dash", "dot", "dashdot")


def one(panel: Panel, runs: Sequence[str], by: str, speaker: Speaker) -> go.Figure:
    """One metric, large, with the band around the other run and where the first one parts from it."""
    made = figure(_LARGE, f"compare-{panel.metric}-{by}", legend=True)
    _draw(made, panel, runs, "", legend=True)
    made.update_xaxes(title=speaker.say(f"compare.axis_{by}"))
    metric = escaped(panel.metric)
    made.update_yaxes(title=f"{metric} ({panel.unit})" if panel.unit != "1" else metric)
    return made


def grid(found: Compared, panels: Sequence[Panel], speaker: Speaker) -> go.Figure:
    """Several metrics, small; zooming into one zooms all."""
    rows = -(-len(panels) // _COLUMNS)
    made = figure(rows * (_ROW + _TITLE) + 60, f"compare-grid-{found.by}", legend=True)
    width = (1 - _GAP * (_COLUMNS - 1)) / _COLUMNS
    template = made.layout.xaxis.to_plotly_json(), made.layout.yaxis.to_plotly_json()
    share = _ROW / (rows * (_ROW + _TITLE))
    for place, panel in enumerate(panels):
        row, column = divmod(place, _COLUMNS)
        axis = str(place + 1) if place else ""
        left, top = column * (width + _GAP), 1 - (row + _TITLE / (_ROW + _TITLE)) / rows
        under = speaker.say(f"compare.axis_{found.by}") if place + _COLUMNS >= len(panels) else ""
        across = {"domain": (left, left + width), "anchor": f"y{axis}", "title": titled(under)}
        made.layout[f"xaxis{axis}"] = template[0] | across
        upright = {"domain": (max(top - share + 0.04 / rows, 0.0), top), "anchor": f"x{axis}", "nticks": 5}
        made.layout[f"yaxis{axis}"] = template[1] | upright
        _draw(made, panel, found.runs, axis, legend=place == 0)
        made.add_annotation(
            text=escaped(panel.metric), x=left, y=top, xref="paper", yref="paper", xanchor="left", yanchor="bottom",
            showarrow=False, font={"size": 12},
        )  # fmt: skip
    made.update_xaxes(matches="x")
    made.update_layout(hovermode="x", margin={"t": 4}, legend={"y": 1.0, "yanchor": "top"})
    return made


def _draw(made: go.Figure, panel: Panel, runs: Sequence[str], axis: str, *, legend: bool) -> None:
    where: dict[str, Any] = {"xaxis": f"x{axis}", "yaxis": f"y{axis}"}
    if panel.band is not None:
        places, low, high = panel.band
        made.add_scatter(
            x=np.concatenate([places, places[::-1]]), y=np.concatenate([high, low[::-1]]), mode="lines", line={"width": 0},
            fill="toself", fillcolor=BASELINE_FILL, hoverinfo="skip", showlegend=False, **where,
        )  # fmt: skip
    for line in panel.lines:
        number = runs.index(line.run)
        made.add_scatter(
            x=line.positions, y=line.values, name=escaped(line.run), mode="lines", legendgroup=str(number), showlegend=legend,
            line={"color": colour_of(number), "dash": _DASHES[number % len(_DASHES)], "width": 1.7},
            hovertemplate="%{y:.4~g}", **where,
        )  # fmt: skip
    for parting in panel.partings:
        if parting.position is not None:
            number = runs.index(parting.other)
            made.add_shape(
                type="line", x0=parting.position, x1=parting.position, y0=0, y1=1, xref=f"x{axis}", yref=f"y{axis} domain",
                line={"color": colour_of(number) if len(runs) > 2 else GREY, "width": 1.5, "dash": "dot"},
            )  # fmt: skip
