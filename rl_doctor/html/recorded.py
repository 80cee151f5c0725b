"""The section that says what is stored of the run, and how it was configured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rl_doctor.charts import stored as drawn
from rl_doctor.html.drawing import chart
from rl_doctor.html.parts import Head, Line, Lines, Section, Text, facts, grid
from rl_doctor.i18n.speaker import Speaker
from rl_doctor.views.facts import of_files, of_stored
from rl_doctor.views.opened import Opened
from rl_doctor.views.stored import Stored, stored


def data(opened: Opened, speaker: Speaker) -> Section:
    """How much there is of each step, what was left out, columns and masks."""
    view, say = stored(opened), speaker.say
    blocks: list[Any] = [facts(speaker, of_stored(view))]
    if view.amounts:
        blocks.append(Head(say("data.amounts")))
        alt = say("data.alt", kinds=", ".join(say(f"data.{amount.kind}") for amount in view.amounts), n=view.steps)
        blocks.append(chart("amounts", drawn.draw(view, speaker), alt, view.amount_table, speaker))
    blocks.append(Lines(say("data.told"), tuple(_told(view, speaker))))
    blocks.append(grid(speaker, say("data.columns"), view.columns))
    if view.masks is not None:
        blocks += [grid(speaker, say("data.masks"), view.masks), Text(say("data.masks_note"), small=True)]
    return Section("data", say("data.title"), tuple(blocks))


def configuration(opened: Opened, speaker: Speaker) -> Section:
    """The configuration as far as it is known, and the sessions of recording."""
    view, say = stored(opened), speaker.say
    blocks: list[Any] = [grid(speaker, say("data.settings"), view.settings, folded=False)]
    if view.sessions is not None:
        blocks.append(grid(speaker, say("data.sessions"), view.sessions, folded=False))
    return Section("configuration", say("report.configuration"), tuple(blocks))


def _told(view: Stored, speaker: Speaker) -> Iterator[Line]:
    for remark in of_files(view):
        text = speaker.say(remark.message.key, **remark.message.values)
        word = speaker.say("app.warning") if remark.kind == "warning" else ""
        yield Line(remark.kind, word, f"**{text}** {speaker.tell(remark.text)}" if remark.text else text)
