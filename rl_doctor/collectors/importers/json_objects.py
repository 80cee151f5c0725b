"""One JSON object per line, as trainers append them to a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rl_doctor.collectors.importers.console import lines, seen
from rl_doctor.collectors.importers.registry import Sample


class Objects:
    """The objects of a file.

    Attributes:
        damaged: lines that are none, once the file was read to its end.
    """

    def __init__(self, path: Path) -> None:
        self.damaged = 0
        self._path = path
        self._last = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for line in lines(self._path):
            found = parsed(line)
            self._last = found is None
            if found is None:
                self.damaged += 1
            else:
                yield found

    def notes(self) -> Iterator[str]:
        """What there is to say of lines that are no objects."""
        if self.damaged == 1 and self._last:
            yield "the last line is cut short and left out"
        elif self.damaged:
            yield f"lines that are no JSON objects, left out: {self.damaged:,}"


def parsed(line: str) -> dict[str, Any] | None:
    """The object that a line is, or None."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def first(sample: Sample, needed: str) -> dict[str, Any] | None:
    """The first object of a sample that holds ``needed``; None if the first lines are no objects."""
    text = seen(sample)
    if needed not in text or not text.lstrip().startswith("{"):
        return None
    for line in text.split("\n", 50)[:50]:
        if needed in line:
            return parsed(line)
    return None
