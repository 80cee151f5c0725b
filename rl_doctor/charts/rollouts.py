"""The responses of a step, drawn."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import plotly.graph_objects as go

from rl_doctor.charts.theme import GREY, SEQUENTIAL, VERMILION, figure
from rl_doctor.i18n.speaker import Speaker
from rl_doctor.views.picks import REWARD
from rl_doctor.views.rollouts import Spread

_HEIGHT: Final = 300


def spread(found: Spread, chosen: int, group: Collection[int], speaker: Speaker) -> go.Figure:
    """Each response by its length and what it was ranked by, coloured by its reward.

    Args:
        found: the responses.
        chosen: number of the one that is looked at.
        group: numbers of those of its group.
        speaker: speaks the reader's language.
    """
    made = figure(_HEIGHT, f"spread {found.by}")
    numbers = found.sequences.tolist()
    name = speaker.say(f"rollouts.by_{found.by}")
    words = speaker.say("rollouts.point", by=name)
    coloured = found.by != REWARD
    made.add_scatter(
        x=found.lengths, y=found.values, mode="markers", customdata=[str(number) for number in numbers],
        text=[f"{value:.4g}" for value in found.rewards],
        marker={
            "size": [11 if number in group else 7 for number in numbers], "opacity": 0.85,
            "color": found.rewards if coloured else GREY, "colorscale": SEQUENTIAL, "showscale": coloured,
            "colorbar": {
                "title": {"text": speaker.say("rollouts.by_reward"), "side": "right"}, "thickness": 8, "outlinewidth": 0,
            },
            "line": {"width": [1.5 if number in group else 0 for number in numbers], "color": "rgba(90,96,106,.9)"},
        },
        hovertemplate=words, selected={"marker": {"opacity": 0.85}}, unselected={"marker": {"opacity": 0.85}},
    )  # fmt: skip
    if chosen in numbers:
        at = numbers.index(chosen)
        made.add_scatter(
            x=[found.lengths[at]], y=[found.values[at]], mode="markers", hoverinfo="skip",
            marker={"size": 17, "color": "rgba(0,0,0,0)", "line": {"width": 2.5, "color": VERMILION}},
        )  # fmt: skip
    made.update_layout(hovermode="closest")
    made.update_xaxes(title_text=speaker.say("rollouts.by_length"))
    made.update_yaxes(title_text=name)
    return made
