"""Regular expressions that are compiled when they are first used: of the sixty of all formats, one log needs a few."""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast


def when_used(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """What ``re.compile`` gives, to be called by its methods."""
    return cast("re.Pattern[AnyStr]", _WhenUsed(text, flags))


class _WhenUsed:
    """Has the attributes of the pattern, each from the first time on that it is asked for."""

    def __init__(self, text: str | bytes, flags: int) -> None:
        self._text, self._flags = text, flags

    def __getattr__(self, name: str) -> Any:
        found = getattr(re.compile(self._text, self._flags), name)  # which keeps what it has compiled
        setattr(self, name, found)
        return found
