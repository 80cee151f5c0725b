"""The run in small charts with one axis of steps."""

from __future__ import annotations

from typing import Any, Final

import plotly.graph_objects as go

from rl_doctor.charts.theme import BASELINE_FILL, BASELINE_LINE, SEVERITY_COLOURS, colour_of, faint, figure, titled
from rl_doctor.charts.timeline import escaped
from rl_doctor.i18n.speaker import Speaker
from rl_doctor.views.panels import Band, Mark, Panel, Panels

COLUMNS: Final = 3
_ROW_PIXELS: Final = 160
_SINGLE_PIXELS: Final = 300
_TITLE_PIXELS: Final = 38
_UNDER_PIXELS: Final = 44
_GAP: Final = 0.045
_STRONG: Final = ".20"
_WEAK: Final = ".07"


def grid(view: Panels, speaker: Speaker, code: str | None = None, step: int | None = None) -> go.Figure:
    """All panels; zooming into steps of one zooms all.

    Args:
        view: what is drawn.
        speaker: speaks the reader's language.
        code: of a rule whose findings stand out.
        step: a step that is marked.
    """
    rows = -(-len(view.panels) // COLUMNS)
    made = figure(rows * (_ROW_PIXELS + _TITLE_PIXELS + _UNDER_PIXELS), "panels")
    whole = rows * (_ROW_PIXELS + _TITLE_PIXELS + _UNDER_PIXELS)
    made.update_layout(margin={"l": 44, "r": 8, "t": 0, "b": 0}, hovermode="x")
    width = (1 - _GAP * (COLUMNS - 1)) / COLUMNS
    for place, panel in enumerate(view.panels):
        row, column = divmod(place, COLUMNS)
        top = 1 - (row * (_ROW_PIXELS + _TITLE_PIXELS + _UNDER_PIXELS) + _TITLE_PIXELS) / whole
        left = column * (width + _GAP)
        domain = (left, left + width), (top - _ROW_PIXELS / whole, top)
        axis = str(place + 1) if place else ""
        _draw(made, panel, speaker, axis, domain, code, step)
        if place + COLUMNS >= len(view.panels):
            made.layout[f"xaxis{axis}"].update(title=titled(speaker.say("run.step")))
    made.update_xaxes(matches="x", range=_range(view.first, view.last))
    return made


def one(panel: Panel, view: Panels, speaker: Speaker, code: str | None = None, step: int | None = None) -> go.Figure:
    """One panel, large; arguments as for ``grid``."""
    made = figure(_SINGLE_PIXELS, f"single {panel.name}")
    made.update_layout(margin={"l": 44, "r": 8, "t": 0, "b": 0}, hovermode="x")
    _draw(
        made, panel, speaker, "", ((0.0, 1.0), (_UNDER_PIXELS / _SINGLE_PIXELS, 1 - _TITLE_PIXELS / _SINGLE_PIXELS)), code, step
    )
    made.update_xaxes(range=_range(view.first, view.last), title=titled(speaker.say("run.step")))
    return made


def _range(first: int, last: int) -> list[float]:
    around = 0.015 * max(last - first, 1)
    return [first - around, last + around]


def _draw(
    made: go.Figure,
    panel: Panel,
    speaker: Speaker,
    axis: str,
    domain: tuple[tuple[float, float], tuple[float, float]],
    code: str | None,
    step: int | None,
) -> None:
    across, upright = domain
    template = made.layout.xaxis.to_plotly_json(), made.layout.yaxis.to_plotly_json()
    made.layout[f"xaxis{axis}"] = template[0] | {"domain": across, "anchor": f"y{axis}"}
    made.layout[f"yaxis{axis}"] = template[1] | {"domain": upright, "anchor": f"x{axis}", "nticks": 5, "rangemode": _mode(panel)}
    where = {"xref": f"x{axis}", "yref": f"y{axis}"}
    if panel.band is not None:
        _baseline(made, panel.band, where)
    for mark in panel.marks:
        _span(made, mark, f"x{axis}", f"y{axis} domain", stands_out=code is None or mark.code == code)
    if step is not None:
        made.add_shape(
            type="line", x0=step, x1=step, y0=0, y1=1, xref=f"x{axis}", yref=f"y{axis} domain",
            line={"color": BASELINE_LINE, "width": 1.5, "dash": "dot"},
        )  # fmt: skip
    for place, trace in enumerate(panel.traces):
        few = len(trace.steps) <= 60
        made.add_trace(
            go.Scatter(
                x=trace.steps, y=trace.values, xaxis=f"x{axis}", yaxis=f"y{axis}", name=trace.label,
                mode="lines+markers" if few else "lines", line={"color": colour_of(place), "width": 1.7},
                marker={"size": 3.5, "color": colour_of(place)}, hovertemplate="%{y:.4~g}",
            )
        )  # fmt: skip
    _title(made, panel, speaker, across[0], upright[1])


def _mode(panel: Panel) -> str:
    """What is never negative has no axis below 0, not even where it is 0 throughout."""
    return "nonnegative" if all(trace.values.min() >= 0.0 for trace in panel.traces) else "normal"


def _baseline(made: go.Figure, band: Band, where: dict[str, str]) -> None:
    across = {"xref": f"{where['xref']} domain", "yref": where["yref"], "x0": 0, "x1": 1, "layer": "below"}
    made.add_shape(type="rect", y0=band.low, y1=band.high, fillcolor=BASELINE_FILL, line={"width": 0}, **across)
    made.add_shape(
        type="line", y0=band.centre, y1=band.centre, line={"color": BASELINE_LINE, "width": 1, "dash": "dash"}, **across
    )
    made.add_shape(
        type="line", x0=band.first, x1=band.last, y0=band.centre, y1=band.centre, layer="below",
        line={"color": BASELINE_LINE, "width": 3}, **where,
    )  # fmt: skip


def _span(made: go.Figure, mark: Mark, across: str, upright: str, *, stands_out: bool) -> None:
    colour = SEVERITY_COLOURS[mark.severity]
    where: dict[str, Any] = {"xref": across, "yref": upright, "y0": 0, "y1": 1, "layer": "below"}
    fill = faint(colour, _STRONG if stands_out else _WEAK)
    if mark.last > mark.first:
        made.add_shape(type="rect", x0=mark.first, x1=mark.last, fillcolor=fill, line={"width": 0}, **where)
    edge = {"color": colour if stands_out else fill, "width": 1.5}
    made.add_shape(type="line", x0=mark.first, x1=mark.first, line=edge, **where)


def _title(made: go.Figure, panel: Panel, speaker: Speaker, left: float, top: float) -> None:
    """The title over a panel, the names of its lines in their colours, and what they are now."""
    title = speaker.say(f"run.{panel.name}") if panel.traces[0].metric != panel.name else panel.name
    names = "  ".join(
        f'<span style="color:{colour_of(place)}">━</span> {escaped(trace.label)} {escaped(trace.last)}'
        for place, trace in enumerate(panel.traces)
    )
    made.add_annotation(
        text=f"<b>{escaped(title)}</b><br><span style='font-size:11px'>{names}</span>", x=left, y=top, xref="paper",
        yref="paper", xanchor="left", yanchor="bottom", align="left", showarrow=False, font={"size": 13}, xshift=-6, yshift=2,
    )  # fmt: skip
