"""verl's console logger: ``step:N - name:value - name:value``, in one line, or with a metric to a line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rl_doctor.collectors.importers.bars import split
from rl_doctor.collectors.importers.console import bare, blocks, seen
from rl_doctor.collectors.importers.numbers import as_count, whole
from rl_doctor.collectors.importers.patterns import when_used
from rl_doctor.collectors.importers.registry import Fit, Imported, Sample, importer
from rl_doctor.collectors.importers.rows import Row, assemble
from rl_doctor.schema import RunInfo

_NUMBER: Final = r"(?:[-+]?(?:\d[\d.,]*(?:[eE][-+]?\d+)?|nan|inf)|(?:np|numpy)\.\w+\([^()]*\)|None|True|False)"
_STEP: Final = when_used(r"(?<![\w/.])step[:=](\d+)(?= - |\s*$)")
_SIGNED: Final = when_used(
    rf"(?<![\w/.])step[:=]\d+(?:\s*\n[^\n]{{0,200}})? - [^\s:][^:\n]{{0,200}}:{_NUMBER}(?:\s|$)", re.MULTILINE
)
_LISTED: Final = when_used(rf"\s*- ([^\s:][^\n]{{0,300}}:{_NUMBER})\s*$")
_QUOTED: Final = when_used(rf"[\s({{]*(['\"])([\w@.()-]+/[^'\"]{{1,300}})\1:\s*({_NUMBER}),?[\s)}}]*$")
_PRINTED: Final = when_used(r"['\"](?:actor|critic|response_length)/[^'\"\n]{1,100}['\"]:\s*[-\d]")
_PAIR: Final = when_used(rf"\s*[^\s:][^\n]{{0,300}}:{_NUMBER}\s*")
_NUMPY: Final = when_used(r"(?<=:)\s*(?:np|numpy)\.\w+\(")
_REPEATED: Final = when_used(r"\s*\[repeated \d+x across cluster\].*")
_SEPARATOR: Final = when_used(r"\s+-\s+|(?<=\d)-\s+(?=[A-Za-z_])|(?<=\d)\s+-(?=[A-Za-z_])")
_GLOBAL_STEP: Final = "training/global_step"
_GIVE_UP: Final = 500
"""Lines of others between two lines of a record with a metric to a line, from which the record is over."""

_PLAIN: Final = when_used(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
_PLAIN_QUOTED: Final = when_used(r" (?:np\.float64\()?(-?\d+(?:\.\d+)?(?:e[-+]?\d+)?)\)?,?")
_MOST_LINES: Final = 10_000
"""Lines of different names that are kept in mind."""
_OWN_LINE: Final = 500
"""Characters that a line with a single metric does not have."""
_FIGURE: Final = r"([-+]?(?:\d[\d.]*+(?:e[-+]?\d++)?+|nan|inf))"
_FIGURES: Final = when_used(rf"(?<=[: (]){_FIGURE}(?=[\s),]|$)")
_OTHERS: Final = r"(?:(?![^\n]*(?:\s-|-\s|['\"]))[^\n]*\n){0,50}?"
"""Lines that can neither be the rest of a record that was wrapped nor have a metric of it."""
_MOST_KINDS: Final = 4
_MOST_FAILURES: Final = 20
"""Kinds of records that are read at a glance, and records of no such kind, after which none is looked for."""


def _recognises(sample: Sample) -> Fit:
    text = seen(sample)
    if _SIGNED.search(text):
        return Fit.SIGNATURE
    return Fit.SHAPE if _GLOBAL_STEP in text and len(_PRINTED.findall(text)) > 1 else Fit.NO


@importer("verl-console", "console output of verl", _recognises, marks=("step:", "step=", f"'{_GLOBAL_STEP}'"))
def read(path: Path) -> Imported:
    """Read every record; what other processes print between them is passed over."""
    reader = _Reader()
    found = assemble(reader.rows(path), path)
    cut = ("lines that the terminal wrapped are joined",) if reader.wrapped else ()
    return Imported(found.log, RunInfo(trainer="verl"), (*cut, *found.notes))


class _Reader:
    """Finds records in lines, which may be wrapped or have other lines between them."""

    def __init__(self) -> None:
        self.wrapped = 0
        self._step: int | None = None
        self._values: dict[str, Any] = {}
        self._text = ""
        self._since = 0
        self._joined = False
        self._names: dict[str, tuple[str, re.Pattern[str]]] = {}
        self._began = -1
        self._kinds: dict[tuple[str, ...], re.Pattern[str]] = {}
        self._failures = 0

    def rows(self, path: Path) -> Iterator[Row]:
        """Every record of a console."""
        for block in blocks(path):
            self._began, at = -1, 0
            while at < len(block):
                if known := self._known(block, at):
                    row, end = known
                    yield from self._end()
                    yield row
                    self._began, at = -1, end
                    continue
                end = block.find("\n", at) + 1 or len(block)
                for row in self._line(block[at:end].rstrip("\n"), at):
                    self._learn(block[self._began : at], row)
                    yield row
                at = end
        yield from self._end()

    def _known(self, block: str, at: int) -> tuple[Row, int] | None:
        """The record that begins at a place, if it differs from one before in its numbers alone, and where it ends."""
        for names, pattern in self._kinds.items():
            if found := pattern.match(block, at):
                step, *values, _ = found.groups()
                return Row(as_count(step), dict(zip(names, values, strict=True))), found.end()
        return None

    def _learn(self, text: str, row: Row) -> None:
        """Keep in mind how a record is written; ``text`` is nothing if it began in another block."""
        names = tuple(row.values)
        if not text or names in self._kinds or len(self._kinds) >= _MOST_KINDS or self._failures >= _MOST_FAILURES:
            return
        between, figures = _FIGURES.split(text)[::2], _FIGURES.findall(text)
        if figures == [str(row.step), *row.values.values()]:
            head, *rest = map(re.escape, between)
            begin = rf"{head}(\d++)"
            self._kinds[names] = re.compile(rf"{begin}{_FIGURE.join(rest)}(?={_OTHERS}{begin}(?: - |\s*\n))")
        else:
            self._failures += 1

    def _line(self, line: str, at: int) -> Iterator[Row]:
        """Read one line, which begins at a place of its block."""
        if not line or (self._names and self._again(line)):
            return
        found = _STEP.search(line) if "step:" in line or "step=" in line else None
        if found:
            yield from self._end()
            self._step, self._text = as_count(found[1]), _without_others(line[found.end() :])
            self._since, self._began = 0, at
            return
        self._since += 1
        if self._text and self._wrapped(line):
            self._text += line
            self._joined = True
            self.wrapped += 1
            self._since = 0
            return
        if self._text and not line.isspace():  # the record is over if it stood in one line
            one = ":" in self._text
            self._close()
            if one and "'" not in line:
                yield from self._end()
        if len(line) < _OWN_LINE and "/" in line and (self._step is not None or "'" in line or '"' in line):
            yield from self._own_line(line)

    def _wrapped(self, line: str) -> bool:
        """Whether a line is the rest of a record that a terminal wrapped: together they make pairs, and apart they do not."""
        if self._since > 1 or len(self._text) < 20 or len(line) > 4096 or "%|" in line:
            return False
        tail = self._text[self._text.rfind(" - ") + 3 :]
        pairs = _SEPARATOR.split(tail + line)
        if not all(map(_PAIR.fullmatch, pairs[:-1] or pairs)):
            return False
        return len(pairs) > 1 or not _PAIR.fullmatch(tail)

    def _again(self, line: str) -> bool:
        """Take a line with one metric that was there before, but for its number; whether it is."""
        head, _, text = line.rpartition(":")
        known = self._names.get(head)
        if known is None or self._text or self._since + 1 >= _GIVE_UP or len(line) >= _OWN_LINE:
            return False
        name, pattern = known
        listed = pattern is _PLAIN
        found = pattern.fullmatch(text)
        if found is None or (self._step is None if listed else name in self._values):
            return False
        self._values[name] = text if listed else found[1]
        self._since = 0
        return True

    def _keep(self, line: str, name: str, pattern: re.Pattern[str]) -> None:
        """Keep in mind what stands before the number in a line with one metric."""
        head = line.rpartition(":")[0]
        if len(self._names) < _MOST_LINES and not _STEP.search(f"{head}:1"):
            self._names[head] = (name, pattern)

    def _own_line(self, line: str) -> Iterator[Row]:
        """A line that has one metric, of a list below ``step:N`` or of a dictionary that was printed prettily."""
        text = bare(line)
        if found := _LISTED.match(text):
            if self._step is not None and self._since < _GIVE_UP:
                name, _, value = found[1].rpartition(":")
                self._values[name.strip()] = value
                self._since = 0
                self._keep(line, name.strip(), _PLAIN)
        elif found := _QUOTED.match(text):
            name, value = found[2], found[3].rstrip(",")
            if self._values and (name in self._values or "{" in text):
                yield from self._end()
            if name == _GLOBAL_STEP and self._step is None:
                self._step = whole(value)
            self._values[name] = value
            self._since = 0
            if "}" in text:
                yield from self._end()
            elif "{" not in text and name != _GLOBAL_STEP:
                self._keep(line, name, _PLAIN_QUOTED)

    def _close(self) -> None:
        """Take the pairs of the line that is open."""
        text, self._text = self._text, ""
        if "np." in text:
            text = text.replace(":np.float64(", ":")
            text = _NUMPY.sub("", text) if "np." in text else text
        pieces = _SEPARATOR.split(text) if self._joined else text.split(" - ")
        self._joined = False
        before = ""
        for piece in pieces:
            name, colon, value = piece.rpartition(":")
            if colon:
                if value != "None":
                    self._values[before + name] = value.removesuffix(")")
                before = ""
            else:  # the first piece is empty; another without a value is part of a name
                before = f"{before}{piece} - " if piece.strip() else ""

    def _end(self) -> Iterator[Row]:
        self._close()
        values, self._values = self._values, {}
        if values:
            yield Row(self._step, values)
        self._step = None


def _without_others(text: str) -> str:
    """A record without a progress bar that was drawn behind it, or Ray's count of repetitions."""
    if "%|" in text:
        text = next((piece for piece in split(text) if isinstance(piece, str)), "")
    return _REPEATED.sub("", text) if "[repeated" in text else text
