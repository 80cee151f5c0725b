"""Dictionaries as Python prints them, read without evaluating them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from rl_doctor.collectors.importers.patterns import when_used

_WRAPPED: Final = when_used(
    r"\b(?:np|numpy|torch|jnp)\.\w+\(([^()]*)\)|\btensor\(([^(),]*)[^()]*\)|\barray\(([^()\[\],]*)[^()\[\]]*\)"
)
_WORD: Final = when_used(r"(?<=: )(-?)(nan|inf|None|True|False)\b")
_WORDS: Final = {"nan": "NaN", "inf": "Infinity", "None": "null", "True": "true", "False": "false"}
_BRACE: Final = when_used(r"[{}]")
_PAIR: Final = when_used(r"""(['"])((?:(?!\1).){1,300})\1\s*:\s*("[^"]*"|'[^']*'|[^,{}\[\]'"]+)""")


def record(text: str) -> dict[str, Any]:
    """The members of a printed dictionary or JSON object; what cannot be read of it is left out.

    Numbers of numpy and torch count as numbers, nested dictionaries are read where they are well formed.

    Args:
        text: from its brace to its closing brace.
    """
    if "(" in text:
        text = _WRAPPED.sub(lambda found: found[1] or found[2] or found[3] or '"?"', text)
    try:
        return _members(json.loads(text if '"' in text else text.replace("'", '"')))
    except (ValueError, RecursionError):
        pass  # Python's words stand in it
    worded = _WORD.sub(lambda found: found[1] + _WORDS[found[2]], text)
    try:
        return _members(json.loads(worded if '"' in worded else worded.replace("'", '"')))
    except (ValueError, RecursionError):
        pairs = ((name, value.strip(" '\"\t\n")) for _, name, value in _PAIR.findall(text))
        return {name: value for name, value in pairs if value}


def _members(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


class Template:
    """Reads records of numbers whose members are all called alike, in a fifth of the time that ``record`` takes.

    Args:
        names: what the members are called, in order.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._openings = [f"{name}': " for name in names]
        self._starts = [len(opening) for opening in self._openings]

    def values(self, pieces: Sequence[str]) -> tuple[str, ...] | None:
        """The values of a dictionary as texts, without quotes; None if the members are called otherwise.

        Args:
            pieces: a dictionary as ``pieces_of`` splits it.
        """
        if len(pieces) != len(self._openings) or not all(map(str.startswith, pieces, self._openings)):
            return None
        values = [piece[start:] for piece, start in zip(pieces, self._starts, strict=True)]
        return tuple([value.strip("'") for value in values] if "'" in "".join(values) else values)


def pieces_of(text: str) -> list[str]:
    """The members of a printed dictionary, if it may be one of numbers alone; else nothing."""
    if not text.startswith("{'") or '"' in text or "(" in text or "None" in text or "{" in text[1:] or "[" in text:
        return []
    return text[2:-1].split(", '")


def closing(text: str, start: int) -> int:
    """Where the brace closes that opens at ``start``; -1 if it does not."""
    end = text.find("}", start)
    if end < 0 or text.find("{", start + 1, end) < 0:
        return end
    depth = 0
    for found in _BRACE.finditer(text, start):
        depth += 1 if found[0] == "{" else -1
        if depth == 0:
            return found.start()
    return -1
