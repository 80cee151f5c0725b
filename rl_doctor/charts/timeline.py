"""Findings on one axis of steps."""

from __future__ import annotations

from typing import Final

import plotly.graph_objects as go

from rl_doctor.charts.theme import SEVERITY_COLOURS, SEVERITY_SYMBOLS, figure, titled
from rl_doctor.i18n.speaker import Speaker
from rl_doctor.views.timeline import Row, Timeline

_ROW_PIXELS: Final = 25
_AROUND_PIXELS: Final = 50
_LINE: Final = 9
_FADED: Final = 0.45


def draw(view: Timeline, speaker: Speaker, chosen: str | None = None) -> go.Figure:
    """One row for each rule that found something, with a bar for each of its spans.

    Args:
        view: what is drawn.
        speaker: speaks the reader's language.
        chosen: name of a cause; the findings of others are drawn fainter.

    Returns:
        The figure. The points that can be picked have ``customdata`` ``[code, cause]``.
    """
    made = figure(_ROW_PIXELS * len(view.rows) + _AROUND_PIXELS, "timeline")
    for severity in ("error", "warning", "info"):
        for faded in (False, True):
            rows = [
                (place, row)
                for place, row in enumerate(view.rows)
                if row.severity == severity and (chosen is not None and row.cause != chosen) is faded
            ]
            if rows:
                _bars(made, view, rows, severity, faded=faded)
                _onsets(made, view, rows, speaker.say(f"app.{severity}"), severity, faded=faded)
    reach = max(view.last - view.first, 1)
    made.update_xaxes(range=[view.first - 0.015 * reach, view.last + 0.015 * reach], title=titled(speaker.say("run.step")))
    made.update_yaxes(
        tickvals=list(range(len(view.rows))),
        ticktext=[f"{row.label} <b>{row.code}</b>" for row in view.rows],
        range=[len(view.rows) - 0.4, -0.6],
        fixedrange=True,
        showgrid=True,
    )
    made.update_layout(hovermode="closest", margin={"t": 6, "b": 44}, clickmode="event+select")
    return made


def _bars(made: go.Figure, view: Timeline, rows: list[tuple[int, Row]], severity: str, *, faded: bool) -> None:
    x: list[float | None] = []
    y: list[float | None] = []
    for place, row in rows:
        for span in row.spans:
            first = view.first if span.first is None else span.first
            last = view.last if span.last is None else span.last
            x += [first, last, None]
            y += [place, place, None]
    line = {"color": SEVERITY_COLOURS[severity], "width": _LINE}
    made.add_trace(go.Scatter(x=x, y=y, mode="lines", line=line, opacity=_FADED if faded else 0.75, hoverinfo="skip"))


def _onsets(made: go.Figure, view: Timeline, rows: list[tuple[int, Row]], word: str, severity: str, *, faded: bool) -> None:
    spans = [(place, row, span) for place, row in rows for span in row.spans]
    made.add_trace(
        go.Scatter(
            x=[view.first if span.first is None else span.first for _, _, span in spans],
            y=[place for place, _, _ in spans],
            mode="markers",
            marker={
                "symbol": SEVERITY_SYMBOLS[severity], "size": 12, "color": SEVERITY_COLOURS[severity],
                "line": {"color": "white", "width": 1},
            },
            opacity=_FADED if faded else 1.0,
            customdata=[[row.code, row.cause] for _, row, _ in spans],
            hovertext=[_hover(word, row, span.message) for _, row, span in spans],
            hoverinfo="text",
            name=word,
            unselected={"marker": {"opacity": _FADED if faded else 1.0}},
        )
    )  # fmt: skip


def _hover(word: str, row: Row, message: str) -> str:
    return f"<b>{word}</b> {row.code} {row.name}<br>{'<br>'.join(_wrapped(message))}"


def _wrapped(text: str, width: int = 80) -> list[str]:
    lines = [""]
    for word in escaped(text).split(" "):
        if lines[-1] and len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return lines


def escaped(text: str) -> str:
    """Text for a label of plotly's, which takes some tags of HTML for its own."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
