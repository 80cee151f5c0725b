"""Makes the file of a run."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Final

from rl_doctor.errors import NothingToJudgeError, shown
from rl_doctor.html import evidence, judged, measured, recorded
from rl_doctor.html.hiding import Hider, without_identities
from rl_doctor.html.page import Document, render
from rl_doctor.html.parts import ICONS, Line, Lines, Section
from rl_doctor.i18n.speaker import Speaker
from rl_doctor.live.followed import Followed
from rl_doctor.views.identifying import Identifying, identifying, of_path
from rl_doctor.views.opened import Opened

LIMIT: Final = 8_000_000
"""Bytes that a file stays below."""
_ROOM: Final = ((evidence.MOST_SAMPLES, False), (evidence.MOST_SAMPLES, True), (6, True), (2, True))
"""Number of samples, and whether heat maps tell nothing of single cells, from what is wanted to what always fits."""


def page_of(path: Path, speaker: Speaker, *, redact: bool = False) -> str:
    """The file of a run; of one with nothing that could be judged it says so.

    Args:
        path: run folder, Parquet file or log.
        speaker: speaks the reader's language.
        redact: leave out token ids, texts and everything that says whose run it is.

    Raises:
        InputError: the run cannot be read.
    """
    followed = Followed(path)
    try:
        opened = followed.opened
        followed.close()
    except NothingToJudgeError as error:
        line = Line("skipped", speaker.say("app.nothing"), speaker.tell(str(error)))
        section = Section("diagnosis", speaker.say("diagnosis.title"), (Lines("", (line,)),))
        hider = Hider(Identifying(of_path(path), frozenset())) if redact else None
        return render(_document(shown(path), "", (section,), speaker, redact=redact), hider)
    hider = Hider(identifying(opened)) if redact else None
    if hider is not None:
        opened = without_identities(opened, hider)
    return fitting(opened, speaker, hider)


def fitting(opened: Opened, speaker: Speaker, hider: Hider | None) -> str:
    """The file of an opened run with as much as fits into ``LIMIT``; ``hider`` as of ``page.render``."""
    page = ""
    for most, light in _ROOM:
        page = render(document_of(opened, speaker, hider, most), hider, light=light)
        if len(page.encode("utf-8", "backslashreplace")) < LIMIT:
            break
    return page


def document_of(opened: Opened, speaker: Speaker, hider: Hider | None, most: int = evidence.MOST_SAMPLES) -> Document:
    """What stands in the file of an opened run, with ``most`` samples; ``hider`` as of ``page.render``."""
    hidden = hider is not None
    samples = dict(islice(evidence.chosen(opened).items(), most))
    sections = (
        judged.diagnosis(opened, speaker, samples),
        measured.run(opened, speaker),
        evidence.evidence(opened, speaker, samples, hidden=hidden),
        measured.distributions(opened, speaker),
        measured.groups(opened, speaker, hider),
        measured.recompute(opened, speaker),
        judged.not_judged(opened, speaker),
        recorded.data(opened, speaker),
        recorded.configuration(opened, speaker),
    )
    made = speaker.say("report.made", version=opened.report.doctor_version, time=opened.report.created_at)
    present = tuple(section for section in sections if section is not None)
    return _document(shown(opened.path), made, present, speaker, redact=hidden)


def _document(path: str, made: str, sections: tuple[Section, ...], speaker: Speaker, *, redact: bool) -> Document:
    say = speaker.say
    words = {"skip": say("report.skip"), "contents": say("report.contents"), "noscript": say("report.noscript")}
    holds = say("report.redacted") if redact else say("report.holds")
    return Document(
        "zh-CN" if speaker.language == "zh" else "en", f"rl-doctor · {Path(path).name if redact else path}",
        made, sections, (holds, say("report.offline")), words, ICONS,
    )  # fmt: skip
