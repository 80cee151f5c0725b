"""How much each step has."""

from __future__ import annotations

from typing import Final

import plotly.graph_objects as go

from rl_doctor.charts.theme import ORANGE, colour_of, faint, figure, titled
from rl_doctor.i18n.speaker import Speaker
from rl_doctor.views.stored import Stored

_ROW_PIXELS: Final = 92
_TITLE_PIXELS: Final = 22
_UNDER_PIXELS: Final = 44


def draw(view: Stored, speaker: Speaker) -> go.Figure:
    """One strip for each amount, with one axis of steps; gaps are coloured."""
    strips = len(view.amounts)
    whole = strips * (_ROW_PIXELS + _TITLE_PIXELS) + _UNDER_PIXELS
    made = figure(whole, "stored")
    made.update_layout(margin={"l": 56, "r": 8, "t": 0, "b": 0}, hovermode="x")
    axis_x, axis_y = made.layout.xaxis.to_plotly_json(), made.layout.yaxis.to_plotly_json()
    for place, amount in enumerate(view.amounts):
        axis = str(place + 1) if place else ""
        top = 1 - (place * (_ROW_PIXELS + _TITLE_PIXELS) + _TITLE_PIXELS) / whole
        bottom = top - (_ROW_PIXELS - 8) / whole
        made.layout[f"xaxis{axis}"] = axis_x | {
            "anchor": f"y{axis}", "matches": "x" if place else None, "showticklabels": place == strips - 1,
            "title": titled(speaker.say("run.step") if place == strips - 1 else ""),
        }  # fmt: skip
        made.layout[f"yaxis{axis}"] = axis_y | {"domain": (bottom, top), "anchor": f"x{axis}", "rangemode": "tozero", "nticks": 3}
        made.add_trace(
            go.Scatter(
                x=amount.steps, y=amount.values, xaxis=f"x{axis}", yaxis=f"y{axis}", mode="lines", hovertemplate="%{y:,}",
                line={"color": colour_of(place), "width": 1.5, "shape": "hvh"}, fill="tozeroy",
                fillcolor=faint(colour_of(place)), name=speaker.say(f"data.{amount.kind}"),
            )
        )  # fmt: skip
        made.add_annotation(
            text=f"<b>{speaker.say(f'data.{amount.kind}')}</b>", x=0, y=top, xref="paper", yref="paper", xanchor="left",
            yanchor="bottom", showarrow=False, xshift=-6,
        )  # fmt: skip
        for gap in view.gaps:
            made.add_shape(
                type="rect", x0=gap.first - 0.5, x1=gap.last + 0.5, y0=0, y1=1, xref=f"x{axis}", yref=f"y{axis} domain",
                fillcolor=faint(ORANGE, ".28"), line={"width": 0}, layer="below",
            )  # fmt: skip
    return made
