"""What the file consists of: sections of blocks, whose texts are ready to be laid out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from rl_doctor.i18n.speaker import Speaker
from rl_doctor.views.facts import Fact
from rl_doctor.views.table import Table

MOST_ROWS: Final = 300
"""Rows of a table; of a longer one evenly spread ones are shown."""
ICONS: Final[Mapping[str, str]] = {
    "error": "✖", "warning": "▲", "info": "●", "passed": "✔", "skipped": "–", "crashed": "‼", "seen": "☑", "absent": "☐",  # noqa: RUF001
    "unchecked": "?", "fits": "≈", "out": "✕", "note": "·",
}  # fmt: skip
"""Severities and outcomes are told by sign, word and colour; with signs that every font has."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line that begins with a sign: its kind (a key of ``ICONS``), the word for it ("" for none), and the text."""

    kind: str
    word: str
    text: str

    @property
    def icon(self) -> str:
        """The sign."""
        return ICONS[self.kind]


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph; a small one explains."""

    text: str
    small: bool = False
    kind: str = "text"


@dataclass(frozen=True, slots=True)
class Head:
    """A heading inside a section."""

    text: str
    kind: str = "head"


@dataclass(frozen=True, slots=True)
class Lines:
    """Some lines under a title, which may be ""."""

    title: str
    lines: tuple[Line, ...]
    kind: str = "lines"


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts side by side: what each is, the fact with its kind (a key of ``ICONS`` or ""), and a note."""

    facts: tuple[tuple[str, str, str, str], ...]
    kind: str = "facts"


@dataclass(frozen=True, slots=True)
class Grid:
    """A table.

    Attributes:
        caption: what it shows.
        heads: names of the columns.
        rows: texts, one of each column.
        note: which rows are left out; "" for none.
        folded: whether it is shown only when it is unfolded.
    """

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    folded: bool = True
    kind: str = "grid"


@dataclass(frozen=True, slots=True, eq=False)
class Chart:
    """A chart.

    Attributes:
        name: unique in the file.
        alt: what it shows, in a sentence.
        figure: what plotly draws.
        grid: the numbers behind it.
        height: in pixels.
        notes: what is worth knowing of it.
    """

    name: str
    alt: str
    figure: Mapping[str, Any]
    grid: Grid
    height: int
    notes: tuple[Line, ...] = ()
    kind: str = "chart"


@dataclass(frozen=True, slots=True, eq=False)
class Charts:
    """Small charts side by side."""

    charts: tuple[Chart, ...]
    kind: str = "charts"


@dataclass(frozen=True, slots=True)
class Found:
    """A finding: a line that tells it, its steps in words, the numbers behind it, and the places of its samples in the file."""

    line: Line
    rule: str
    when: str
    proofs: tuple[str, ...]
    samples: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause: a line that tells it, its name and steps, lists of what is known of it, and its findings under their titles."""

    line: Line
    name: str
    when: str
    lists: tuple[Lines, ...]
    advice: tuple[str, ...]
    advice_title: str
    findings: tuple[tuple[str, tuple[Found, ...], str], ...]
    kind: str = "cause"


@dataclass(frozen=True, slots=True)
class Token:
    """A token: its text, the class of its colours, and what is told where the pointer is."""

    text: str
    look: str
    told: str


@dataclass(frozen=True, slots=True)
class TokenMap:
    """The tokens of a response, in rows that begin with the position of their first token.

    Attributes:
        name: unique in the file.
        title: which response it is.
        about: lines about it.
        texts: title and text of what is shown as it was written.
        caption: what the colours tell.
        legend: class and meaning of colours.
        rows: position of the first token, and the tokens.
        note: which tokens are left out.
    """

    name: str
    title: str
    about: tuple[Line, ...]
    texts: tuple[tuple[str, str], ...]
    caption: str
    legend: tuple[tuple[str, str], ...]
    rows: tuple[tuple[int, tuple[Token, ...]], ...]
    note: str
    kind: str = "tokens"


@dataclass(frozen=True, slots=True)
class Section:
    """A section: its name in links, title, and blocks."""

    name: str
    title: str
    blocks: tuple[Any, ...]


def cell(value: Any) -> str:
    """A value as a table shows it; "" where it is not known."""
    if value is None:
        return ""
    if isinstance(value, float | np.floating):
        return "" if np.isnan(value) else f"{value:.6g}"
    return str(value)


def facts(speaker: Speaker, entries: Iterable[Fact], *more: str) -> Facts:
    """Facts of a view; ``more`` stands with the notes of the last one."""
    told = [
        (
            speaker.said([one.label]), f"{one.fact:,}" if isinstance(one.fact, int) else speaker.said([one.fact]),
            one.kind if one.kind in ICONS else "", speaker.said(one.notes),
        )
        for one in entries
    ]  # fmt: skip
    told[-1] = (*told[-1][:3], " · ".join((*filter(None, told[-1][3:]), *more)))
    return Facts(tuple(told))


def grid(speaker: Speaker, caption: str, table: Table, *, folded: bool = True) -> Grid:
    """A table with its heads in the reader's language, and evenly spread rows where there are very many."""
    length = len(next(iter(table.values()), ()))
    shown: Sequence[int] = range(length)
    note = ""
    if length > MOST_ROWS:
        shown = np.unique(np.linspace(0, length - 1, MOST_ROWS).astype(np.int64)).tolist()
        note = speaker.say("report.some_rows", shown=len(shown), n=length)
    rows = tuple(tuple(cell(values[at]) for values in table.values()) for at in shown)
    return Grid(caption, tuple(map(speaker.head, table)), rows, note, folded)


def notes(speaker: Speaker, texts: Iterable[str]) -> tuple[Line, ...]:
    """Sentences of a report as plain lines."""
    return tuple(Line("note", "", speaker.tell(text)) for text in texts)
