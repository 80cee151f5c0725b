"""What is stored of the run, and whether it can be trusted."""

from __future__ import annotations

from typing import Final

import streamlit as st

from rl_doctor.app.context import Context
from rl_doctor.app.shown import chart, facts, grid, heading, plain, tell, unmarked, words
from rl_doctor.charts import stored as drawn
from rl_doctor.views.facts import of_files, of_stored
from rl_doctor.views.stored import Stored, stored

NAME: Final = "data"
ICON: Final = ":material/database:"

_ICONS: Final = {
    "warning": ":orange[:material/warning:]", "note": ":gray[:material/info:]", "passed": ":green[:material/check_circle:]",
}  # fmt: skip


def show(context: Context) -> None:
    """Show the page."""
    view = stored(context.opened)
    say = context.speaker.say
    heading(context, "data.title")
    facts(context, of_stored(view))
    left, right = st.columns([3, 2], gap="medium")
    with left:
        if view.amounts:
            st.markdown(f"##### {say('data.amounts')}")
            alt = say("data.alt", kinds=", ".join(say(f"data.{amount.kind}") for amount in view.amounts), n=view.steps)
            chart(context, drawn.draw(view, context.speaker), alt, "amounts", table=view.amount_table)
        _told(context, view)
    with right:
        st.markdown(f"##### {say('data.settings')}")
        words(context, view.settings, say("data.settings"), most=8, pixels=330)
        if view.sessions is not None:
            st.markdown(f"##### {say('data.sessions')}")
            grid(context, view.sessions, say("data.sessions"), height="content")
    st.markdown(f"##### {say('data.columns')}")
    words(context, view.columns, say("data.columns"), most=12, pixels=460)
    if view.masks is not None:
        st.markdown(f"##### {say('data.masks')}", help=say("data.masks_note"))
        grid(context, view.masks, say("data.masks"), height=300)


def _told(context: Context, view: Stored) -> None:
    """Gaps, and what was left out of the reading or is worth knowing of it."""
    say = context.speaker.say
    st.markdown(f"##### {say('data.told')}")
    lines = []
    for remark in of_files(view):
        told = say(remark.message.key, **remark.message.values)
        told = f"**{told}** {plain(tell(context, remark.text))}" if remark.text else told
        lines.append(f"{_ICONS[remark.kind]} {told}")
    unmarked(lines, "told")
