"""Progress bars of tqdm in a console's text, and which step they tell of the rows that stand beside them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from rl_doctor.collectors.importers.numbers import as_count
from rl_doctor.collectors.importers.patterns import when_used

BAR: Final = when_used(r"\d{1,3}%\|[^|]{0,300}\|\s*(\d+)/(\d+) \[([^\]\n]{0,2000})\]")
"""A drawn bar: its count, its total, and what stands in brackets."""
_LABEL: Final = when_used(r"([A-Za-z][A-Za-z_-]*(?: [\w\[\]/().-]+){0,6}) ?:\s*$")
_TRAINING: Final = when_used(r"train|step|iteration|episode|epoch", re.IGNORECASE)
_KEPT: Final = 6
_OFTEN: Final = 3

Key = tuple[str, int]
"""A bar: what it is called, and its total."""


def split(line: str) -> Iterator[str | tuple[Key, int]]:
    """A line's text and its bars, in order: texts as they are, a bar as its key and count."""
    at = 0
    for found in BAR.finditer(line):
        text = line[at : found.start()]
        name = ""
        if text and not text.isspace():
            if text.rstrip().endswith(":") and (label := _LABEL.search(text, max(0, len(text) - 100))):
                name, text = label[1], text[: label.start()]
            if text:
                yield text
        yield (name, as_count(found[2])), as_count(found[1])
        at = found.end()
    if at < len(line) and not (at and line[at:].isspace()):
        yield line[at:]


class Bars:
    """The bars of a training that were drawn so far, and what they showed around each row.

    Attributes:
        beside: for each row, what the latest bars showed before it, the latest last.
    """

    def __init__(self) -> None:
        self.beside: list[tuple[tuple[Key, int], ...]] = []
        self._after: dict[int, tuple[Key, int]] = {}
        self._shown: dict[Key, int] = {}

    def saw(self, key: Key, count: int) -> None:
        """A bar was drawn."""
        if key[0] and not _TRAINING.search(key[0]):
            return
        if self.beside:
            self._after.setdefault(len(self.beside) - 1, (key, count))
        self._shown.pop(key, None)
        self._shown[key] = count
        if len(self._shown) > _KEPT:
            del self._shown[next(iter(self._shown))]

    def row(self) -> None:
        """A row was printed."""
        self.beside.append(tuple(self._shown.items()))

    def thin(self, ranks: int) -> None:
        """Of each ``ranks`` rows one counts."""
        self.beside = self.beside[::ranks]
        self._after = {row // ranks: shown for row, shown in self._after.items()}

    def last(self, keys: set[Key]) -> int:
        """What the training's bar showed last; 0 if there was none."""
        return next((count for key, count in reversed(self._shown.items()) if key in keys), 0)

    def training(self, rows: Sequence[int]) -> set[Key]:
        """The bars that count the training's steps: the one that differs most often from row to row, and others that often do."""
        shown: defaultdict[Key, set[int]] = defaultdict(set)
        for row in rows:
            for key, count in (*self.beside[row], *((self._after[row],) if row in self._after else ())):
                shown[key].add(count)
        if not shown:
            return set()
        best = max(shown, key=lambda key: (len(shown[key]), not key[0], key[1]))
        return {key for key, counts in shown.items() if key == best or len(counts) >= _OFTEN}

    def steps(self, rows: Sequence[int], keys: set[Key]) -> dict[int, int] | None:
        """The step of each row, where a bar beside it tells it; None where the bars stand apart from the rows.

        Args:
            rows: the rows of training, in order.
            keys: the bars that count its steps.
        """
        before = [self._before(row, keys) for row in rows]
        after = [
            self._after[row][1] if row in self._after and self._after[row][0] in keys else was
            for row, was in zip(rows, before, strict=True)
        ]
        chosen = min((before, after), key=_unmoved)
        if None in chosen or 2 * _unmoved(chosen) > max(len(rows) - 1, 1):
            return None
        known = {row: step for row, step in zip(rows, chosen, strict=True) if step is not None}
        others = {
            row: step for row in range(len(self.beside)) if row not in known and (step := self._before(row, keys)) is not None
        }
        return known | others

    def _before(self, row: int, keys: set[Key]) -> int | None:
        return next((count for key, count in reversed(self.beside[row]) if key in keys), None)


def _unmoved(steps: Sequence[int | None]) -> int:
    """How many rows have no step of their own."""
    return sum(before == after or after is None for before, after in zip([None, *steps], steps, strict=False))
