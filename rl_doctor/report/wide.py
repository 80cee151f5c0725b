"""Breaks lines of text with wide characters, which has no blanks to break at: Chinese, Japanese, Korean."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Final

from rich.cells import cell_len

_OPENING: Final = "\u3008\u300a\u300c\u300e\u3010\uff08"
_CLOSING: Final = "\u3001\u3002\u3009\u300b\u300d\u300f\u3011\uff01\uff09\uff0c\uff1a\uff1b\uff1f"
_WIDE: Final = "\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe4f\uff00-\uff60"


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """A wide character, and what is kept on one line.

    That is such a character or a word, with the brackets before it and the marks and blanks behind it. They take 12 ms to
    compile, and most reports have no such character.
    """
    unit = f"[{_OPENING}]*(?:[{_WIDE}]|[^{_WIDE}\\s]+)[{_CLOSING}]*\\s*"
    return re.compile(f"[{_WIDE}]"), re.compile(unit)


def folded(text: str, width: int) -> str:
    """The text with line breaks such that no line is wider than ``width`` cells; as it is if it has no wide character.

    A line may break between any two wide characters, but not before a mark that closes nor behind one that opens.
    """
    if text.isascii() or _patterns()[0].search(text) is None:
        return text
    return "\n".join(line for part in text.split("\n") for line in _lines(part, max(width, 8)))


def _lines(text: str, width: int) -> Iterator[str]:
    line = ""
    for unit in _patterns()[1].findall(text):
        if line and cell_len(line) + cell_len(unit.rstrip()) > width:
            yield line.rstrip()
            line = ""
        line += unit
    yield line.rstrip()
