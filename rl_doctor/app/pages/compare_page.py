"""Runs beside each other: where do they part, and what is configured otherwise?"""

from __future__ import annotations

from typing import Final

import streamlit as st

from rl_doctor.app.choosing import choose
from rl_doctor.app.context import Context
from rl_doctor.app.shown import chart, heading, plain, tell, words
from rl_doctor.charts.compare import grid, one
from rl_doctor.errors import DoctorError
from rl_doctor.views.compare import ALIGNMENTS, Compared, compare
from rl_doctor.views.divergence import DEVIATIONS, MATERIAL, SHORTEST, SMOOTHED, STAYS
from rl_doctor.views.opened import Opened

NAME: Final = "compare"
ICON: Final = ":material/compare_arrows:"

_FIRST: Final = 3
_BESIDE: Final = 2
"""So many runs have their settings beside what parts; a table of more runs is as wide as the page."""
_SETTINGS: Final = 14
"""Settings that are shown without scrolling."""
_BETWEEN: Final = ","


def show(context: Context) -> None:
    """Show the page."""
    say = context.speaker.say
    heading(context, "compare.title")
    here = context.name
    choices = [name for name in context.runs if name != here]
    if not choices:
        st.info(say("compare.alone"), icon=":material/compare_arrows:")
        return
    told = context.link.other or ""
    if told not in choices and (unknown := [name for name in told.split(_BETWEEN) if name and name not in choices]):
        st.warning(say("compare.no_such", names=plain(", ".join(unknown)), run=plain(here)), icon=":material/search_off:")
    others = _others(context, choices)
    st.session_state["compare-others"] = others
    st.multiselect(
        say("compare.others", run=plain(here)), choices, key="compare-others",
        on_change=choose(context, "compare-others", "other", lambda names: _BETWEEN.join(names) or None),
    )  # fmt: skip
    runs = {here: context.opened}
    for name in others:
        try:
            runs[name] = context.runs[name].opened
        except DoctorError as error:
            st.error(plain(str(error)), icon=":material/error:")
    if len(runs) > 1:
        _compared(context, runs)


def _others(context: Context, choices: list[str]) -> list[str]:
    """The runs that the address names, between commas; without any the first that there is."""
    told = context.link.other or ""
    asked = [told] if told in choices else [name for name in told.split(_BETWEEN) if name in choices]
    return asked or choices[:1]


def _compared(context: Context, runs: dict[str, Opened]) -> None:
    """All that is said of them."""
    say = context.speaker.say
    found = compare(runs, context.link.by, context.link.metric)
    _alignment(context, found)
    if found.chosen is None:
        st.info(say("compare.nothing_shared"), icon=":material/do_not_disturb_on:")
    with st.container(key="beside-parted" if len(found.runs) == _BESIDE else "above-settings"):
        with st.container(gap="small"):
            st.subheader(say("compare.parted"), anchor=False)
            _parted(context, found)
        with st.container(gap="small"):
            _settings(context, found)
    _charts(context, found)
    st.subheader(say("compare.findings"), anchor=False)
    if found.findings:
        told = {name: [tell(context, value) for value in values] for name, values in found.findings_table.items()}
        words(context, told, say("compare.findings"))
    else:
        st.markdown(say("compare.same_findings"))


def _settings(context: Context, found: Compared) -> None:
    """What is configured otherwise."""
    say = context.speaker.say
    st.subheader(say("compare.settings"), anchor=False)
    if found.settings:
        words(context, found.settings_table, say("compare.settings"), most=_SETTINGS)
    else:
        st.markdown(say("compare.same_settings"))
    if found.untold:
        st.caption(say("compare.untold", n=found.untold))


def _alignment(context: Context, found: Compared) -> None:
    """The picker of what they are aligned by."""
    say = context.speaker.say
    st.session_state["compare-by"] = found.by
    st.segmented_control(
        say("compare.by"), found.alignments, key="compare-by", required=True, format_func=lambda name: say(f"compare.by_{name}"),
        on_change=choose(context, "compare-by", "by"),
    )  # fmt: skip
    notes = [] if found.by == ALIGNMENTS[0] else [say("compare.interpolated")]
    if unknown := [say(f"compare.by_{name}") for name in ALIGNMENTS if name not in found.alignments]:
        notes.append(say("compare.unaligned", names=", ".join(unknown)))
    if notes:
        st.caption(" ".join(notes))


def _parted(context: Context, found: Compared) -> None:
    """Where they part first, and how that is decided."""
    say = context.speaker.say
    for parting in found.parted[:_FIRST]:
        told = parting.found
        sentence = say(
            "compare.part", metric=plain(parting.metric), other=plain(parting.other), step=parting.step, stays=told.stays,
            n=told.n, here=told.here, there=told.there, limit=told.limit,
        )  # fmt: skip
        same = "" if parting.equal_to is None else f" {say('compare.equal', step=parting.equal_to)}"
        st.markdown(f"{sentence}{same}")
    if not found.parted:
        st.markdown(say("compare.none_parts", n=len(found.panels)))
    if found.later(_FIRST):
        st.caption(say("compare.more", n=found.later(_FIRST)))
    if found.short:
        st.caption(say("compare.short", n=found.short, least=SHORTEST))
    with st.popover(say("compare.how"), icon=":material/help:"):
        points, share = STAYS
        st.markdown(
            say(
                "compare.decided", deviations=DEVIATIONS, material=MATERIAL, smoothed=SMOOTHED, stays=points, share=share,
                least=SHORTEST,
            )
        )  # fmt: skip


def _charts(context: Context, found: Compared) -> None:
    """One metric large, the usual ones small."""
    say, speaker = context.speaker.say, context.speaker
    if found.chosen is None:
        return
    st.session_state["compare-metric"] = found.chosen.metric
    st.selectbox(
        say("compare.metric"), found.metrics, key="compare-metric", on_change=choose(context, "compare-metric", "metric")
    )
    names, by = ", ".join(found.runs), say(f"compare.by_{found.by}")
    alt = say("compare.alt", metric=found.chosen.metric, runs=names, by=by)
    chart(context, one(found.chosen, found.runs, found.by, speaker), alt, "compare-one", table=found.chosen.table)
    if found.small:
        st.subheader(say("compare.panels"), anchor=False)
        told = ", ".join(panel.metric for panel in found.small)
        alt = say("compare.alt_grid", n=len(found.small), runs=names, names=told)
        chart(context, grid(found, found.small, speaker), alt, "compare-grid", table=found.table)
