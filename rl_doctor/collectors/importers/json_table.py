"""JSON lines that all have the first one's names, with a number each: a table, read in two thirds of the time."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_NUMBER: Final = r"\s*:\s*(-?[0-9][-+0-9.eE]*|NaN|-?Infinity)\s*"
_MOST: Final = 1000
_LONGEST: Final = 1 << 16
"""Names, and characters of a line, from which its form would take longer to compile than it saves."""


class Template:
    """The form of a line, by which others like it are read without a JSON parser.

    Attributes:
        names: names of the numbers, in their order in the line.
    """

    def __init__(self, line: str, record: Mapping[str, Any]) -> None:
        """Take the form of a line.

        Args:
            line: a record of numbers.
            record: the same, parsed.
        """
        self.names = tuple(record)
        plain = len(record) <= _MOST and len(line) <= _LONGEST and all(type(value) in (float, int) for value in record.values())
        patterns = [self._pattern(ascii_only=ascii_only) for ascii_only in (True, False)] if plain else []
        self._matching = next((pattern for pattern in patterns if pattern.fullmatch(line)), None)

    def _pattern(self, *, ascii_only: bool) -> re.Pattern[str]:
        quoted = (re.escape(json.dumps(name, ensure_ascii=ascii_only)) for name in self.names)
        return re.compile(r"\s*\{\s*" + r",\s*".join(name + _NUMBER for name in quoted) + r"\}\s*")

    def table(self, lines: Sequence[str]) -> NDArray[np.float64] | None:
        """The numbers of lines, ``[n, names]``; None if a line has another form."""
        if self._matching is None:
            return None
        rows = []
        for line in lines:
            found = self._matching.fullmatch(line)
            if found is None:
                return None
            rows.append(",".join(found.groups()))
        try:
            return np.loadtxt(rows, delimiter=",", comments=None, ndmin=2)
        except ValueError:
            return None
