"""Solve rates of groups over the steps: is there a learning signal in them?"""

from __future__ import annotations

from typing import Any, Final

import streamlit as st

from rl_doctor.app.choosing import choose
from rl_doctor.app.context import Context
from rl_doctor.app.shown import chart, grid, heading
from rl_doctor.charts.groups import signal, solve_rates
from rl_doctor.views.facts import of_outcomes
from rl_doctor.views.groups import ORDERS, Map, again, groups_at, shares, solve_map
from rl_doctor.views.outcomes import lacking

NAME: Final = "groups"
ICON: Final = ":material/grid_on:"


def show(context: Context) -> None:
    """Show the page."""
    say, opened, link = context.speaker.say, context.opened, context.link
    heading(context, "groups.title")
    if lacks := lacking(opened.run):
        st.info(say("groups.lacking", columns=", ".join(lacks)), icon=":material/do_not_disturb_on:")
        return
    found = solve_map(opened, link.by, link.part, link.group)
    if found is None:
        st.info(say("groups.empty"), icon=":material/do_not_disturb_on:")
        return
    known = found.found
    st.markdown(context.speaker.said([of_outcomes(known)]))
    st.caption(say("groups.counts", groups=len(known.names), seen=len(known.group), recurring=found.recurring))
    _signal(context)
    _map(context, found)
    _again(context)
    _one_step(context)


def _signal(context: Context) -> None:
    """The shares of groups with and without a signal."""
    say, found = context.speaker.say, shares(context.opened)
    if found is None:
        return
    st.subheader(say("groups.signal"), anchor=False)
    notes = [say("groups.no_signal", share=found.without_signal)]
    if found.left_out:
        notes.append(say("groups.single", n=found.left_out))
    st.markdown(" ".join(notes))
    alt = say("groups.alt_signal", first=found.columns.first[0], last=found.columns.last[-1], share=f"{found.without_signal:.1%}")
    chart(context, signal(found, context.speaker), alt, "groups-signal", table=found.table)


def _map(context: Context, found: Map) -> None:
    """The rates by group and step, or by rank and step where groups are not seen again."""
    say, known = context.speaker.say, found.found
    st.subheader(say("groups.map"), anchor=False)
    if found.ranked:
        st.caption(say("groups.ranked"))
    else:
        order, part = st.columns([3, 1])
        st.session_state["groups-by"] = found.order
        order.segmented_control(
            say("groups.order"), ORDERS, key="groups-by", required=True, format_func=lambda name: say(f"groups.order_{name}"),
            on_change=choose(context, "groups-by", "by", group=None, part=None),
        )  # fmt: skip
        if found.parts > 1:
            st.session_state["groups-part"] = found.part
            part.selectbox(
                say("groups.part"), found.parts_shown, key="groups-part", format_func=found.part_label,
                on_change=choose(context, "groups-part", "part", group=None),
            )  # fmt: skip
    what = say("groups.rate" if known.kind == "binary" else "groups.mean", column=known.column)
    low, high = known.ends
    alt = say(
        "groups.alt_map", what=what, rows=len(found.rate), first=found.columns.first[0], last=found.columns.last[-1], low=low,
        high=high,
    )  # fmt: skip
    chart(context, solve_rates(found, context.speaker), alt, "groups-map", table=found.table)


def _again(context: Context) -> None:
    """What became of groups that were seen again."""
    say, found = context.speaker.say, again(context.opened)
    if found is not None:
        st.subheader(say("groups.again"), anchor=False)
        st.caption(say("groups.again_about"))
        grid(context, found.table, say("groups.again"))


def _one_step(context: Context) -> None:
    """The groups of one step, each with a way to its responses."""
    say, told = context.speaker.say, groups_at(context.opened, context.link.step)
    if told is None:
        return
    st.subheader(say("groups.at", step=told.step), anchor=False)
    if told.step > told.first:
        st.session_state["groups-step"] = told.step
        st.number_input(
            say("groups.choose_step"),
            told.first,
            told.last,
            key="groups-step",
            on_change=choose(context, "groups-step", "step", group=None),
        )
    st.caption(say("groups.pick"))
    picked: Any = grid(
        context, told.table, say("groups.at", step=told.step), key=f"groups-at-{told.step}", on_select="rerun",
        selection_mode="single-row",
    )  # fmt: skip
    for row in picked["selection"]["rows"]:
        context.go(context.link.at(page="rollouts", step=told.step, group=told.names[row], sequence=None))
