"""Tells the sentences of a report in Chinese: finds the templates that a sentence was made with, and fills the Chinese ones.

A text is cut from the outside in. Templates whose own words it has are tried, the longest first; what stands at their
placeholders is told in turn. What is no template is taken for a composition: sentences, clauses after a colon or a semicolon,
lists, something in brackets. Numbers, names, columns and codes stay as they are, and so does a sentence of which too much is
unknown.
"""
# ruff: noqa: RUF001 - the wide marks of Chinese are meant

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final

from rl_doctor.i18n.matching import HOLE, NUMBER, Index, Template
from rl_doctor.i18n.templates import peeled, terms

_CODE: Final = re.compile(
    rf"(?:{NUMBER})(?:/token)?|\W+|.*[\d_./=<>`|*#@\\~].*|[A-Z][A-Z\d+-]*s?|[A-Z]?[a-z]+[A-Z]\w*|[a-z\d]+(?:-[a-z\d]+)+"
)
"""What stays as it is: numbers, signs, names with a digit, an underscore or a dot, and names in capitals."""
_SEPARATORS: Final = (
    (re.compile(r"(?<=[^.\s][^.\s])\. (?=[A-Z`|])"), "。"),
    (re.compile(r"; or "), "；或者"),
    (re.compile(r"; "), "；"),
    (re.compile(r": "), "："),
    (re.compile(r", and "), "，并且"),
    (re.compile(r", or "), "，或"),
    (re.compile(r", "), "，"),
    (re.compile(r" · "), " · "),
    (re.compile(r" and "), "和"),
    (re.compile(r" or "), "或"),
    (re.compile(r" \+ "), " + "),
)
"""How sentences, clauses and lists are joined, from the loosest to the closest."""
_NARROW: Final = {
    "。": ". ",
    "；或者": "; or ",
    "；": "; ",
    "：": ": ",
    "，并且": ", and ",
    "，或": ", or ",
    "，": ", ",
    "和": " and ",
    "或": " or ",
}
"""How names are joined that stay as they are."""
_BRACKET: Final = re.compile(r"(.*?)\s?\(([^()]*(?:\([^()]*\)[^()]*)*)\)")
_MARKS: Final = str.maketrans({",": "，", ";": "；", ":": "：", ".": "。"})
_CJK: Final = r"\u3400-\u9fff"
_WIDE: Final = rf"{_CJK}，。；：、（）「」？！"
_TIDY: Final = (
    (re.compile(rf"(?<=[{_WIDE}]) +(?=[{_WIDE}])"), ""),
    (re.compile(r"(?<=[，。；：、（「]) +| +(?=[，。；：、（）」])"), ""),
    (re.compile(rf"(?<=[{_CJK}])(?=[A-Za-z0-9`|+-])|(?<=[A-Za-z0-9`|%])(?=[{_CJK}])"), " "),
    (re.compile(r"[，；：、。]+(?=[。；：])|、(?=，)"), ""),
    (re.compile(r"([，；：、])[，、]+"), r"\1"),
    (re.compile(r"  +"), " "),
)
_HAN: Final = re.compile(f"[{_CJK}]")
_LONE_NUMBER: Final = re.compile(r"(?<![A-Za-z_])\d")
_LISTED: Final = re.compile("[，、]")
_SHORT: Final = 12
"""Letters up to which a part is a word of a list and not a clause."""
_LITTLE: Final = frozenset(
    {
        "a",
        "an",
        "and",
        "are",
        "as",
        "at",
        "by",
        "for",
        "from",
        "in",
        "is",
        "it",
        "no",
        "not",
        "of",
        "on",
        "or",
        "the",
        "to",
        "with",
    }
)
"""English words that are no names."""
_MOST_TRIED: Final = 600
"""Parts of one text that are looked up, of those that are not known as they stand."""
_MOST_UNKNOWN: Final = 0.4
"""Part of a text that may stay English inside a Chinese sentence: names that people give."""


@dataclass(frozen=True, slots=True)
class _Told:
    """What became of a text: its words, and how many letters of it could not be told."""

    text: str
    unknown: int = 0

    @property
    def whole(self) -> bool:
        return not self.unknown


def _untold(text: str) -> _Told:
    return _Told(text, max(len(text), 1))


@cache
def _index() -> Index:
    return Index()


@lru_cache(maxsize=16384)
def told(text: str) -> str:
    """The text in Chinese; in English where it is no text of a report, or not known."""
    if "\n" in text:
        return "\n".join(map(told, text.split("\n")))
    found = _Reading().whole(text)
    return _tidy(found.text) if found.text != text else text


def understood(text: str) -> bool:
    """Whether all of the text can be told."""
    return all(_Reading().whole(line).whole for line in text.split("\n"))


class _Reading:
    """One text that is told: what became of its parts, and how much is still tried."""

    def __init__(self) -> None:
        self._index = _index()
        self._known: dict[str, _Told] = {}
        self._left = _MOST_TRIED

    def whole(self, text: str) -> _Told:
        """What becomes of the text."""
        _, core, tail = peeled(text)
        found = self._core(core) if core else _Told(text)
        if not core or found.text == core:
            return _Told(text, found.unknown)
        return _Told(f"{found.text}{tail.strip().translate(_MARKS)}", found.unknown)

    def _phrase(self, text: str) -> _Told:
        """What becomes of a phrase that may have punctuation at its ends."""
        head, core, tail = peeled(text)
        if not core:
            return _Told(text.translate(_MARKS).replace(" ", "") if text.strip() else text)
        found = self._core(core)
        if _HAN.search(found.text) is None:
            return _Told(text, found.unknown)
        before = head.strip().translate(_MARKS) or " " * head.endswith(" ")
        after = tail.strip().translate(_MARKS) + " " * tail.endswith(" ")
        return _Told(f"{before}{found.text}{after}", found.unknown)

    def _core(self, text: str) -> _Told:
        if text not in self._known:
            self._known[text] = self._found(text)
        return self._known[text]

    def _found(self, text: str) -> _Told:
        if (fixed := self._index.fixed.get(text.lower())) is not None:
            return _Told(fixed)
        if " " not in text:
            return _untold(text) if text.lower() in _LITTLE else _Told(text)
        self._left -= 1
        if self._left < 0:
            return _untold(text)
        best = _untold(text)
        for template in self._index.candidates(text):
            for values in template.matches(text):
                filled = self._filled(template, values)
                if filled.whole:
                    return filled
                best = min(best, filled, key=lambda one: one.unknown)
        if _stays(text):
            return _Told(text)
        return self._composed(text) or (best if best.unknown <= _MOST_UNKNOWN * len(text) else _untold(text))

    def _filled(self, template: Template, values: dict[str, str]) -> _Told:
        parts = {name: self._phrase(value) if value else _Told("") for name, value in values.items()}
        filled = HOLE.sub(lambda hole: parts[hole.group(1)].text, template.chinese)
        return _Told(filled, sum(part.unknown for part in parts.values()))

    def _composed(self, text: str) -> _Told | None:
        """A text that is put together from others; None if one of them cannot be told."""
        if (bracket := _BRACKET.fullmatch(text)) is not None:
            before, inside = bracket.groups()
            start = self._phrase(before) if before else _Told("")
            known = self._index.fixed.get(f"({inside})") or self._in_brackets(inside)
            if start.whole and known:
                return _Told(f"{start.text}{known}")
        for separator, joined in _SEPARATORS:
            for cut in separator.finditer(text):
                if _inside_brackets(text, cut.start()):
                    continue
                before, after = self._phrase(text[: cut.start()]), self._phrase(text[cut.end() :])
                if before.whole and after.whole:
                    return _Told(f"{before.text}{_joint(joined, before.text, after.text)}{after.text}")
        return None

    def _in_brackets(self, inside: str) -> str | None:
        """What stands in brackets, with them; None if it is not known."""
        for template in self._index.candidates(inside):
            if template.english.startswith("("):
                for values in template.matches(f"({inside})"):
                    if (filled := self._filled(template, values)).whole:
                        return filled.text
        found = self._phrase(inside)
        return f"（{found.text}）" if found.whole else None


def _stays(text: str) -> bool:
    """Whether there is nothing to tell: a name, numbers, codes, technical terms."""
    words = text.split()
    if len(words) == 2 and re.fullmatch(NUMBER, words[1]):
        return words[0].lower() not in _LITTLE
    return all(word.strip("(),;:[]'\"?!+-") in terms() or _CODE.fullmatch(word) for word in words)


def _joint(joined: str, before: str, after: str) -> str:
    """How two parts are joined: names as in English, short words of a list by the mark that lists have in Chinese."""
    if _HAN.search(before) is None and _HAN.search(after) is None:
        return _NARROW.get(joined, joined)
    beside = (_LISTED.split(before)[-1], _LISTED.split(after)[0])
    if joined == "，" and all(len(part) <= _SHORT and not _LONE_NUMBER.search(part) for part in beside):
        return "、"
    return joined


def _inside_brackets(text: str, place: int) -> bool:
    return text.count("(", 0, place) > text.count(")", 0, place)


def _tidy(text: str) -> str:
    """The text with Chinese spacing: a blank between Chinese and Latin, none beside wide marks, no mark twice."""
    for pattern, instead in _TIDY:
        text = pattern.sub(instead, text)
    return text.strip().lstrip("，；：、")
