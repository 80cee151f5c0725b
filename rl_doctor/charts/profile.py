"""A quantity along a response."""

from __future__ import annotations

from typing import Final

import plotly.graph_objects as go

from rl_doctor.charts.theme import BASELINE_LINE, VERMILION, figure
from rl_doctor.i18n.speaker import Speaker
from rl_doctor.views.profile import Profile
from rl_doctor.views.quantities import Quantity

_HEIGHT: Final = 260


def along(found: Profile, quantity: Quantity, speaker: Speaker) -> go.Figure:
    """The mean by position of this response, over that of all responses of the step."""
    made = figure(_HEIGHT, f"profile {quantity.name}", legend=True)
    marks = "lines+markers" if len(found.positions) <= 1 else "lines"
    made.add_scatter(
        x=found.positions, y=found.others, mode=marks, name=speaker.say("tokens.whole_step"), connectgaps=False,
        line={"color": BASELINE_LINE, "width": 2.5}, hovertemplate="%{y:.4g}",
    )  # fmt: skip
    made.add_scatter(
        x=found.positions, y=found.own, mode="lines+markers", name=speaker.say("tokens.this_response"), connectgaps=False,
        line={"color": VERMILION, "width": 1.6}, marker={"size": 5}, hovertemplate="%{y:.4g}",
    )  # fmt: skip
    made.update_xaxes(title_text=speaker.say("tokens.position"), hoverformat=".0f")
    unit = "" if quantity.unit in {"", "1"} else f" ({quantity.unit})"
    share = quantity.scale == "flags"
    made.update_yaxes(
        title_text=speaker.say(f"tokens.share_{quantity.name}") if share else f"{speaker.say(f'tokens.{quantity.name}')}{unit}"
    )
    return made
