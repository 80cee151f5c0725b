"""The sections that say what is wrong: the verdict, the causes, and what was not judged."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from rl_doctor.charts import timeline as drawn
from rl_doctor.html.drawing import chart
from rl_doctor.html.parts import Cause, Facts, Found, Grid, Head, Line, Lines, Section, Text, facts
from rl_doctor.i18n.speaker import Speaker
from rl_doctor.views import findings as found_in
from rl_doctor.views import verdict as told
from rl_doctor.views.age import age
from rl_doctor.views.facts import of_verdict
from rl_doctor.views.opened import Opened
from rl_doctor.views.timeline import timeline

MOST_CAUSES: Final = 40
MOST_FINDINGS: Final = 8
"""Findings of one cause that are told in full; the table has all."""
_MOST_LINES: Final = 12

Places = Mapping[tuple[int, int], tuple[str, str]]
"""Step and number of a sequence -> name of the place in the file that shows its tokens, and the rule that it shows."""


def diagnosis(opened: Opened, speaker: Speaker, places: Places) -> Section:
    """The verdict, findings on one axis of steps, and the causes."""
    say, view = speaker.say, told.verdict(opened)
    blocks: list[Any] = [Text(" · ".join(speaker.tell(part) for part in view.about), small=True), _strip(opened, view, speaker)]
    if view.causes:
        lane = timeline(opened)
        blocks.append(Head(say("diagnosis.timeline")))
        alt = say("diagnosis.timeline_alt", n=len(lane.rows), first=lane.first, last=lane.last, rule=lane.rows[0].name)
        blocks.append(chart("timeline", drawn.draw(lane, speaker), alt, _all(opened, speaker), speaker))
        if lane.left_out:
            blocks.append(Text(say("diagnosis.left_out", n=lane.left_out), small=True))
        blocks.append(Head(say("diagnosis.causes")))
        blocks += [_cause(cause, speaker, places) for cause in view.causes[:MOST_CAUSES]]
        if len(view.causes) > MOST_CAUSES:
            blocks.append(Text(say("diagnosis.more", n=len(view.causes) - MOST_CAUSES)))
    return Section("diagnosis", say("diagnosis.title"), tuple(blocks))


def not_judged(opened: Opened, speaker: Speaker) -> Section | None:
    """What was not judged, and what would enable it; None where all was."""
    view = told.verdict(opened)
    if not view.missing:
        return None
    columns = [entry for entry in view.missing if entry.why == "column"]
    lines = tuple(Line("skipped", "", f"`{entry.needs}` → {', '.join(entry.rules)}") for entry in columns[:_MOST_LINES])
    table = view.lacking
    rows = [*zip(table["rule"], table["reason"], table["needs"], map(speaker.tell, table["detail"]), strict=True)]
    every = Grid(speaker.say("diagnosis.all_lacking"), tuple(map(speaker.head, table)), tuple(rows))
    return Section("not-judged", speaker.say("diagnosis.lacking"), (Lines("", lines), every))


def _strip(opened: Opened, view: told.Verdict, speaker: Speaker) -> Facts:
    fresh = age(opened, time.time(), None)
    return facts(speaker, of_verdict(view, fresh), speaker.say("app.written", quiet=speaker.duration(fresh.quiet)))


def _all(opened: Opened, speaker: Speaker) -> Grid:
    """All findings as a table, also those that are told nowhere else."""
    names = ("code", "rule", "severity", "first_step", "last_step", "message")
    rows = tuple(
        (
            one.code, one.name, speaker.say(f"app.{one.severity}"), "" if one.first_step is None else str(one.first_step),
            "" if one.last_step is None else str(one.last_step), speaker.tell(one.message),
        )
        for one in opened.report.findings
    )  # fmt: skip
    return Grid(speaker.say("diagnosis.findings"), tuple(map(speaker.head, names)), rows)


def _cause(cause: told.Cause, speaker: Speaker, places: Places) -> Cause:
    say = speaker.say
    signs = tuple(Line(sign.kind, say(f"diagnosis.sign_{sign.kind}"), speaker.tell(sign.text)) for sign in cause.signs)
    lists = (
        Lines(say("diagnosis.signs", seen=cause.seen, n=len(cause.signs)), signs),
        Lines(say("diagnosis.also_fits"), _some("fits", cause.also_fits, speaker)),
        Lines(say("diagnosis.ruled_out"), _some("out", cause.ruled_out, speaker)),
    )
    findings = tuple(
        (
            title, tuple(_found(one, speaker, places) for one in several[:MOST_FINDINGS]),
            say("diagnosis.more", n=len(several) - MOST_FINDINGS) if len(several) > MOST_FINDINGS else "",
        )
        for title, several in ((say("diagnosis.findings"), cause.findings), (say("diagnosis.followed_by"), cause.followed_by))
        if several
    )  # fmt: skip
    return Cause(
        Line(cause.severity, say(f"app.{cause.severity}"), speaker.tell(cause.sentence)), cause.name, speaker.tell(cause.when),
        tuple(one for one in lists if one.lines), tuple(map(speaker.tell, cause.advice)), say("diagnosis.advice"), findings,
    )  # fmt: skip


def _some(kind: str, texts: Iterable[str], speaker: Speaker) -> tuple[Line, ...]:
    every = [Line(kind, "", speaker.tell(text)) for text in texts]
    rest = len(every) - _MOST_LINES
    return (*every[:_MOST_LINES], *([Line("note", "", speaker.say("diagnosis.more", n=rest))] if rest > 0 else ()))


def _found(one: found_in.Found, speaker: Speaker, places: Places) -> Found:
    say = speaker.say
    named = [(speaker.tell(item.text), places.get((item.step, item.sequence), ("", ""))[0]) for item in one.examples]
    others = [
        (f"{say('diagnosis.step', step=step)} · {say('tokens.response')} {sequence}", name)
        for (step, sequence), (name, code) in places.items()
        if code == one.code
    ]
    return Found(
        Line(one.severity, say(f"app.{one.severity}"), speaker.tell(one.message)), f"{one.code} {one.name}",
        speaker.tell(one.when), tuple(speaker.tell(proof.text) for proof in one.proofs), tuple(named or others),
    )  # fmt: skip
