"""How ratio, KL, entropy and advantage are distributed over the steps: does a distribution shift, or does its tail grow?"""

from __future__ import annotations

from typing import Final

import streamlit as st

from rl_doctor.app.choosing import choose
from rl_doctor.app.context import Context
from rl_doctor.app.shown import chart, heading
from rl_doctor.charts.distributions import alternative, answer, counted, heat_map, one_step, quantiles
from rl_doctor.views.distributions import (
    DASH,
    GROWN,
    MIN_STEPS,
    NOISE,
    QUANTITIES,
    SHIFTED,
    WINDOW,
    Change,
    Heat,
    Slice,
    change,
    heat,
    known,
    of_metric,
    slice_of,
)

NAME: Final = "distributions"
ICON: Final = ":material/blur_on:"


def show(context: Context) -> None:
    """Show the page."""
    say, opened = context.speaker.say, context.opened
    heading(context, "distributions.title")
    names = known(opened)
    if not names:
        st.info(say("distributions.none"), icon=":material/do_not_disturb_on:")
        return
    _answers(context)
    chosen = of_metric(context.link.metric, names)
    st.session_state["distributions-quantity"] = chosen
    st.segmented_control(
        say("distributions.quantity"), names, key="distributions-quantity", required=True,
        format_func=lambda name: say(f"distributions.{name}"),
        on_change=choose(context, "distributions-quantity", "metric", _metric_of),
    )  # fmt: skip
    st.caption(say(f"distributions.about_{chosen}"))
    found = heat(opened, chosen)
    if found is not None:
        column = slice_of(found, context.link.step)
        _map(context, found, column, change(opened, chosen))
        _one_step(context, column)


def _answers(context: Context) -> None:
    """What became of each quantity, in one table."""
    say = context.speaker.say
    rows = []
    for name, quantity in QUANTITIES.items():
        told = change(context.opened, name)
        if told is None:
            columns = ", ".join(context.opened.missing.get(quantity.metric, ()))
            words, numbers, windows = say("distributions.lacking", columns=columns or quantity.metric), "", ""
        else:
            words, numbers, windows = answer(told, context.speaker), quantiles(told, context.speaker), _windows(context, told)
        rows.append((say(f"distributions.{name}"), words, numbers, windows))
    names, words_of, numbers_of, windows_of = zip(*rows, strict=True)
    st.table({
        say("distributions.quantity"): names, say("distributions.answer"): words_of, say("distributions.quantiles"): numbers_of,
        "n": windows_of,
    })  # fmt: skip
    with st.popover(say("distributions.how"), icon=":material/help:"):
        st.markdown(
            say("distributions.decided", window=WINDOW, shifted=SHIFTED, grown=GROWN, noise=f"{NOISE:g}", steps=MIN_STEPS)
        )


def _windows(context: Context, told: Change) -> str:
    """The steps that were held against each other, and how many values they have."""
    early, late = told.early, told.late
    return context.speaker.say(
        "distributions.windows", early_first=early.first, early_last=early.last, early_n=early.n, late_first=late.first,
        late_last=late.last, late_n=late.n,
    )  # fmt: skip


def _map(context: Context, found: Heat, column: Slice, told: Change | None) -> None:
    """The heat map, and what is not in it."""
    figure = heat_map(found, context.speaker, column.column)
    alt = alternative(found, told, context.speaker)
    chart(context, figure, alt, f"distribution-{found.name}", table=found.table)
    st.caption(" ".join(counted(found, context.speaker)))


def _one_step(context: Context, column: Slice) -> None:
    """One column beside the first steps."""
    say, found = context.speaker.say, column.heat
    st.subheader(say("distributions.one_step"), anchor=False)
    if len(found.n) > 1:
        st.session_state["distributions-step"] = found.label(column.column)
        st.select_slider(
            say("distributions.choose_step"), found.labels, key="distributions-step",
            on_change=choose(context, "distributions-step", "step", _first_of),
        )  # fmt: skip
    alt = say(
        "distributions.alt_slice", quantity=say(f"distributions.{found.name}"), first=found.first[column.column],
        last=found.last[column.column], n=found.n[column.column], early_n=column.early_n,
    )  # fmt: skip
    chart(context, one_step(column, context.speaker), alt, f"distribution-slice-{found.name}", table=column.table)


def _metric_of(quantity: str) -> str:
    return QUANTITIES[quantity].metric


def _first_of(label: str) -> str:
    """The first step of a column."""
    return label.partition(DASH)[0]
