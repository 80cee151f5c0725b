"""A trainer's own configuration, each setting read as what it must be."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from rl_doctor.schema import RunConfig

_T = TypeVar("_T")
_FLAGS: Final[Mapping[str, bool]] = {"true": True, "false": False}


class Native:
    """Settings by their dotted names, however they were written: nested, with dotted keys as trackers export them, or both.

    A number may be written as a text. What is neither there nor None is unknown, as is what does not fit; that is noted.

    Args:
        given: the configuration as it was recorded.
        doubts: what is noted of settings that do not fit: their names -> what they are not. None for notes of one's own.
    """

    def __init__(self, given: Any, doubts: dict[str, str] | None = None) -> None:
        self.doubts: dict[str, str] = {} if doubts is None else doubts
        self._values: dict[str, Any] = {}
        self._sections: set[str] = set()
        if isinstance(given, Mapping):
            self._gather(given, "")

    def _gather(self, given: Mapping[str, Any], prefix: str) -> None:
        for key, value in given.items():
            name = f"{prefix}{key}"
            if isinstance(value, Mapping):
                self._section(name)
                self._gather(value, f"{name}.")
            elif value is not None:
                self._section(name.rpartition(".")[0])
                self._values.setdefault(name, value)

    def _section(self, name: str) -> None:
        while name and name not in self._sections:
            self._sections.add(name)
            name = name.rpartition(".")[0]

    def __contains__(self, name: str) -> bool:
        """Whether the setting is there, fitting or not."""
        return name in self._values or name in self._sections

    def number(self, name: str, otherwise: float | None = None) -> float | None:
        """A setting that is a number; ``otherwise`` where it is not there, None where it is no number."""
        return self._read(name, as_number, "a number", otherwise)

    def whole(self, name: str, otherwise: int | None = None) -> int | None:
        """A setting that is a whole number; see ``number``."""
        return self._read(name, _as_whole, "a whole number", otherwise)

    def flag(self, name: str, otherwise: bool | None = None) -> bool | None:  # noqa: FBT001 - a default, as of the others
        """A setting that is true or false; see ``number``."""
        return self._read(name, as_flag, "true or false", otherwise)

    def words(self, name: str) -> tuple[str, ...] | None:
        """A setting that is a word or a list of words; see ``number``."""
        return self._read(name, _as_words, "a word or a list of words", None)

    def is_flag(self, name: str) -> bool:
        """Whether the setting is true or false, and nothing else."""
        value = self._values.get(name)
        return isinstance(value, bool) or as_flag(value if isinstance(value, str) else None) is not None

    def word(self, name: str, otherwise: str | None = None) -> str | None:
        """A setting that is a word; see ``number``."""
        return self._read(name, as_word, "a word", otherwise)

    def numbers(self, name: str, count: int) -> tuple[float, ...] | None:
        """A setting that is a list of ``count`` numbers; see ``number``."""
        return self._read(name, lambda value: _as_numbers(value, count), f"a list of {count} numbers", None)

    def choice(self, name: str, known: Collection[str], otherwise: str) -> str:
        """A setting that is one of some words; ``otherwise`` where it is not there, too, or none of them, which is noted."""
        if name not in self:
            return otherwise
        value = self._values.get(name)
        if isinstance(value, str) and value in known:
            return value
        self.doubts[name] = f"{', '.join(list(known)[:-1])} or {list(known)[-1]}"
        return otherwise

    def parts(self, name: str, otherwise: tuple[float, ...]) -> tuple[float, ...] | None:
        """A setting that is a number, or several with ``_`` between them; see ``number``."""
        return self._read(name, _as_parts, "a number or two", otherwise)

    def text(self, name: str) -> str | None:
        """A setting that is a number or a word, as a text; see ``number``."""
        return self._read(name, _as_text, "a number or a word", None)

    def section(self, name: str) -> bool | None:
        """Whether there are settings of that name and a dot; None where there is something else of that name."""
        if name in self._values:
            self.doubts[name] = "a section"
            return None
        return name in self._sections

    def told(self) -> Iterator[str]:
        """What does not fit, of the settings that were read; a sentence each."""
        for name, kind in self.doubts.items():
            yield f"config.native.{name}: not {kind}, so what depends on it is not known"

    def _read(self, name: str, read: Callable[[Any], _T | None], kind: str, otherwise: _T | None) -> _T | None:
        if name not in self:
            return otherwise
        value = read(self._values.get(name))
        if value is None:
            self.doubts[name] = kind
        return value


def as_number(value: Any) -> float | None:
    """A number, also one that is written as a text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return None if math.isnan(number) else number


def _as_whole(value: Any) -> int | None:
    number = as_number(value)
    return int(number) if number is not None and math.isfinite(number) and number == int(number) else None


def as_flag(value: Any) -> bool | None:
    """True or false, also as a text or as 1 and 0; None for anything else."""
    if isinstance(value, str):
        return _FLAGS.get(value.lower())
    return bool(value) if isinstance(value, int | float) and value in (0, 1) else None


def as_word(value: Any) -> str | None:
    """A text; None for anything else."""
    return value if isinstance(value, str) else None


def _as_words(value: Any) -> tuple[str, ...] | None:
    found = (value,) if isinstance(value, str) else value
    return tuple(found) if isinstance(found, list | tuple) and all(isinstance(one, str) for one in found) else None


def _as_numbers(value: Any, count: int) -> tuple[float, ...] | None:
    if not isinstance(value, list | tuple) or len(value) != count:
        return None
    found = tuple(number for one in value if (number := as_number(one)) is not None)
    return found if len(found) == count else None


def _as_parts(value: Any) -> tuple[float, ...] | None:
    if not isinstance(value, str):
        number = as_number(value)
        return None if number is None else (number,)
    found = [as_number(part) for part in value.split("_") if part.strip()]
    return tuple(one for one in found if one is not None) if found and None not in found else None


def _as_text(value: Any) -> str | None:
    return str(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else None


Pair = tuple[tuple[str, ...], str]
"""Names of a setting, the first that is there counts, and the field of ``RunConfig`` that says the same."""


def contradictions(native: Native, config: RunConfig, same: Iterable[Pair]) -> Iterator[str]:
    """Where a trainer's own configuration and its canonical form say two things; a sentence each."""
    for names, field in same:
        name, told = next((one for one in names if one in native), ""), getattr(config, field)
        if not name or told is None:
            continue
        own = native.word(name) if isinstance(told, str) else native.number(name)
        if own is not None and own != told:
            yield f"config.native.{name} is {own}, but config.{field} is {told}: the former counts"


def nested(native: Any, name: str) -> Any:
    """A setting of a trainer's own configuration, nested or with dotted keys; None for none."""
    if not isinstance(native, Mapping):
        return None
    if native.get(name) is not None:
        return native[name]
    parts = name.split(".")
    for end in range(1, len(parts)):
        found = nested(native.get(".".join(parts[:end])), ".".join(parts[end:]))
        if found is not None:
            return found
    return None
