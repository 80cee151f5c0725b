"""Dictionaries that a training prints, one per log, among whatever else stands in a console's text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from math import gcd
from pathlib import Path
from typing import Any, Final

from rl_doctor.collectors.importers.bars import Bars, split
from rl_doctor.collectors.importers.console import bare, lines
from rl_doctor.collectors.importers.literal import Template, closing, pieces_of, record
from rl_doctor.collectors.importers.numbers import number, whole
from rl_doctor.collectors.importers.patterns import when_used
from rl_doctor.collectors.importers.rows import Row
from rl_doctor.collectors.importers.swift_log import COUNTED, PROGRESS
from rl_doctor.frozen import frozen

_OPENING: Final = when_used(r"\{['\"][^'\"\n]{1,200}['\"]: ")
_NAMED: Final = ("step", "global_step", "train/global_step")
_HINTS: Final = ("epoch", "step", "loss", "iteration")
_SUMMARY: Final = ("train_runtime", "train_steps_per_second")
_ROUNDED: Final = 0.005
"""The error of a number of steps that is a product of two rounded numbers."""
_LONGEST: Final = 1 << 16
"""Characters of a dictionary that is printed over several lines."""


def printed_rows(path: Path) -> tuple[Iterator[Row], tuple[str, ...]]:
    """The rows that a training printed, and what there is to say of them.

    Their step is told by themselves, or by the progress bar beside them, or they are counted.

    Raises:
        InputError: the text cannot be read.
    """
    reader = _Reader()
    for line in lines(path):
        reader.line(line)
    said = tuple(reader.end())
    steps, notes = _steps(reader)
    return reader.placed(steps), (*notes, *said)


@frozen
class _Kind:
    """What rows that hold the same names have in common: which value is the step, and whether they are of an evaluation."""

    names: tuple[str, ...]
    template: Template
    step: int | None
    evaluation: bool

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> _Kind | None:
        """The kind of a row; None if it is none of a training."""
        names = tuple(row)
        step = next((names.index(name) for name in (*COUNTED, *_NAMED) if name in row), None)
        trained = "epoch" in row or step is not None or ("loss" in row and ("learning_rate" in row or "grad_norm" in row))
        if len(row) < 2 or not trained:
            return None
        evaluation = "loss" not in row and any(name.startswith("eval_") for name in names)
        return cls(names, Template(names), step, evaluation)


@frozen
class _Printed:
    """A row: its kind, its values, and the step that it names."""

    kind: _Kind
    values: tuple[Any, ...]
    step: int | None


class _Reader:
    """Finds rows and bars in lines.

    Attributes:
        rows: what was printed, in order.
        bars: what progress bars showed.
        trained: optimizer steps of the whole training, as its summary at the end tells them; 0 without one.
    """

    def __init__(self) -> None:
        self.rows: list[_Printed] = []
        self.bars = Bars()
        self.trained = 0.0
        self._known: dict[int, _Kind] = {}
        self._open = ""

    def line(self, line: str) -> None:
        """Read one line."""
        if "%|" in line:
            for piece in split(line):
                if isinstance(piece, str):
                    self._text(piece)
                else:
                    self.bars.saw(*piece)
        elif self._open or ("{" in line and not self._again(line)):
            self._text(line)

    def _again(self, line: str) -> bool:
        """Take a line that is a row of a kind that was there before; whether it is."""
        if line.find("}") != len(line) - 1 or len(line) > _LONGEST:
            return False
        pieces = pieces_of(line)
        known = self._known.get(len(pieces))
        values = None if known is None else known.template.values(pieces)
        if known is None or values is None:
            return False
        self._print(known, values)
        return True

    def _text(self, text: str) -> None:
        start = 0
        if self._open:
            if not _OPENING.search(text):
                self._continue(text)
                return
            self._open = ""
        while found := _OPENING.search(text, start):
            end = closing(text, found.start())
            if end < 0:
                if len(text) - found.start() < _LONGEST:
                    self._open = text[found.start() :]
                return
            self._found(text[found.start() : end + 1])
            start = end + 1

    def _continue(self, text: str) -> None:
        """A dictionary that was printed over several lines, or into which a bar was drawn."""
        if not text.strip():
            return
        self._open += bare(text)
        end = closing(self._open, 0)
        if end >= 0:
            self._found(self._open[: end + 1])
        if end >= 0 or len(self._open) > _LONGEST:
            self._open = ""

    def _found(self, text: str) -> None:
        if len(text) > _LONGEST or not any(hint in text for hint in _HINTS):
            return
        pieces = pieces_of(text)
        if (known := self._known.get(len(pieces))) is not None and (values := known.template.values(pieces)) is not None:
            self._print(known, values)
            return
        row = record(text)
        if any(name in row for name in _SUMMARY):
            rates = [number(row.get(name)) for name in _SUMMARY]
            self.trained = (rates[0] or 0.0) * (rates[1] or 0.0)
            return
        kind = _Kind.of(row)
        if kind is None:
            return
        values = kind.template.values(pieces)
        if values is not None:
            self._known[len(pieces)] = kind
        self._print(kind, tuple(row.values()) if values is None else values)

    def _print(self, kind: _Kind, values: tuple[Any, ...]) -> None:
        step = None if kind.step is None else whole(str(values[kind.step]).partition("/")[0])
        self.rows.append(_Printed(kind, values, step))
        self.bars.row()

    def end(self) -> Iterator[str]:
        """Leave out what other ranks printed, where each row stands several times in a row; say what there is to say."""
        runs = [sum(1 for _ in same) for _, same in groupby(self.rows, lambda row: (row.kind.names, row.values))]
        ranks = gcd(*runs)
        if ranks > 1 and len(runs) > 1:
            yield f"each row was printed {ranks} times (by several ranks): {len(self.rows) - len(self.rows) // ranks:,} left out"
            self.rows = self.rows[::ranks]
            self.bars.thin(ranks)
        if self._open:
            yield "the last row is cut short and left out"

    def placed(self, steps: Mapping[int, int]) -> Iterator[Row]:
        """The rows with their steps."""
        for index, row in enumerate(self.rows):
            values = dict(zip(row.kind.names, row.values, strict=True))
            if row.kind.step is not None:
                values = {name: value for name, value in values.items() if name not in PROGRESS}
            yield Row(steps.get(index, row.step), values)


def _steps(reader: _Reader) -> tuple[dict[int, int], tuple[str, ...]]:
    """The step of each row by its index, where the row does not name it, and how it was found."""
    unnamed = [index for index, row in enumerate(reader.rows) if row.step is None]
    if not unnamed:
        return {}, ()
    training = [index for index in unnamed if not reader.rows[index].kind.evaluation] or unnamed
    keys = reader.bars.training(training)
    beside = reader.bars.steps(training, keys) if keys else None
    if beside is not None:
        return {index: beside[index] for index in unnamed if index in beside}, (
            "no row names its step: the progress bar beside it tells it",
        )
    last = reader.bars.last(keys) or reader.trained
    every = round(last / len(training))
    if every < 1 or abs(last / len(training) - every) > _ROUNDED * every:
        every = 1
        note = "no row names its step, and no progress bar stands beside: rows of training are counted from 1"
    else:
        note = (
            f"no row names its step, and no progress bar stands beside: the training's {last:,.0f} steps are shared out evenly "
            f"among {len(training):,} rows"
        )
    counted: dict[int, int] = {}
    done, rows = 0, set(training)
    for index in unnamed:
        done += index in rows
        counted[index] = every * done
    return counted, (note,)
