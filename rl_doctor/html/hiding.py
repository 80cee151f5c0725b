"""Takes out of a file what says whose run it is; what was the same is still the same."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Final

from markupsafe import Markup

from rl_doctor.charts.timeline import escaped
from rl_doctor.report.model import Diagnosis, Finding
from rl_doctor.views.identifying import Identifying, telling
from rl_doctor.views.opened import Opened

_AT_ONCE: Final = 3_000
"""Names that are looked for as they stand; further ones are looked for word by word."""
_PLACES: Final = re.compile(
    r"\b[a-z][a-z0-9+.-]*://[^\s\"'<>]+|(?<![\w<.~])(?:~|[A-Za-z]:)?(?:[/\\](?!>)[\w.@#%+=-]+){2,}[/\\]?"
    r"|(?<!\w)[\w.+-]+@[\w-]+(?:\.[\w-]+)+|(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])"
)
"""Addresses, absolute paths, mail addresses, addresses of machines."""
_WORD: Final = re.compile(r"[^\s\"'<>(),;=\[\]{}|]+")
_BLANK: Final = re.compile(r"(?:\\?\s)+")
_BETWEEN: Final = r"(?:\s|<br>)+"
"""What stands between the words of a name, in a label that was broken into lines too."""
_BINARY: Final = "bdata"
"""Member of a figure that holds numbers only, as base64."""


class Hider:
    """Replaces words by hashes that are the same throughout a file and have a salt of their own in each.

    Args:
        words: what to replace.
        salt: by default a new one.
    """

    def __init__(self, words: Identifying, salt: bytes | None = None) -> None:
        self._salt = secrets.token_bytes(16) if salt is None else salt
        wanted = words.few | words.many if len(words.few) + len(words.many) <= _AT_ONCE else words.few
        ordered = sorted({form for word in wanted for form in _forms(word)}, key=lambda word: (-len(word), word))
        self._names = _pattern(ordered[:_AT_ONCE])
        self._words = frozenset(word.lower() for word in (*ordered[_AT_ONCE:], *words.many))
        self._known: dict[str, str] = {}

    def of(self, word: str) -> str:
        """What stands for a word."""
        return "h_" + blake2b(word.lower().encode("utf-8", "backslashreplace"), key=self._salt, digest_size=4).hexdigest()

    def text(self, text: str) -> str:
        """A text without what identifies the run."""
        found = self._known.get(text)
        if found is None:
            found = text if self._names is None else self._names.sub(lambda match: self.of(match[0]), text)
            found = _PLACES.sub(lambda match: self.of(match[0]), found)
            found = _WORD.sub(lambda match: self._word(match[0]), found) if self._words else found
            self._known[text] = found
        return found

    def document(self, value: Any) -> Any:
        """A JSON document with all its texts so treated."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {key: inner if key == _BINARY else self.document(inner) for key, inner in value.items()}
        return [self.document(inner) for inner in value] if isinstance(value, list) else value

    def shown(self, value: Any) -> Any:
        """What a template is about to write."""
        return self.text(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    def _word(self, word: str) -> str:
        bare = word.strip(".:!?`*")
        return word.replace(bare, self.of(bare)) if bare and bare.lower() in self._words else word


def _pattern(words: Sequence[str]) -> re.Pattern[str] | None:
    """Any of the words, the first that fits; no ASCII letter or digit may stand beside one that it begins or ends with."""

    def plain(letter: str) -> bool:
        return letter.isascii() and letter.isalnum()

    ended = [
        (word, _BLANK.sub(lambda _: _BETWEEN, re.escape(word)) + ("(?![A-Za-z0-9])" if plain(word[-1]) else "")) for word in words
    ]
    begun = [text for word, text in ended if plain(word[0])]
    parts = [f"(?<![A-Za-z0-9])(?:{'|'.join(begun)})"] if begun else []
    parts += [text for word, text in ended if not plain(word[0])]
    return re.compile("|".join(parts), re.IGNORECASE) if parts else None


def _forms(word: str) -> Iterator[str]:
    """A word as it stands in texts: as it is, in a document that is shown whole, and in a label of plotly's."""
    yield word
    yield repr(word)[1:-1]
    yield escaped(word)


def without_identities(opened: Opened, hider: Hider) -> Opened:
    """A run with samples that are known by their number alone, and a configuration with hashes for texts."""
    report, run = opened.report, opened.run
    results = tuple(replace(result, findings=tuple(map(_bare, result.findings))) for result in report.results)
    bare = replace(report, results=results, diagnosis=tuple(map(_cause, report.diagnosis)))
    config = run.info.config
    told = {name: _hashed(value, hider) for name in ("native", "reward_weights") if (value := getattr(config, name)) is not None}
    return replace(opened, report=bare, run=replace(run, info=replace(run.info, config=replace(config, **told))))


def _hashed(value: Any, hider: Hider) -> Any:
    """A document of which only words are left that say nothing of a run."""
    if isinstance(value, str):
        return hider.of(value) if telling(value) else value
    if isinstance(value, Mapping):
        return {_hashed(str(key), hider): _hashed(inner, hider) for key, inner in value.items()}
    return [_hashed(inner, hider) for inner in value] if isinstance(value, list | tuple) else value


def _bare(finding: Finding) -> Finding:
    return replace(finding, samples=tuple(replace(sample, uid=None) for sample in finding.samples))


def _cause(cause: Diagnosis) -> Diagnosis:
    findings, followed_by = (tuple(map(_bare, several)) for several in (cause.findings, cause.followed_by))
    return replace(cause, findings=findings, followed_by=followed_by)
