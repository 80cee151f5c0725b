"""Which templates a text was made with, and what stands at their placeholders."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from rl_doctor.i18n.templates import sentences

NUMBER: Final = r"[-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?%?|[-+]?inf|[Nn]a[Nn]"
HOLE: Final = re.compile(r"\{(\d+)(#?)\}")
_NUMERIC: Final = re.compile(NUMBER)
_ANYTHING: Final = re.compile(".*", re.DOTALL)
_ONE_CLAUSE: Final = re.compile("[^,;:()]*")
_FEW_WORDS: Final = re.compile(r"(?:[^\s,;:()]+ ?){0,8}")
"""What may stand at a placeholder."""
_FORMS: Final = re.compile("⟨([^⟩]*)⟩")
_WORD: Final = re.compile(r"[A-Za-z]+")
_WEAKEST: Final = 4
_WEAK: Final = 6
"""Letters up to which a template's own words say little: what stands at its placeholders is then a few words, or one clause."""
_BETWEEN: Final = ";,:( "
"""What may begin a placeholder that stands right behind another; a new clause is the likeliest."""
_MOST_READINGS: Final = 48
"""Readings of a text as one template that are tried."""


@dataclass(frozen=True, slots=True)
class _Hole:
    """A placeholder of a template: its number, and whether a number stands there."""

    name: str
    numeric: bool


@dataclass(slots=True)
class _Effort:
    """How much is still done to read one text as one template."""

    left: int = 1000

    def spent(self) -> bool:
        """Whether it is used up; each question costs."""
        self.left -= 1
        return self.left < 0


@dataclass(slots=True, eq=False)
class Template:
    """A template with placeholders.

    Attributes:
        english: as it stands in the source, with one form of each word that has two.
        chinese: what is filled in its place.
        words: its own words.
        size: their letters.
    """

    english: str
    chinese: str
    words: frozenset[str] = field(init=False)
    size: int = field(init=False)
    _parts: list[str | _Hole] = field(init=False)

    def __post_init__(self) -> None:
        own = HOLE.sub(" ", self.english)
        self.words = frozenset(_words(own))
        self.size = len(own.replace(" ", ""))
        self._parts = []
        end = 0
        for hole in HOLE.finditer(self.english):
            self._parts += [self.english[end : hole.start()], _Hole(hole.group(1), bool(hole.group(2)))]
            end = hole.end()
        self._parts = [part for part in (*self._parts, self.english[end:]) if part]

    def matches(self, text: str) -> Iterator[dict[str, str]]:
        """What may stand at its placeholders in ``text``, if it was made with it; the likeliest first."""
        at = 0
        for part in self._parts[1:]:  # a quick look, whether its own words stand there in their order
            if isinstance(part, str):
                at = text.find(part, at)
                if at < 0:
                    return
        yield from islice(self._read(0, text, 0, _Effort()), _MOST_READINGS)

    @property
    def _phrase(self) -> re.Pattern[str]:
        return _FEW_WORDS if self.size <= _WEAKEST else _ONE_CLAUSE if self.size <= _WEAK else _ANYTHING

    def _read(self, index: int, text: str, at: int, effort: _Effort) -> Iterator[dict[str, str]]:
        """The readings of what is left of the text, from a part on."""
        if index == len(self._parts):
            if at == len(text):
                yield {}
            return
        part = self._parts[index]
        if isinstance(part, str):
            if text[at : at + len(part)] == part or (not at and text[: len(part)].lower() == part.lower()):
                yield from self._read(index + 1, text, at + len(part), effort)
            return
        for end in self._ends(index, text, at):
            if effort.spent():
                return
            value = text[at:end]
            if (_NUMERIC if part.numeric else self._phrase).fullmatch(value) is not None:
                for rest in self._read(index + 1, text, end, effort):
                    yield {part.name: value, **rest}

    def _ends(self, index: int, text: str, at: int) -> Iterator[int]:
        """Where what stands at a placeholder may end: at the next part; between two placeholders at the end of a word."""
        if index + 1 == len(self._parts):
            yield len(text)
            return
        after = self._parts[index + 1]
        if isinstance(after, str):
            yield from _places(after, text, at)
            return
        following = next((part for part in self._parts[index + 2 :] if isinstance(part, str)), None)
        here = {len(text), *(_places(following, text, at) if following else ())}
        ends = [end for end in range(at + 1, len(text) + 1) if end in here or text[end] in _BETWEEN]
        yield from sorted(ends, key=lambda end: text[end : end + 1] != _BETWEEN[0])
        yield at


def _places(part: str, text: str, start: int) -> Iterator[int]:
    """Where a part stands in a text, from a place on."""
    found = text.find(part, start)
    while found >= 0:
        yield found
        found = text.find(part, found + 1)


class Index:
    """The templates by the rarest of their words."""

    def __init__(self) -> None:
        self.fixed: dict[str, str] = {}
        made = []
        for source, chinese in sentences().items():
            for english in _forms(source):
                if HOLE.search(english):
                    made.append(Template(english, chinese))
                else:
                    self.fixed[english.lower()] = chinese
        often: dict[str, int] = defaultdict(int)
        for template in made:
            for word in template.words:
                often[word] += 1
        self._by_word: dict[str, list[Template]] = defaultdict(list)
        for template in made:
            self._by_word[min(template.words, key=lambda word: (often[word], word))].append(template)

    def candidates(self, text: str) -> list[Template]:
        """The templates whose words the text has, the longest first."""
        words = frozenset(_words(text))
        found = [one for word in words for one in self._by_word.get(word, ()) if one.words <= words]
        return sorted(found, key=lambda one: -one.size)


def _forms(template: str) -> Iterator[str]:
    """A template with each of the forms that a word of it has."""
    found = _FORMS.search(template)
    if found is None:
        yield template
        return
    for form in found.group(1).split("|"):
        yield from _forms(f"{template[: found.start()]}{form}{template[found.end() :]}")


def _words(text: str) -> Iterator[str]:
    return (word.lower() for word in _WORD.findall(text))
