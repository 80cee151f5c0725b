"""Any text log whose lines hold a step and numbers by name: ``step 10 | loss=0.5 | reward: 0.3``, or a progress bar's postfix."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rl_doctor.collectors.importers.bars import BAR
from rl_doctor.collectors.importers.console import lines, seen
from rl_doctor.collectors.importers.numbers import as_count
from rl_doctor.collectors.importers.patterns import when_used
from rl_doctor.collectors.importers.registry import Fit, Imported, Sample, importer
from rl_doctor.collectors.importers.rows import Row, assemble
from rl_doctor.frozen import frozen

_STEP: Final = when_used(
    r"(?<![A-Za-z_])(?:global[ _-]?|train(?:ing)?[ _-]?|optim(?:izer)?[ _-]?|update[ _-]?)?(?:step|iteration|iter|update)s?"
    r"(?:\s*[:=#]\s*|\s+|\s*[\[(]\s*)(\d{1,12})(?![\d.])(?:\s*/\s*(\d+))?",
    re.IGNORECASE,
)
_EPOCH: Final = when_used(r"(?<![A-Za-z_])epoch(?:\s*[:=#]\s*|\s+|\s*[\[(]\s*)(\d{1,6})(?![\d.])", re.IGNORECASE)
_PAIR: Final = when_used(
    r"(?:^|(?<=[\s,;|(\[{]))([A-Za-z_][\w./@%-]{0,80}(?: [A-Za-z_(][\w./@%()-]{0,40}){0,3}) ?(?:[:=]|: |=) ?"
    r"([-+]?(?:\d[\d.]{0,40}(?:[eE][-+]?\d{1,3})?|nan|inf)%?)(?=[\s,;|)\]}]|$|[A-Za-z]{1,3}(?:[\s,;|)\]}]|$))"
)
_FIGURE: Final = r"([-+]?(?:\d[\d.]{0,40}(?:e[-+]?\d{1,3})?|nan|inf)%?)(?:[a-z]{1,3})?(?:, |\s*$)"
_PLAIN_PAIR: Final = when_used(rf"([a-z_][\w./@% -]{{0,120}}?) {_FIGURE}", re.IGNORECASE)
_PLAIN: Final = when_used(
    rf":\s*(?:[a-z_][\w./@%-]{{0,80}}(?: [a-z_][\w./@%-]{{0,40}}){{0,3}} {_FIGURE}){{2,100}}", re.IGNORECASE
)
"""Names and numbers with nothing but a blank between: ``iter 10: loss 4.25, time 120.00ms, mfu 31.20%``."""
_FEWEST: Final = 3
"""Numbers by name from which a line is a record, whatever else is in it, and lines from which a text is a log."""
_FEWEST_ALONE: Final = 2
"""Numbers by name from which a line is a record that has no word beside them behind its step."""
_WORD: Final = when_used(r"[^\W\d_]")
_JSON: Final = when_used(r"\s*(?:$|[{<]|\[(?![^\[\]{}\"\n]*\][ \t]*[^\s,\]]))")
"""What a text begins with that is JSON or HTML; a date or a level in brackets with text behind it is neither."""
_LONGEST: Final = 20_000


def _recognises(sample: Sample) -> Fit:
    text = seen(sample)
    if not is_lines(text):
        return Fit.NO
    steps: dict[tuple[str, ...], set[tuple[int | None, int]]] = {}
    for line in text.split("\n"):
        if (found := _record(line)) is not None:
            seen_at = steps.setdefault(tuple(found.values)[:_FEWEST], set())
            seen_at.add((found.epoch, found.step))
            if len(seen_at) >= _FEWEST:
                return Fit.CONTAINER
    return Fit.NO


def is_lines(text: str) -> bool:
    """Whether a text is lines of words, and not JSON, HTML or nothing."""
    return not _JSON.match(text)


@importer(
    "text-log",
    "text lines with a step and numbers by name",
    _recognises,
    marks=("step", "Step", "STEP", "iter", "Iter", "pdate", "%|"),
    last=True,
)
def read(path: Path) -> Imported:
    """Read every line that has a step and at least three numbers by name, or two and no word beside them.

    Names that stand in a single line are left out.
    """
    reader = _Reader()
    rows = list(reader.rows(path))
    often = Counter(name for row in rows for name in row.values)
    rare = {name for name, times in often.items() if times == 1 and len(rows) > _FEWEST}
    kept = (Row(row.step, {name: value for name, value in row.values.items() if name not in rare}) for row in rows)
    found = assemble(kept, path)
    return Imported(found.log, notes=(*reader.notes(), *found.notes))


@frozen
class _Record:
    """What a line tells."""

    step: int
    steps: int | None
    epoch: int | None
    values: dict[str, str]
    drawn: bool


def _record(line: str) -> _Record | None:
    if len(line) > _LONGEST or ("=" not in line and ":" not in line):
        return None
    drawn = "%|" in line
    found = BAR.search(line) if drawn else _STEP.search(line)
    if found is None:
        return None
    text = found[3] if drawn else f"{line[: found.start()]} {line[found.end() :]}"
    before = line[: found.start()] if drawn else line
    plain = None if drawn else _PLAIN.fullmatch(line[found.end() :])
    pairs = _PAIR.findall(text) if plain is None else _PLAIN_PAIR.findall(line[found.end() :].lstrip(": "))
    values = {name: value for name, value in pairs if name.lower() not in ("epoch", "step", "it", "eta")}
    alone = plain is not None or not (drawn or _WORD.search(_PAIR.sub("", line[found.end() :])))
    if len(values) < (_FEWEST_ALONE if alone else _FEWEST):
        return None
    epoch = _EPOCH.search(before)
    steps = as_count(found[2]) if found[2] else None
    return _Record(as_count(found[1]), steps, as_count(epoch[1]) if epoch else None, values, drawn)


def numbers_without_step(text: str) -> bool:
    """Whether lines of a text have numbers by name, and none of them a step."""
    told = [line for line in text.split("\n") if len(line) <= _LONGEST and len(_PAIR.findall(line)) >= _FEWEST]
    return len(told) >= _FEWEST and not any(map(_STEP.search, told))


class _Reader:
    """Finds records, and counts steps on where they begin anew with each epoch."""

    def __init__(self) -> None:
        self._drawn = False
        self._offset = 0
        self._before: _Record | None = None

    def rows(self, path: Path) -> Iterator[Row]:
        """Every record of a text."""
        for line in lines(path):
            found = _record(line)
            if found is None:
                continue
            before, self._before = self._before, found
            if before is not None:
                later = before.epoch is not None and found.epoch is not None and found.epoch > before.epoch
                if later and found.step <= before.step:
                    self._offset += before.steps or before.step
                elif found.drawn and found.step == before.step and found.epoch == before.epoch:
                    continue  # the bar was drawn again
            self._drawn |= found.drawn
            yield Row(self._offset + found.step, found.values)

    def notes(self) -> Iterator[str]:
        """What there is to say of the steps."""
        if self._drawn:
            yield "read off a progress bar: its steps may be off by one"
        if self._offset:
            yield "steps begin anew with each epoch: they are counted on"
