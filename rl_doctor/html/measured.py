"""The sections that show what was measured: instruments, distributions, groups, and the log against the recomputation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from rl_doctor.charts import groups as of_groups
from rl_doctor.charts import panels as of_run
from rl_doctor.charts.distributions import alternative, answer, counted, heat_map, quantiles
from rl_doctor.charts.recompute import against
from rl_doctor.html.drawing import chart
from rl_doctor.html.hiding import Hider
from rl_doctor.html.parts import Chart, Charts, Grid, Head, Line, Lines, Section, Text, grid, notes
from rl_doctor.i18n.speaker import Speaker
from rl_doctor.views.distributions import change, heat, known, slice_of
from rl_doctor.views.facts import not_recomputed, of_log, of_outcomes
from rl_doctor.views.groups import shares, solve_map
from rl_doctor.views.opened import Opened
from rl_doctor.views.outcomes import lacking
from rl_doctor.views.panels import Panel, Panels, panels
from rl_doctor.views.recompute import detail, recomputed

MOST_NUMBERS: Final = 4
"""Logged numbers that are drawn beside their recomputation, those that differ first."""
_MOST_MARKS: Final = 8


def run(opened: Opened, speaker: Speaker) -> Section:
    """The instruments of the run, each with the band of its first steps and the steps of findings."""
    view, say = panels(opened), speaker.say
    blocks: list[Any] = []
    if view.panels:
        blocks.append(Text(say("run.legend"), small=True))
        blocks.append(Charts(tuple(_instrument(panel, view, speaker) for panel in view.panels)))
    if view.absent:
        names = [say(f"run.{one.name}") + (f" (`{one.needs}`)" if one.needs else "") for one in view.absent]
        blocks.append(Text(f"{say('run.absent')} {' · '.join(names)}", small=True))
    return Section("run", say("run.title"), tuple(blocks))


def _instrument(panel: Panel, view: Panels, speaker: Speaker) -> Chart:
    say = speaker.say
    alt = say("run.one_alt", metric=say(f"run.{panel.name}"), last=panel.traces[0].last)
    marks = [
        Line(mark.severity, say(f"app.{mark.severity}"), f"{mark.code} {mark.name}: {speaker.tell(mark.message)}")
        for mark in reversed(panel.marks)
    ]
    rest = len(marks) - _MOST_MARKS
    more = [Line("note", "", say("diagnosis.more", n=rest))] if rest > 0 else []
    return chart(f"run-{panel.name}", of_run.one(panel, view, speaker), alt, panel.table, speaker, [*marks[:_MOST_MARKS], *more])


def distributions(opened: Opened, speaker: Speaker) -> Section:
    """The heat map of each quantity that the run tells."""
    say = speaker.say
    blocks: list[Any] = []
    for name in known(opened):
        found, moved = heat(opened, name), change(opened, name)
        if found is None:
            continue
        words, numbers = ("", "") if moved is None else (answer(moved, speaker), quantiles(moved, speaker))
        blocks += [
            Head(say(f"distributions.{name}")),
            Text(f"**{words}** {numbers}"),
            Text(say(f"distributions.about_{name}"), small=True),
        ]
        figure = heat_map(found, speaker, slice_of(found, None).column)
        more = notes(speaker, counted(found, speaker))
        blocks.append(chart(f"distribution-{name}", figure, alternative(found, moved, speaker), found.table, speaker, more))
    return Section("distributions", say("distributions.title"), tuple(blocks) or (Text(say("distributions.none")),))


def groups(opened: Opened, speaker: Speaker, hider: Hider | None) -> Section:
    """The shares of groups that give no signal, and the solve rates."""
    say = speaker.say
    title = say("groups.title")
    if lacks := lacking(opened.run):
        return Section("groups", title, (Text(say("groups.lacking", columns=", ".join(lacks))),))
    found = solve_map(opened)
    if found is None:
        return Section("groups", title, (Text(say("groups.empty")),))
    if hider is not None and not found.ranked:
        names = tuple(hider.of(name) for name in found.rows)
        found = replace(found, rows=names, labels=names)
    of = found.found
    blocks: list[Any] = [
        Text(speaker.said([of_outcomes(of)])),
        Text(say("groups.counts", groups=len(of.names), seen=len(of.group), recurring=found.recurring), small=True),
    ]
    first, last = found.columns.first[0], found.columns.last[-1]
    parts = shares(opened)
    if parts is not None:
        share = f"{parts.without_signal:.1%}"
        blocks += [Head(say("groups.signal")), Text(say("groups.no_signal", share=parts.without_signal))]
        alt = say("groups.alt_signal", first=first, last=last, share=share)
        blocks.append(chart("groups-signal", of_groups.signal(parts, speaker), alt, parts.table, speaker))
    low, high = of.ends
    what = say("groups.rate" if of.kind == "binary" else "groups.mean", column=of.column)
    alt = say("groups.alt_map", what=what, rows=len(found.rate), first=first, last=last, low=low, high=high)
    more = notes(speaker, [say("groups.ranked")] if found.ranked else [])
    blocks += [
        Head(say("groups.map")),
        chart("groups-map", of_groups.solve_rates(found, speaker), alt, found.table, speaker, more),
    ]
    return Section("groups", title, tuple(blocks))


def recompute(opened: Opened, speaker: Speaker) -> Section:
    """The trainer's own numbers beside the recomputed ones."""
    say, tell, found = speaker.say, speaker.tell, recomputed(opened)
    differing = found.differing
    told = of_log(found)
    values = dict(told.message.values)
    if told.kind == "skipped":
        values["reason"] = tell(told.text) or say("recompute.no_log")
    word = "" if told.kind == "skipped" else say(f"app.{told.kind}")
    line = Line(told.kind, word, say(told.message.key, **values))
    blocks: list[Any] = [Lines("", (line,))]
    if found.compared:
        table = {**found.table, "fits": [tell(item.fit) for item in found.compared]}
        blocks.append(grid(speaker, say("recompute.list"), table, folded=not differing))
    for number, item in enumerate((differing or found.compared[:1])[:MOST_NUMBERS]):
        one = detail(opened, item.name)
        if one is None:
            continue
        alt = say("recompute.alt", name=one.name, n=one.whole, first=one.first, last=one.last, differing=item.differing)
        fits = [
            Line(
                "fits", "",
                say(
                    "recompute.consistent" if fit.approximate else "recompute.fit", name=tell(fit.name),
                    sentence=tell(fit.sentence), equal=fit.equal, looked=fit.looked,
                ),
            )
            for fit in one.fitting
        ]  # fmt: skip
        about = say(
            "recompute.about", metric=one.metric or say("recompute.no_metric"), compared=item.compared, differing=item.differing
        )
        doubt = [Line("warning", say("app.warning"), say("recompute.doubt", doubt=tell(one.doubt)))] if one.doubt else []
        blocks += [Head(one.name), Text(about, small=True)]
        blocks.append(chart(f"recompute-{number}", against(one, speaker), alt, one.table, speaker, [*doubt, *fits]))
    if found.left:
        rows = tuple((name, tell(reason)) for name, reason in found.left)
        heads = (say("recompute.name"), say("recompute.why"))
        blocks.append(Grid(say("recompute.left", n=len(found.left)), heads, rows))
    blocks += [Text(say(key, **counts), small=True) for key, counts in not_recomputed(found)]
    return Section("recompute", say("recompute.title"), tuple(blocks))
