"""Says things in the reader's language. Codes, metric names, columns and JSON stay English."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Language = Literal["en", "zh"]
LANGUAGES: Final[tuple[Language, ...]] = ("en", "zh")
_UNITS: Final = ((86_400, "days"), (3_600, "hours"), (60, "minutes"))
_FROM: Final = 2
"""A duration is told in a unit from twice that unit on."""


@dataclass(frozen=True, slots=True)
class Speaker:
    """Speaks one language.

    Attributes:
        language: the language.
    """

    language: Language = "en"

    def say(self, key: str, **values: Any) -> str:
        """The message of the app with this key, its placeholders filled.

        Args:
            key: ``<file>.<message>`` of ``catalogue/<file>.toml``.
            values: what the placeholders stand for.

        Raises:
            KeyError: there is no such message, or it has a placeholder without a value.
        """
        return messages()[key][self.language].format(**values)

    def said(self, messages: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
        """Some messages, each a key with its values, one after the other."""
        return " · ".join(self.say(key, **values) for key, values in messages)

    def duration(self, seconds: float) -> str:
        """A duration in one unit."""
        size, name = next(((size, name) for size, name in _UNITS if seconds >= _FROM * size), (1, "seconds"))
        return self.say(f"app.{name}", n=int(max(seconds, 0) // size))

    def head(self, name: str) -> str:
        """The head of a table's column: in this language where it is a word of the app and not of the run."""
        key = f"app.head_{name.replace(' ', '_')}"
        return self.say(key) if key in messages() else name

    def tell(self, text: str) -> str:
        """A sentence of a report (a finding, a cause, a sign, advice) in this language; in English where it is not translated."""
        if self.language == "en":
            return text
        from rl_doctor.i18n.telling import told

        return told(text)


@cache
def messages() -> dict[str, dict[str, str]]:
    """All messages of the app: key -> language -> text."""
    found: dict[str, dict[str, str]] = {}
    for entry in resources.files("rl_doctor.i18n").joinpath("catalogue").iterdir():
        if entry.name.endswith(".toml"):
            topic = entry.name.removesuffix(".toml")
            found |= {f"{topic}.{name}": texts for name, texts in tomllib.loads(entry.read_text("utf-8")).items()}
    return found
