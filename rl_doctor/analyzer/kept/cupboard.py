"""Reads and writes sheets by name in the places of a run, and notes what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from rl_doctor.analyzer.kept.sheet import DamagedError, NewerError, Sheet, read, write

SUFFIX: Final = ".states"
_T = TypeVar("_T")


class Cupboard:
    """The sheets of a run.

    Attributes:
        notes: what the user should be told: what could not be read, and why nothing is kept.

    Args:
        places: folders, the one to write to first.
    """

    def __init__(self, places: Sequence[Path]) -> None:
        self.notes: list[str] = []
        self._places = tuple(places)
        self._locked: set[str] = set()
        self._damaged: list[Path] = []
        self._refused = False

    @property
    def where(self) -> Path:
        """The first place that is there."""
        return next((folder for folder in self._places if folder.is_dir()), self._places[0])

    def load(self, name: str, use: Callable[[Sheet], _T]) -> _T | None:
        """What ``use`` makes of a sheet; None where there is none, or what is there cannot be used."""
        for folder in self._places:
            path = folder / f"{name}{SUFFIX}"
            try:
                sheet = read(path)
                if sheet is not None:
                    return use(sheet)
            except NewerError:
                self._locked.add(name)
                self.note(f"{path}: states of another version of rl-doctor are left alone, and everything is read")
            except DamagedError:
                self._damaged.append(path)
                self.note(f"{path}: damaged; what it held is computed anew")
        return None

    def may_save(self, name: str) -> bool:
        """Whether a sheet may be written: not over one of another version."""
        return name not in self._locked

    def save(self, name: str, sheet: Sheet) -> None:
        """Write a sheet to the first place that takes it; where none does, that is noted."""
        if not self.may_save(name):
            return
        while self._damaged:  # what it held may be kept under another name from now on, and it would be told of for ever
            with suppress(OSError):
                self._damaged.pop().unlink(missing_ok=True)
        why = ""
        for folder in self._places:
            path = folder / f"{name}{SUFFIX}"
            try:
                if not folder.is_dir():
                    folder.mkdir(mode=0o700, parents=True)
                write(path, sheet)
            except OSError as error:
                why = why or f"{path}: {error.strerror or error}"
            else:
                return
        if not self._refused:  # of one of them: the others fail alike
            self._refused = True
            self.note(f"states are not kept ({why}): the next check reads all tokens again; --no-cache says nothing of it")

    def note(self, text: str) -> None:
        """Tell the user something, once."""
        if text not in self.notes:
            self.notes.append(text)
