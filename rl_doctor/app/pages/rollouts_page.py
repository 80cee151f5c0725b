"""Which responses show it, and what do they look like beside the rest of their group?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import streamlit as st

from rl_doctor.app.choosing import choose, choose_step
from rl_doctor.app.context import Context
from rl_doctor.app.shown import chart, goto, heading, numbers, plain, severity_text, tell
from rl_doctor.charts.rollouts import spread
from rl_doctor.views.picks import REWARD, Pick
from rl_doctor.views.rollouts import Group, Member, Rollouts, rollouts
from rl_doctor.views.rows import Text

NAME: Final = "rollouts"
ICON: Final = ":material/forum:"
_UNKNOWN: Final = "-"
_TEXT_PIXELS: Final = 190
_ACROSS: Final = 4
_KINDS: Final[Mapping[str, Any]] = {"sample": "violet", "worst": "red", "largest": "orange", "median": "gray", "control": "green"}
_ICONS: Final = {
    "sample": ":material/target:", "worst": ":material/trending_down:", "largest": ":material/trending_up:",
    "median": ":material/density_medium:",
    "control": ":material/verified:",
}  # fmt: skip


def show(context: Context) -> None:
    """Show the page."""
    say, link = context.speaker.say, context.link
    heading(context, "rollouts.title")
    found = rollouts(
        context.opened, step=link.step, sequence=link.sequence, group=link.group, metric=link.metric, code=link.code,
        cause=link.cause, tokenizer=context.tokenizer,
    )  # fmt: skip
    if found is None:
        st.info(say("rollouts.no_rows"), icon=":material/do_not_disturb_on:")
        return
    if link.sequence not in (None, found.chosen):
        st.warning(say("rollouts.no_such", sequence=link.sequence), icon=":material/search_off:")
    if found.finding is not None:
        badge = severity_text(context, found.finding.severity)
        st.markdown(f"{badge} **{found.finding.code}** {plain(tell(context, found.finding.message))}")
    _chooser(context, found)
    left, right = st.columns([5, 4], gap="medium")
    with left:
        _picks(context, found)
    with right:
        _spread(context, found)
    _group(context, found, found.group)


def _chooser(context: Context, found: Rollouts) -> None:
    say = context.speaker.say
    with st.container(horizontal=True, vertical_alignment="bottom"):
        choose_step(context, "rollouts", found.steps, found.step, sequence=None, group=None)
        st.session_state["rollouts-by"] = found.by or REWARD
        st.selectbox(
            say("rollouts.by"), list(found.offered), key="rollouts-by", width=230,
            on_change=choose(context, "rollouts-by", "metric", found.offered.__getitem__),
            format_func=lambda name: say(f"rollouts.by_{name}"),
        )  # fmt: skip
        if found.finding is not None:
            goto(
                context,
                context.link.at(code=None, cause=None, metric=None),
                say("rollouts.without_finding"),
                icon=":material/close:",
            )


def _picks(context: Context, found: Rollouts) -> None:
    """The responses worth looking at, one line each."""
    say = context.speaker.say
    st.subheader(say("rollouts.picks"), anchor=False)
    for pick in found.picks:
        with st.container(
            horizontal=True, vertical_alignment="center", gap="small", border=pick.sequence == found.chosen, wrap=False
        ):
            st.badge(say(f"rollouts.{pick.kind}"), icon=_ICONS[pick.kind], color=_KINDS[pick.kind], width=95)
            link = context.link.at(page=NAME, step=pick.step, sequence=pick.sequence, group=None, position=None)
            goto(context, link, plain(pick.uid or str(pick.sequence)), tip=say("rollouts.look"))
            st.markdown(_words(context, pick), width="stretch")
            goto(context, link.at(page="tokens"), say("rollouts.tokens"), icon=":material/text_fields:")
    if found.without_control:
        st.caption(say("rollouts.no_control"))


def _words(context: Context, pick: Pick) -> str:
    say = context.speaker.say
    by = f"`{pick.by}`" if pick.kind == "sample" else say(f"rollouts.by_{pick.by}")
    value = _UNKNOWN if pick.value is None else f"{pick.value:.4g}"
    told = [f"{by} **{value}**", say("rollouts.tokens_of", n=_known(pick.length)), say("rollouts.step_of", step=pick.step)]
    if pick.by != REWARD:
        told.insert(1, f"{say('rollouts.by_reward')} {_number(pick.reward)}")
    return " · ".join(told)


def _number(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.4g}"


def _known(value: object) -> str:
    return _UNKNOWN if value is None else str(value)


def _spread(context: Context, found: Rollouts) -> None:
    """All responses of the step; a click chooses one."""
    say, drawn = context.speaker.say, found.spread
    st.subheader(say("rollouts.spread", step=found.step), anchor=False)
    name = say(f"rollouts.by_{drawn.by}")
    made = spread(drawn, found.chosen, found.mates, context.speaker)
    alt = say("rollouts.alt_spread", n=drawn.shown, step=found.step, by=name)
    picked = chart(context, made, alt, f"spread-{found.step}-{found.chosen}", table=drawn.table, pick=True)
    for point in picked:
        chosen = int(point["customdata"])
        if chosen != found.chosen:
            context.go(context.link.at(page=NAME, step=found.step, sequence=chosen, group=None))
    st.caption(say("rollouts.about_spread"))


def _group(context: Context, found: Rollouts, group: Group) -> None:
    """The group side by side."""
    say = context.speaker.say
    if group.name is None:
        st.subheader(say("rollouts.alone"), anchor=False)
    else:
        st.subheader(say("rollouts.group", group=plain(group.name), n=len(group.members)), anchor=False)
    if group.source is not None:
        st.caption(say("rollouts.source", source=plain(group.source)))
    if group.prompt.kind != "none":
        with st.expander(say("rollouts.prompt"), icon=":material/chat:", expanded=True):
            _text(context, group.prompt)
    for row in _rows_of(group.members):
        for column, member in zip(st.columns(_ACROSS, gap="small"), row, strict=False):
            with column.container(height="stretch"):
                _member(context, found, member)
    if group.more:
        st.caption(say("rollouts.more", n=group.more))
    kinds = {one.text.kind for one in group.members if not one.left_out}
    if kinds in ({"ids"}, {"none"}):
        st.caption(say("rollouts.ids" if "ids" in kinds else "rollouts.no_text"))
    numbers(context, group.table, "group-table")


def _rows_of(members: tuple[Member, ...]) -> list[tuple[Member, ...]]:
    return [members[at:][:_ACROSS] for at in range(0, len(members), _ACROSS)]


def _member(context: Context, found: Rollouts, member: Member) -> None:
    """One response of the group."""
    say = context.speaker.say
    chosen = found.shows(member)
    with st.container(border=True, gap="xsmall", height="stretch"):
        name = plain(member.uid or str(member.sequence))
        st.markdown(f":material/arrow_right: **{name}**" if chosen else name)
        st.caption(
            say(
                "rollouts.member", reward=_number(member.reward), advantage=_number(member.advantage),
                length=_known(member.length), finish=plain(member.finish or _UNKNOWN),
            )
        )  # fmt: skip
        if len(member.components) > 1:
            st.caption(" · ".join(f"{plain(name.partition('/')[2])} {_number(value)}" for name, value in member.components))
        link = context.link.at(page="tokens", step=member.step, sequence=member.sequence, group=None, position=None)
        goto(context, link, say("rollouts.tokens"), icon=":material/text_fields:")
        if member.left_out:
            st.caption(say("rollouts.left_out"))
        else:
            _text(context, member.text)


def _text(context: Context, text: Text) -> None:
    """A text of the run, as text and never as markup."""
    say = context.speaker.say
    if text.kind == "none":
        return
    with st.container(border=False, height=_TEXT_PIXELS if text.long else "content"):
        st.text(text.text)
    if text.cut:
        st.caption(say("rollouts.cut" if text.kind == "text" else "rollouts.cut_ids", n=text.cut))
