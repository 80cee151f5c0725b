"""The trainer's own numbers against the recomputed ones: is the log right?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import streamlit as st

from rl_doctor.app.choosing import choose
from rl_doctor.app.context import Context
from rl_doctor.app.shown import ICONS, chart, goto, heading, marked, plain, severity_text, tell
from rl_doctor.charts.recompute import against
from rl_doctor.views.facts import not_recomputed, of_log
from rl_doctor.views.recompute import Compared, Detail, Recomputed, detail, recomputed

NAME: Final = "recompute"
ICON: Final = ":material/calculate:"
_WIDTHS: Final[Mapping[str, Any]] = {"steps compared": 110, "differ": 110, "first": 90, "fits": 280}


def show(context: Context) -> None:
    """Show the page."""
    found = recomputed(context.opened)
    heading(context, "recompute.title")
    _log(context, found)
    chosen = detail(context.opened, context.link.metric)
    if chosen is not None:
        _choice(context, found, chosen)
        _numbers(context, chosen, next(item for item in found.compared if item.name == chosen.name))
        _finding(context, chosen)
        _hypotheses(context, chosen)
        _list(context, found)
    _left(context, found)


def _log(context: Context, found: Recomputed) -> None:
    """Whether the log is right, in a sentence."""
    say, told = context.speaker.say, of_log(found)
    if told.kind == "skipped":
        reason = tell(context, told.text) or say("recompute.no_log")
        st.info(say(told.message.key, reason=plain(reason)), icon=ICONS["skipped"])
    elif told.kind == "warning":
        st.warning(say(told.message.key, **told.message.values), icon=ICONS["warning"])
    else:
        st.success(say(told.message.key, **told.message.values), icon=ICONS["passed"])


def _choice(context: Context, found: Recomputed, chosen: Detail) -> None:
    """The picker of a number."""
    st.session_state["recompute-name"] = chosen.name
    marks = {item.name: f"{item.name}  ≠ {item.differing}" if item.differing else item.name for item in found.compared}
    st.selectbox(
        context.speaker.say("recompute.choose"), list(marks), key="recompute-name", format_func=marks.__getitem__,
        on_change=choose(context, "recompute-name", "metric"),
    )  # fmt: skip


def _numbers(context: Context, chosen: Detail, item: Compared) -> None:
    """Both numbers over the steps."""
    say = context.speaker.say
    metric = plain(chosen.metric) if chosen.metric else say("recompute.no_metric")
    notes = [say("recompute.about", metric=metric, compared=item.compared, differing=item.differing)]
    if item.first is not None:
        notes.append(say("recompute.first", step=item.first))
    st.caption(" · ".join(notes))
    alt = say(
        "recompute.alt", name=chosen.name, n=chosen.whole, first=chosen.first, last=chosen.last, differing=item.differing,
    )  # fmt: skip
    chart(context, against(chosen, context.speaker), alt, f"recompute-{chosen.name}", table=chosen.table)
    if len(chosen.unreal):
        st.markdown(say("recompute.unreal", n=len(chosen.unreal)))
    if chosen.doubt:
        st.warning(say("recompute.doubt", doubt=plain(tell(context, chosen.doubt))), icon=":material/warning:")


def _finding(context: Context, chosen: Detail) -> None:
    """What the rule says of it."""
    finding = chosen.finding
    if finding is None:
        return
    with st.container(border=True):
        st.markdown(f"{severity_text(context, finding.severity)} {plain(tell(context, finding.message))}")
        st.markdown(plain(tell(context, finding.cause)))
        for line in finding.advice:
            st.markdown(f"- {marked(tell(context, line))}")
        label = context.speaker.say("recompute.finding", code=finding.code)
        goto(context, context.link.at(page=None, code=finding.code, metric=None), label, icon=":material/stethoscope:")


def _hypotheses(context: Context, chosen: Detail) -> None:
    """What fits, what does not, what could not be tried."""
    say = context.speaker.say
    if not chosen.wrong.any():
        return
    st.subheader(say("recompute.fits"), anchor=False)
    for fit in chosen.fitting:
        key = "recompute.consistent" if fit.approximate else "recompute.fit"
        sentence = plain(tell(context, fit.sentence))
        st.markdown(say(key, name=plain(tell(context, fit.name)), sentence=sentence, equal=fit.equal, looked=fit.looked))
    if not chosen.fitting:
        tried = len(chosen.rejected)
        st.markdown(say("recompute.none_fits", n=tried) if tried else say("recompute.not_looked"))
    if chosen.rejected:
        with st.expander(say("recompute.rejected", n=len(chosen.rejected))):
            st.markdown(plain("; ".join(tell(context, name) for name in chosen.rejected)))
    if chosen.untried:
        with st.expander(say("recompute.untried", n=len(chosen.untried))):
            for name, columns in chosen.untried:
                st.markdown(f"- {plain(tell(context, name))}: {plain(columns)}")


def _list(context: Context, found: Recomputed) -> None:
    """All numbers that were compared."""
    say = context.speaker.say
    st.subheader(say("recompute.list"), anchor=False)
    st.caption(say("recompute.pick"))
    table = {**found.table, "fits": [tell(context, item.fit) for item in found.compared]}
    st.dataframe(
        table, hide_index=True, alt=say("recompute.list"), key="recompute-list", selection_mode="single-row", placeholder="",
        on_select=lambda: _pick(context, found),
        column_config={
            name: st.column_config.Column(say(f"recompute.head_{name.split()[0]}"), width=_WIDTHS.get(name))
            for name in found.table
        },
    )  # fmt: skip


def _pick(context: Context, found: Recomputed) -> None:
    for row in st.session_state["recompute-list"]["selection"]["rows"]:
        st.query_params.from_dict(context.link.at(metric=found.compared[row].name).query())


def _left(context: Context, found: Recomputed) -> None:
    """What was not compared, with the reasons."""
    say = context.speaker.say
    if found.left:
        st.subheader(say("recompute.left", n=len(found.left)), anchor=False)
        names, reasons = zip(*found.left, strict=True)
        told = {say("recompute.name"): names, say("recompute.why"): [tell(context, reason) for reason in reasons]}
        st.dataframe(told, hide_index=True, alt=say("recompute.left", n=len(found.left)))
    for key, values in not_recomputed(found):
        st.caption(say(key, **values))
