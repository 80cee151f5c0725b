"""A logged number beside its recomputation, and the difference of the two."""

from __future__ import annotations

from typing import Final

import numpy as np
import plotly.graph_objects as go

from rl_doctor.charts.theme import BASELINE_FILL, BLUE, GREEN, GREY, VERMILION, figure
from rl_doctor.charts.timeline import escaped
from rl_doctor.i18n.speaker import Speaker
from rl_doctor.views.recompute import Detail

_HEIGHT: Final = 470
_FEW: Final = 60
_LETTERS: Final = 24


def against(found: Detail, speaker: Speaker) -> go.Figure:
    """Both numbers and what fits the logged one above, their difference below, within what counts as equal."""
    made = figure(_HEIGHT, f"recompute-{found.name}", legend=True)
    mode = "lines+markers" if len(found.steps) <= _FEW else "lines"
    made.add_scatter(
        x=found.steps, y=found.recomputed, name=speaker.say("recompute.recomputed"), mode=mode,
        line={"color": GREY, "width": 5}, opacity=0.55, hovertemplate="%{y:.6~g}",
    )  # fmt: skip
    made.add_scatter(
        x=found.steps, y=found.logged, name=speaker.say("recompute.logged"), mode=mode, line={"color": BLUE, "width": 1.7},
        marker={"size": 4}, hovertemplate="%{y:.6~g}",
    )  # fmt: skip
    known = np.isfinite(found.best)
    if known.any():
        made.add_scatter(
            x=found.steps[known], y=found.best[known], name=speaker.say("recompute.best"), mode="markers",
            marker={"color": GREEN, "symbol": "circle-open", "size": 10, "line": {"width": 2}}, hovertemplate="%{y:.6~g}",
        )  # fmt: skip
    made.add_scatter(
        x=np.concatenate([found.steps, found.steps[::-1]]), y=np.concatenate([found.allowed, -found.allowed[::-1]]),
        name=speaker.say("recompute.allowed"), mode="lines", line={"width": 0}, fill="toself", fillcolor=BASELINE_FILL,
        yaxis="y2", hoverinfo="skip",
    )  # fmt: skip
    made.add_scatter(
        x=found.steps, y=found.difference, name=speaker.say("recompute.difference"), mode="lines", yaxis="y2", showlegend=False,
        line={"color": BLUE, "width": 1.3}, hovertemplate="%{y:.4~g}",
    )  # fmt: skip
    made.add_scatter(
        x=found.steps[found.wrong], y=found.difference[found.wrong], name=speaker.say("recompute.differs"), mode="markers",
        yaxis="y2", marker={"color": VERMILION, "symbol": "x", "size": 7}, hoverinfo="skip",
    )  # fmt: skip
    for step in found.unreal[:_FEW].tolist():
        made.add_vline(step, line={"color": VERMILION, "width": 1, "dash": "dot"})
    lower = made.layout.yaxis.to_plotly_json() | {"domain": (0.0, 0.3), "anchor": "x", "zeroline": True, "zerolinecolor": GREY}
    made.update_layout(yaxis={"domain": (0.38, 1.0), "title": _title(found)}, yaxis2=lower)
    made.update_layout(yaxis2={"title": speaker.say("recompute.difference")})
    made.update_xaxes(title=speaker.say("recompute.step"), anchor="y2")
    return made


def _title(found: Detail) -> str:
    """What the upper axis shows; of a long name its end, which tells numbers of one kind apart."""
    name = found.name if len(found.name) <= _LETTERS else f"… {found.name[-_LETTERS:]}"
    return f"{escaped(name)} ({found.unit})" if found.unit != "1" else escaped(name)
