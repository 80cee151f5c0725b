"""Charts as the file holds them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from rl_doctor.html.parts import Chart, Grid, Line, grid
from rl_doctor.i18n.speaker import Speaker
from rl_doctor.views.table import Table


def chart(name: str, figure: go.Figure, alt: str, table: Table | Grid, speaker: Speaker, notes: Iterable[Line] = ()) -> Chart:
    """A figure of ``charts`` with the table behind it.

    Args:
        name: unique in the file.
        figure: what to draw.
        alt: what it shows, in a sentence.
        table: its numbers.
        speaker: speaks the reader's language.
        notes: what is worth knowing of it.
    """
    drawn: dict[str, Any] = _single(json.loads(figure.to_json()))
    layout = drawn["layout"]
    for state in ("template", "uirevision", "selectionrevision", "clickmode"):  # they serve a page that changes
        layout.pop(state, None)
    numbers = table if isinstance(table, Grid) else grid(speaker, speaker.say("app.table"), table)
    return Chart(name, alt, drawn, numbers, int(layout["height"]), tuple(notes))


def lighter(figure: Mapping[str, Any]) -> dict[str, Any]:
    """The same figure without what heat maps tell of each cell, which takes most room."""
    traces = [
        {**{name: value for name, value in trace.items() if name not in {"customdata", "hovertemplate"}}, "hoverinfo": "skip"}
        if trace["type"] == "heatmap"
        else trace
        for trace in figure["data"]
    ]
    return {**figure, "data": traces}


def _single(value: Any) -> Any:
    """A figure with its numbers in single precision, as far as that holds them: what is drawn is not that fine."""
    if isinstance(value, dict):
        if value.get("dtype") == "f8":
            numbers = np.frombuffer(base64.b64decode(value["bdata"]), "<f8")
            if np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0) < np.finfo(np.float32).max:
                return {**value, "dtype": "f4", "bdata": base64.b64encode(numbers.astype("<f4").tobytes()).decode()}
            return value
        return {name: _single(inner) for name, inner in value.items()}
    return [_single(inner) for inner in value] if isinstance(value, list) else value
