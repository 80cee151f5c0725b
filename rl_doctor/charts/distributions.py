"""Heat maps of distributions over steps, and one column of them beside the first steps."""

from __future__ import annotations

from typing import Final

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from rl_doctor.charts.theme import BASELINE_LINE, BLUE, GREY, PURPLE, SEQUENTIAL, VERMILION, figure
from rl_doctor.i18n.speaker import Speaker
from rl_doctor.views.distributions import QUANTITIES, Change, Heat, Slice

_HEIGHT: Final = 430
_SLICE_HEIGHT: Final = 260
_SHARES: Final = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Shares beside the colours; all below the first are as dark."""
_LEAST_TOP: Final = 0.1
_ROOM: Final = 0.1
"""Room beyond the ends of the axis of shares, in decades."""
_LINES: Final = (("p1", "dot"), ("p50", "solid"), ("p99", "dash"))


def heat_map(heat: Heat, speaker: Speaker, column: int) -> go.Figure:
    """The share of the values in each bin, by step, with the quantiles and what the configuration bounds.

    Args:
        heat: what to draw.
        speaker: speaks the reader's language.
        column: which column is looked at.
    """
    made = figure(_HEIGHT, f"distribution-{heat.name}", legend=True)
    axis, anchor = heat.axis, QUANTITIES[heat.name].anchor
    with np.errstate(divide="ignore"):
        colour = np.where(heat.share > 0, np.log10(np.maximum(heat.share, _SHARES[0])), np.nan)
    made.add_heatmap(
        x=heat.edges, y=axis.edges, z=colour, customdata=_told(heat), colorscale=SEQUENTIAL, zmin=np.log10(_SHARES[0]), zmax=0.0,
        hovertemplate="%{customdata}<extra></extra>", hoverongaps=False,
        colorbar={
            "title": {"text": speaker.say("distributions.share"), "side": "right"}, "thickness": 10, "outlinewidth": 0,
            "tickvals": [np.log10(share) for share in _SHARES], "ticktext": [f"{100 * share:g}%" for share in _SHARES],
        },
    )  # fmt: skip
    for (name, dash), values in zip(_LINES, heat.quantiles, strict=True):
        made.add_scatter(
            x=heat.centres, y=axis.position(values), name=name, mode="lines", customdata=values,
            line={"color": VERMILION, "dash": dash, "width": 2}, hovertemplate=f"{name} %{{customdata:.4g}}<extra></extra>",
        )  # fmt: skip
    if axis.inside(anchor):
        made.add_hline(float(axis.position(anchor)), line={"color": BASELINE_LINE, "width": 1, "dash": "dot"})
    for bound in heat.bounds:
        made.add_hline(bound.position, line={"color": PURPLE, "width": 2, "dash": "longdash"})
        made.add_annotation(
            text=f"{bound.name} = {bound.value:.4g}", x=heat.edges[0], y=bound.position, xanchor="left", yanchor="bottom",
            showarrow=False, font={"size": 11, "color": "#FFFFFF"}, bgcolor="rgba(0, 32, 76, .65)",
        )  # fmt: skip
    made.add_vline(float(heat.centres[column]), line={"color": GREY, "width": 1})
    places, numbers = axis.ticks(anchor)
    made.update_yaxes(tickvals=places, ticktext=numbers, range=[axis.low, axis.high], showgrid=False)
    made.update_yaxes(title=speaker.say(f"distributions.axis_{heat.name}"))
    made.update_xaxes(title=speaker.say("distributions.step"), range=[heat.edges[0], heat.edges[-1]])
    made.update_layout(hovermode="closest")
    return made


def _told(heat: Heat) -> NDArray[np.object_]:
    """What is told of each cell where the pointer is."""
    edges = heat.axis.value(heat.axis.edges)
    values = [f"[{low:.3g}, {high:.3g})" for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)]
    told = np.empty(heat.share.shape, np.object_)
    for row, value in enumerate(values):
        told[row] = [
            f"{step}: {value}  {100 * share:.3g}%" for step, share in zip(heat.labels, heat.share[row].tolist(), strict=True)
        ]
    return told


def one_step(found: Slice, speaker: Speaker) -> go.Figure:
    """The distribution at a step beside that of the first steps."""
    heat, axis = found.heat, found.heat.axis
    made = figure(_SLICE_HEIGHT, f"distribution-slice-{heat.name}", legend=True)
    first, last = int(heat.first[found.column]), int(heat.last[found.column])
    now = speaker.say("distributions.at_step" if first == last else "distributions.at_steps", first=first, last=last)
    early = speaker.say("distributions.early_steps", first=int(heat.first[0]), last=found.early_last)
    made.add_scatter(
        x=axis.centres, y=np.where(found.early > 0, found.early, np.nan), name=early, mode="lines+markers",
        line={"color": GREY, "dash": "dot", "width": 3}, marker={"symbol": "circle-open", "size": 11, "line": {"width": 2}},
        hovertemplate="%{y:.3%}",
    )  # fmt: skip
    made.add_scatter(
        x=axis.centres, y=np.where(found.share > 0, found.share, np.nan), name=now, mode="lines+markers",
        line={"color": BLUE}, marker={"size": 5}, hovertemplate="%{y:.3%}",
    )  # fmt: skip
    places, numbers = axis.ticks(QUANTITIES[heat.name].anchor)
    values = axis.value(axis.centres).tolist()
    made.update_xaxes(tickvals=places, ticktext=numbers, range=[axis.low, axis.high])
    made.update_xaxes(title=speaker.say(f"distributions.axis_{heat.name}"))
    made.update_traces(customdata=[f"{value:.3g}" for value in values])
    made.update_yaxes(type="log", title=speaker.say("distributions.share"), tickformat="~%", dtick=1, range=_decades(found))
    for bound in heat.bounds:
        made.add_vline(bound.position, line={"color": VERMILION, "width": 1, "dash": "dash"})
    return made


def _decades(found: Slice) -> list[float]:
    """The ends of the axis of shares, as decimal logarithms: a share is 100% at most."""
    both = np.concatenate([found.share, found.early])
    least = both[both > 0].min(initial=_LEAST_TOP)
    return [float(np.floor(np.log10(least))) - _ROOM, _ROOM]


def answer(moved: Change, speaker: Speaker) -> str:
    """Whether a distribution shifts or grows a tail, in a few words."""
    say = speaker.say
    if moved.short:
        return say("distributions.short")
    moves = {"median": moved.median, "upper": moved.upper, "lower": moved.lower}
    words = [say(f"distributions.{part}_{'up' if move > 0 else 'down'}") for part, move in moves.items() if move]
    return ", ".join(words) or say("distributions.unchanged")


def quantiles(moved: Change, speaker: Speaker) -> str:
    """The numbers behind the answer."""
    early, late = moved.early, moved.late
    return speaker.say(
        "distributions.from_to", median_before=early.middle, median_now=late.middle, low_before=early.low, low_now=late.low,
        high_before=early.high, high_now=late.high,
    )  # fmt: skip


def alternative(found: Heat, moved: Change | None, speaker: Speaker) -> str:
    """What the heat map shows, in a sentence."""
    return speaker.say(
        "distributions.alt", quantity=speaker.say(f"distributions.{found.name}"), n=found.total, first=found.first[0],
        last=found.last[-1], change=answer(moved, speaker) if moved else "", numbers=quantiles(moved, speaker) if moved else "",
    )  # fmt: skip


def counted(found: Heat, speaker: Speaker) -> list[str]:
    """How many values the heat map is of, and which are not in it."""
    numbers = {"n": found.total, "nan": found.nan, "beyond": found.beyond}
    told = [speaker.say(f"distributions.{what}", n=number) for what, number in numbers.items() if number]
    return told if found.sampling is None else [*told, speaker.say("distributions.sampled", share=found.sampling)]
