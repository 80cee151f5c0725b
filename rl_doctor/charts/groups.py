"""Solve rates by group and step, and the shares of groups that give no signal."""

from __future__ import annotations

from typing import Final

import numpy as np
import plotly.graph_objects as go

from rl_doctor.charts.theme import BLUE, GREEN, GREY, SEQUENTIAL, VERMILION, faint, figure
from rl_doctor.charts.timeline import escaped
from rl_doctor.i18n.speaker import Speaker
from rl_doctor.views.groups import Map, Shares

_ROW: Final = 15
_LEAST: Final = 240
_SHARES_HEIGHT: Final = 280


def solve_rates(found: Map, speaker: Speaker) -> go.Figure:
    """The heat map of solve rates; empty cells are groups that were not seen at these steps."""
    rows = len(found.rate)
    made = figure(max(_LEAST, 90 + _ROW * rows), f"groups-{found.order}-{found.part}")
    low, high = found.found.ends
    number = found.size.astype(np.float64)
    what = speaker.say("groups.rate" if found.found.kind == "binary" else "groups.mean", column=found.found.column)
    names = [str(rank + 1) for rank in range(rows)] if found.ranked else [escaped(name) for name in found.rows]
    steps = [str(step) for step in found.columns.first.tolist()]
    told = np.array([[f"{name}, {step}" for step in steps] for name in names], np.object_)
    made.add_heatmap(
        x=found.columns.edges, y=np.arange(rows + 1) - 0.5, z=found.rate, customdata=np.dstack([told, number]), zmin=low,
        zmax=high if high > low else low + 1.0, colorscale=SEQUENTIAL, hoverongaps=False, xgap=0, ygap=1,
        hovertemplate="%{customdata[0]}: %{z:.3g} (n %{customdata[1]:.0f})<extra></extra>",
        colorbar={"title": {"text": what, "side": "right"}, "thickness": 10, "outlinewidth": 0},
    )  # fmt: skip
    made.update_xaxes(title=speaker.say("groups.step"), range=[found.columns.edges[0], found.columns.edges[-1]])
    if found.ranked:
        ends = [speaker.say("groups.best"), speaker.say("groups.worst")]
        made.update_yaxes(title=speaker.say("groups.rank"), tickvals=[0, rows - 1], ticktext=ends)
    else:
        made.update_yaxes(tickvals=list(range(rows)), ticktext=[escaped(label) for label in found.labels])
    made.update_yaxes(range=[rows - 0.5, -0.5], showgrid=False)
    made.update_layout(hovermode="closest")
    return made


def signal(found: Shares, speaker: Speaker) -> go.Figure:
    """The shares of groups that are all right, all wrong and mixed, one on the other."""
    made = figure(_SHARES_HEIGHT, "groups-shares", legend=True)
    graded = found.kind == "graded"
    parts = (
        ("groups.mixed", found.mixed, GREEN, "solid"),
        ("groups.all_wrong" if found.kind == "binary" else "groups.one_value", found.wrong, VERMILION, "dash"),
        ("groups.all_right", found.right, BLUE, "dot"),
    )
    for key, values, colour, dash in parts[: 2 if graded else 3]:
        made.add_scatter(
            x=found.columns.centres, y=values, name=speaker.say(key), mode="lines", stackgroup="shares", customdata=found.n,
            line={"color": colour, "width": 1.5, "dash": dash}, fillcolor=faint(colour, ".35"),
            hovertemplate="%{y:.1%} (n %{customdata})",
        )  # fmt: skip
    made.update_yaxes(title=speaker.say("groups.share"), range=[0, 1], tickformat=".0%")
    made.update_xaxes(title=speaker.say("groups.step"), linecolor=GREY)
    return made
