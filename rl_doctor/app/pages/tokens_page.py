"""The tokens of one response: which of them drive it?"""

from __future__ import annotations

from typing import Any, Final

import streamlit as st

from rl_doctor.app.choosing import choose, choose_step
from rl_doctor.app.context import Context
from rl_doctor.app.shown import chart, goto, heading, plain, severity_text, tell
from rl_doctor.app.token_map import token_map
from rl_doctor.charts.profile import along
from rl_doctor.views.quantities import QUANTITIES, Quantity
from rl_doctor.views.table import Table
from rl_doctor.views.tokens import Page, Tokens, tokens

NAME: Final = "tokens"
ICON: Final = ":material/text_fields:"
_UNKNOWN: Final = "-"


def show(context: Context) -> None:
    """Show the page."""
    say, link = context.speaker.say, context.link
    heading(context, "tokens.title")
    found = tokens(
        context.opened, step=link.step, sequence=link.sequence, metric=link.metric, position=link.position or 0, code=link.code,
        cause=link.cause, tokenizer=context.tokenizer,
    )  # fmt: skip
    if found is None:
        st.info(say("tokens.no_rows"), icon=":material/do_not_disturb_on:")
        return
    if link.sequence not in (None, found.sequence):
        st.warning(say("tokens.no_such", sequence=link.sequence, step=found.step), icon=":material/search_off:")
    elif link.sequence is None and link.step is not None and link.step not in found.steps:
        st.warning(say("tokens.no_step", asked=link.step, step=found.step), icon=":material/search_off:")
    _chooser(context, found)
    _about(context, found)
    if found.left_out:
        st.info(say("tokens.left_out", step=found.step), icon=":material/compress:")
        return
    if found.quantity is None or found.page is None:
        st.info(say("tokens.no_tokens"), icon=":material/do_not_disturb_on:")
        return
    _colours(context, found, found.quantity)
    _map(context, found, found.page, found.quantity)
    _profile(context, found)
    _carriers(context, found)


def _chooser(context: Context, found: Tokens) -> None:
    """Step, response and pass."""
    say, link = context.speaker.say, context.link
    with st.container(horizontal=True, vertical_alignment="bottom"):
        choose_step(context, "tokens", found.steps, found.step, sequence=None, position=None)
        st.session_state["tokens-sequence"] = found.sequence
        st.selectbox(
            say("tokens.response"), list(found.neighbours), key="tokens-sequence",
            on_change=choose(context, "tokens-sequence", "sequence", step=found.step, position=None), width=230,
            format_func=lambda number: found.neighbours.get(number, str(number)),
        )  # fmt: skip
        for number, icon, word in (
            (found.earlier, ":material/chevron_left:", "earlier"),
            (found.later, ":material/chevron_right:", "later"),
        ):
            if number is not None:
                goto(context, link.at(step=found.step, sequence=number, position=None), say(f"tokens.{word}"), icon=icon)
        goto(
            context, link.at(page="rollouts", step=found.step, sequence=found.sequence, position=None), say("tokens.to_group"),
            icon=":material/view_column:",
        )  # fmt: skip
    if len(found.passes) > 1:
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            st.caption(say("tokens.passes", n=len(found.passes)), width="content")
            for one in found.passes:
                label = say("tokens.pass", step=one.step, epoch=_known(one.epoch), minibatch=_known(one.minibatch))
                if one.sequence == found.sequence:
                    st.markdown(f"**{label}**", width="content")
                else:
                    goto(context, link.at(step=one.step, sequence=one.sequence), label)


def _known(value: object) -> str:
    return _UNKNOWN if value is None else str(value)


def _about(context: Context, found: Tokens) -> None:
    """The response in one line, and the finding that it is a sample of."""
    say, numbers = context.speaker.say, {"reward": found.reward, "advantage": found.advantage}
    told = {name: _UNKNOWN if value is None else f"{value:.4g}" for name, value in numbers.items()}
    st.markdown(
        say(
            "tokens.about", uid=plain(found.uid or str(found.sequence)), group=plain(found.group or _UNKNOWN),
            trained=found.trained, length=_known(found.length),
            finish=plain(found.finish) if found.finish else say("tokens.no_finish"), **told,
        )
    )  # fmt: skip
    if found.finding is not None:
        badge = severity_text(context, found.finding.severity)
        st.caption(f"{badge} **{found.finding.code}** {plain(tell(context, found.finding.message))}")


def _colours(context: Context, found: Tokens, quantity: Quantity) -> None:
    """What the tokens are coloured by."""
    say = context.speaker.say
    st.session_state["tokens-colour"] = quantity.name
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.segmented_control(
            say("tokens.colour"), found.offered, key="tokens-colour", required=True,
            on_change=choose(context, "tokens-colour", "metric", _metric_of),
            format_func=lambda name: say(f"tokens.{name}"),
        )  # fmt: skip
        if found.lacking:
            with st.popover(say("tokens.lacking", n=len(found.lacking)), icon=":material/do_not_disturb_on:"):
                for name, needs in found.lacking.items():
                    st.markdown(
                        say("tokens.needs", quantity=say(f"tokens.{name}"), columns=", ".join(f"`{need}`" for need in needs))
                    )
    st.caption(say(f"tokens.about_{quantity.name}"))


def _map(context: Context, found: Tokens, page: Page, quantity: Quantity) -> None:
    say, link = context.speaker.say, context.link
    token_map(context, found, page, quantity)
    notes = [] if page.decoded else [say("tokens.ids" if "token_id" in page.fields else "tokens.places")]
    if found.bounds is not None:
        told = {"beyond": found.bounds.beyond, "nan": found.bounds.unknown}
        notes.extend(say(f"tokens.{name}", n=number) for name, number in told.items() if number)
    if notes:
        st.caption(" ".join(notes))
    if page.before is None and page.after is None:
        return
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption(say("tokens.page", first=page.first, last=page.last, total=page.total), width="content")
        for place, icon, word in (
            (page.before, ":material/chevron_left:", "before"),
            (page.after, ":material/chevron_right:", "after"),
        ):
            if place is not None:
                goto(context, link.at(step=found.step, sequence=found.sequence, position=place), say(f"tokens.{word}"), icon=icon)


def _profile(context: Context, found: Tokens) -> None:
    say, profile = context.speaker.say, found.profile
    if profile is None or found.quantity is None:
        return
    st.subheader(say("tokens.profile"), anchor=False)
    st.caption(say("tokens.about_profile", width=profile.width))
    name = say(f"tokens.{found.quantity.name}")
    alt = say("tokens.alt_profile", quantity=name, step=found.step)
    chart(context, along(profile, found.quantity, context.speaker), alt, f"profile-{found.quantity.name}", table=profile.table)


def _carriers(context: Context, found: Tokens) -> None:
    """The tokens that carry most of it, in this response and in the step."""
    say = context.speaker.say
    left, right = st.columns(2)
    with left:
        st.subheader(say("tokens.top"), anchor=False)
        st.caption(say("tokens.about_top"))
        if found.top is None or not found.top_positions:
            st.caption(say("tokens.nothing"))
        else:
            state: Any = _table(context, found.top, f"top-{found.sequence}-{found.step}", found, "rerun")
            for row in state.selection.rows:
                place = found.top_positions[row]
                if place != context.link.position:
                    context.go(context.link.at(page=NAME, step=found.step, sequence=found.sequence, position=place))
    with right:
        st.subheader(say("tokens.carriers"), anchor=False)
        if found.carriers is None:
            st.caption(say("tokens.no_ids"))
        else:
            st.caption(say("tokens.about_carriers"))
            _table(context, found.carriers, "carriers", found)


def _table(context: Context, table: Table, key: str, found: Tokens, pick: Any = "ignore") -> Any:
    """A table of tokens, whose texts are shown as they are."""
    say = context.speaker.say
    columns = {name: say(f"tokens.{name}") for name in ("position", "token", "share", "mean", "tokens") if name in table}
    quantity = found.quantity.name if found.quantity is not None else ""
    shown: dict[str, Any] = {
        name: st.column_config.NumberColumn(label, format="percent" if name == "share" else None)
        if name in {"share", "position", "tokens"}
        else st.column_config.Column(label)
        for name, label in columns.items()
    }
    shown |= {name: st.column_config.NumberColumn(say(f"tokens.{name}"), format="%.4g") for name in (quantity,) if name in table}
    shown |= {name: st.column_config.NumberColumn(format="%.4g") for name in ("advantage", "mean") if name in table}
    return st.dataframe(
        dict(table), hide_index=True, key=key, column_config=shown, height=300, alt=say("app.table"), on_select=pick,
        selection_mode="single-row",
    )  # fmt: skip


def _metric_of(quantity: str) -> str:
    return QUANTITIES[quantity].metric
