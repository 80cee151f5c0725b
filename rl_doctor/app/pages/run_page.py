"""What the run's instruments showed, step by step."""

from __future__ import annotations

from typing import Final

import streamlit as st

from rl_doctor.app.choosing import choose
from rl_doctor.app.context import Context
from rl_doctor.app.shown import chart, heading, plain, severity_text, tell
from rl_doctor.charts import panels as drawn
from rl_doctor.views.panels import Absent, Panels, drawable, panels, single

NAME: Final = "run"
ICON: Final = ":material/show_chart:"


def show(context: Context) -> None:
    """Show the page."""
    view = panels(context.opened)
    say = context.speaker.say
    heading(context, "run.title", (say("run.steps", first=view.first, last=view.last),))
    _choice(context)
    _chosen(context, view)
    if view.panels:
        figure = drawn.grid(view, context.speaker, context.link.code, context.link.step)
        alt = say("run.alt", names=", ".join(say(f"run.{panel.name}") for panel in view.panels), first=view.first, last=view.last)
        chart(context, figure, alt, "panels", table=view.table)
    if view.absent:
        st.markdown(f":small[**{say('run.absent')}**  {' · '.join(_lacking(context, absent) for absent in view.absent)}]")


def _choice(context: Context) -> None:
    """The picker of a metric, and what the grey and coloured areas are."""
    say = context.speaker.say
    names = drawable(context.opened)
    left, right = st.columns([2, 3], gap="medium", vertical_alignment="bottom")
    with left:
        st.session_state["metric"] = context.link.metric if context.link.metric in names else None
        st.selectbox(
            say("run.metric"), names, key="metric", index=None, placeholder=say("run.any", n=len(names)),
            on_change=choose(context, "metric", "metric", code=None), label_visibility="collapsed",
        )  # fmt: skip
    with right:
        st.markdown(f":small[:gray[{say('run.legend')}]]")


def _chosen(context: Context, view: Panels) -> None:
    """The chosen metric, large, and what was found about it."""
    metric = context.link.metric
    panel = None if metric is None else single(context.opened, metric)
    say = context.speaker.say
    if metric is None:
        return
    if panel is None:
        st.warning(say("run.no_metric", metric=plain(metric)))
        return
    figure = drawn.one(panel, view, context.speaker, context.link.code, context.link.step)
    chart(context, figure, say("run.one_alt", metric=metric, last=panel.traces[0].last), f"single-{metric}", table=panel.table)
    for mark in panel.marks:
        if context.link.code in {None, mark.code}:
            st.markdown(
                f"{severity_text(context, mark.severity)} **{mark.code} {mark.name}** {plain(tell(context, mark.message))}"
            )


def _lacking(context: Context, absent: Absent) -> str:
    name = context.speaker.say(f"run.{absent.name}")
    return f"{name} (`{absent.needs}`)" if absent.needs else name
