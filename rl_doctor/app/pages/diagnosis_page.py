"""What is wrong with the run, why it is likely so, and where to look."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

import streamlit as st

from rl_doctor.app.context import Context
from rl_doctor.app.link import Link
from rl_doctor.app.shown import chart, facts, goto, grid, heading, marked, plain, severity_text, tell, unmarked
from rl_doctor.charts import timeline as drawn
from rl_doctor.views.age import age
from rl_doctor.views.facts import of_verdict
from rl_doctor.views.findings import Found
from rl_doctor.views.timeline import timeline
from rl_doctor.views.verdict import Cause, Sign, Verdict, verdict

NAME: Final = "diagnosis"
ICON: Final = ":material/stethoscope:"

_SIGNS: Final = {
    "seen": (":material/check_box:", "primary"),
    "absent": (":material/check_box_outline_blank:", "gray"),
    "unchecked": (":material/indeterminate_question_box:", "gray"),
}


def show(context: Context) -> None:
    """Show the page."""
    found = verdict(context.opened)
    heading(context, "diagnosis.title", tuple(tell(context, note) for note in found.about))
    facts(context, of_verdict(found, age(context.opened, time.time(), context.followed.stalled)))
    chosen = found.cause(context.link.cause)
    if chosen is not None:
        _timeline(context, chosen)
        _causes(context, found, chosen)
    _lacking(context, found)


def _timeline(context: Context, chosen: Cause) -> None:
    view = timeline(context.opened)
    say = context.speaker.say
    st.markdown(f"##### {say('diagnosis.timeline')}")
    figure = drawn.draw(view, context.speaker, chosen.name)
    alt = say("diagnosis.timeline_alt", n=len(view.rows), first=view.first, last=view.last, rule=view.rows[0].name)
    picked = chart(context, figure, alt, "timeline", table=view.table, pick=True)
    cause = next((point["customdata"][1] for point in picked if point.get("customdata")), None)
    if cause is not None and cause != chosen.name and cause != st.session_state.get("picked-cause"):
        st.session_state["picked-cause"] = cause
        context.go(context.link.at(cause=cause, code=None))
    st.session_state["picked-cause"] = cause
    if view.left_out:
        st.caption(say("diagnosis.left_out", n=view.left_out))


def _causes(context: Context, found: Verdict, chosen: Cause) -> None:
    """The chosen cause in full, beside all of them where there are several."""
    if len(found.causes) == 1:
        with st.container(border=True):
            _cause(context, chosen)
        return
    menu, detail = st.container(key="causes").columns([4, 11], gap="small")
    with menu.container(key="causes-menu"):
        st.markdown(f"##### {context.speaker.say('diagnosis.causes')}")
        for cause in found.causes:
            _entry(context, cause, chosen=cause.name == chosen.name)
    with detail.container(border=True):
        _cause(context, chosen)


def _entry(context: Context, cause: Cause, *, chosen: bool) -> None:
    with st.container(border=chosen, gap=None):
        label = f"{plain(tell(context, cause.sentence))}"
        goto(context, context.link.at(page=None, cause=cause.name, code=None), f"**{label}**" if chosen else label)
        st.markdown(f"{severity_text(context, cause.severity)} :small[{tell(context, cause.when)}]")


def _cause(context: Context, cause: Cause) -> None:
    say = context.speaker.say
    st.markdown(f"#### {plain(tell(context, cause.sentence))}")
    st.markdown(f"{severity_text(context, cause.severity)} {tell(context, cause.when)} · `{cause.name}`")
    with st.container(key="beside-cause"):
        with st.container(gap="xsmall"):
            if cause.signs:
                st.markdown(f"**{say('diagnosis.signs', seen=cause.seen, n=len(cause.signs))}**")
                _signs(context, cause.signs)
        with st.container(gap="xsmall"):
            st.markdown(f"**{say('diagnosis.advice')}**")
            st.markdown("\n".join(f"1. {marked(tell(context, line))}" for line in cause.advice))
    _findings(context, "diagnosis.findings", cause.findings)
    _findings(context, "diagnosis.followed_by", cause.followed_by)
    with st.container(gap="xsmall"):
        _listed(context, "diagnosis.also_fits", cause.also_fits, ":orange[:material/help:]")
        _listed(context, "diagnosis.ruled_out", cause.ruled_out, ":gray[:material/close:]")


def _findings(context: Context, title: str, findings: tuple[Found, ...]) -> None:
    """Findings with the links to their evidence; of many like each other those beyond the first few folded."""
    if not findings:
        return
    first, rest, name = findings[:4], findings[4:], title.rpartition(".")[2]
    with st.container(gap="xsmall"):
        st.markdown(f"**{context.speaker.say(title)}**")
        with st.container(key=f"cards-{name}"):
            for each in first:
                _finding(context, each)
        if rest:
            with (
                st.expander(context.speaker.say("diagnosis.more", n=len(rest))),
                st.container(key=f"cards-{name}-rest"),
            ):
                for each in rest:
                    _finding(context, each)


def _signs(context: Context, signs: Iterable[Sign]) -> None:
    lines = []
    for sign in signs:
        icon, colour = _SIGNS[sign.kind]
        word = context.speaker.say(f"diagnosis.sign_{sign.kind}")
        lines.append(f":{colour}[{icon}] :small[:gray[{word}]] {plain(tell(context, sign.text))}")
    unmarked(lines, "signs")


def _listed(context: Context, title: str, lines: tuple[str, ...], icon: str) -> None:
    """Some lines under a title, those beyond the first few folded."""
    if not lines:
        return
    say = context.speaker.say
    first, rest = lines[:4], lines[4:]
    st.markdown(f"**{say(title)}**")
    unmarked([f"{icon} {plain(tell(context, line))}" for line in first], title.rpartition(".")[2])
    if rest:
        with st.expander(say("diagnosis.more", n=len(rest))):
            unmarked([f"{icon} {plain(tell(context, line))}" for line in rest], f"{title.rpartition('.')[2]}-rest")


def _finding(context: Context, each: Found) -> None:
    """A finding, and the links to its evidence."""
    with st.container(border=True, gap="xsmall", key=f"evidence-{each.key}"):
        st.markdown(
            f"{severity_text(context, each.severity)} **{each.code} {each.name}** :small[:gray[{tell(context, each.when)}]]  \n"
            f"{plain(tell(context, each.message))}"
        )
        with st.container(key=f"proofs-{each.key}"):
            for proof in each.proofs:
                to = context.link.at(page="run", metric=proof.metric, step=proof.step, code=each.code, cause=None, sequence=None)
                text = plain(tell(context, proof.text))
                goto(context, to if proof.metric else Link(page="-"), text, icon=":material/show_chart:")
            for example in each.examples:
                to = context.link.at(page="tokens", step=example.step, sequence=example.sequence, code=each.code, cause=None)
                goto(context, to, plain(tell(context, example.text)), icon=":material/format_ink_highlighter:")


def _lacking(context: Context, found: Verdict) -> None:
    """What was not looked at, and the column that would enable it."""
    if not found.missing:
        return
    say = context.speaker.say
    st.markdown(f"##### {say('diagnosis.lacking')}")
    columns = [entry for entry in found.missing if entry.why == "column"][:8]
    if columns:
        st.markdown("\n".join(f"- `{entry.needs}` → {', '.join(map(plain, entry.rules))}" for entry in columns))
    folded = st.expander(say("diagnosis.all_lacking"), icon=":material/table_rows:", key="lacking", on_change="rerun")
    if folded.open:
        with folded:
            grid(context, found.lacking, say("diagnosis.lacking"))
