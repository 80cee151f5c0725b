"""Templates of a report's sentences, and the catalogues of what they are in Chinese.

A template is a literal or an f-string as it stands in the source. ``{0}`` stands for a phrase or a name, ``{0#}`` for a number,
and ``⟨is|are⟩`` for a word that the source chooses for grammar alone, which Chinese has no need of. ``tools/messages.py``
collects them. The catalogues ``reports/*/*.po`` are in gettext's form: a line of English (``msgid``), a line of Chinese.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from types import MappingProxyType
from typing import Final

_HOLE: Final = re.compile(r"\{(\d+)#?\}")
_ENTRY: Final = re.compile(r'^msgid (".+")\nmsgstr (".*")$', re.MULTILINE)
_LEFT: Final = " ,;:"
_RIGHT: Final = " .,;:"


def peeled(text: str) -> tuple[str, str, str]:
    """The punctuation that a text begins with, the text, and the punctuation that it ends with."""
    bare = text.lstrip(_LEFT)
    head = text[: len(text) - len(bare)]
    core = bare.rstrip(_RIGHT)
    return head, core, bare[len(core) :]


def key_of(text: str) -> str:
    """The template as the catalogue knows it: without punctuation at its ends, and small at its beginning."""
    _, bare, _ = peeled(text)
    word = bare.partition(" ")[0]
    return f"{bare[:1].lower()}{bare[1:]}" if word[1:].islower() or len(word) == 1 else bare


def placeholders(template: str) -> Mapping[str, int]:
    """How often each placeholder stands in it."""
    return Counter(_HOLE.findall(template))


def entries(text: str) -> Iterator[tuple[str, str]]:
    """The English and the Chinese of each entry of a catalogue."""
    for english, chinese in _ENTRY.findall(text):
        yield json.loads(english), json.loads(chinese)


@cache
def sentences() -> Mapping[str, str]:
    """What every template is in Chinese."""
    found: dict[str, str] = {}
    for file in _catalogues(resources.files("rl_doctor.i18n").joinpath("reports")):
        found |= {english: chinese for english, chinese in entries(file.read_text("utf-8")) if chinese}
    return MappingProxyType(found)


@cache
def terms() -> frozenset[str]:
    """Technical terms that a Chinese sentence has in English too."""
    return frozenset(resources.files("rl_doctor.i18n").joinpath("reports", "terms.txt").read_text("utf-8").split())


def _catalogues(folder: Traversable) -> Iterator[Traversable]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _catalogues(entry)
        elif entry.name.endswith(".po"):
            yield entry
