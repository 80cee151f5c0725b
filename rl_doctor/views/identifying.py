"""The words of a run that say whose it is: identities, names of data, files and machines, texts of its configuration."""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Final

from rl_doctor.analyzer.dialects.registry import trainers
from rl_doctor.analyzer.registry import metrics_for
from rl_doctor.rules.registry import rules
from rl_doctor.schema import COLUMNS, MEMBERS, REWARD_COMPONENT_PREFIX, SETTINGS
from rl_doctor.store import layout
from rl_doctor.views.opened import Opened

_IDENTITIES: Final = ("uid", "group", "session_id", "pair")
"""Columns with a name for each row or few of them: there may be millions."""
_NAMES: Final = ("data_source", "finish_reason")
"""Columns with few names."""
_WORDS: Final = re.compile(r"[^\W_]+")
_NUMBER: Final = re.compile(r"[\d.,:+-]{0,5}")
_VERSION: Final = re.compile(r"[<>=!~\s,]*v?\d+(\.\d+)+((a|b|rc|\.dev|\.post|\+cu)\d+)?([<>=!~\s,]+\d+(\.\d+)*)*")
_COMMON: Final = (
    "home", "tmp", "data", "mnt", "root", "users", "user", "usr", "var", "opt", "run", "runs", "log", "logs", "parquet", "json",
    "jsonl", "csv", "train", "test", "eval", "val", "validation", "core", "aux", "stop", "length", "abort", "mean", "std", "max",
    "min", "none", "true", "false", "rl", "doctor", "rl_doctor", "rl-doctor", "running", "complete", "detached", "float32",
    "bfloat16", "float16", "main", "best", "localhost",
)  # fmt: skip
_MOST_FILES: Final = 2_000
"""Files in a folder whose names are looked at."""


@dataclass(frozen=True, slots=True)
class Identifying:
    """Words of a run.

    Attributes:
        few: names and texts that may stand inside a sentence.
        many: identities of rows and groups.
    """

    few: frozenset[str]
    many: frozenset[str]


def identifying(opened: Opened) -> Identifying:
    """The words of a run that say whose it is, without those that rl-doctor itself uses.

    Raises:
        InputError: the rows cannot be read.
    """
    run = opened.run
    few = {*of_path(opened.path), *of_path(run.path)}
    info = {field.name: getattr(run.info, field.name) for field in dataclasses.fields(run.info) if field.name != "config"}
    config = {field.name: getattr(run.info.config, field.name) for field in dataclasses.fields(run.info.config)}
    few.update(_texts({**info, **config}))
    few.update(name.removeprefix(REWARD_COMPONENT_PREFIX) for name in run.columns if name.startswith(REWARD_COMPONENT_PREFIX))
    few.update(opened.report.run.unknown_columns)
    few.update(segment for name, _ in opened.logged.log.points for segment in _strange(name))
    many: set[str] = set()
    columns = run.columns.intersection((*_IDENTITIES, *_NAMES))
    for batch in run.batches(columns) if columns else ():
        for name in columns:
            (many if name in _IDENTITIES else few).update(
                str(one) for one in set(batch.columns[name].tolist()) if one is not None
            )
    return Identifying(frozenset(filter(telling, few)), frozenset(filter(telling, many)))


def of_path(path: Path) -> frozenset[str]:
    """The words of a path, of the files in it, of the machine and of its user."""
    machine = socket.gethostname()
    words = {machine, *machine.split(".")}
    with contextlib.suppress(OSError, KeyError):  # a user without a name
        words.add(getpass.getuser())
    places = path, path.absolute(), path.resolve()
    words.update(map(str, places))
    # A log's files may be named after the machine that wrote them; those of a recording are named alike everywhere.
    inside = islice(path.rglob("*"), _MOST_FILES) if path.is_dir() else ()
    named = [one.name for one in inside if layout.parse_part(one.name) is None and layout.parse_writer(one.name) is None]
    for name in {*named, *(part for one in places for part in one.parts)}:
        words.update((name, name.rpartition(".")[0], *(word for word in _WORDS.findall(name) if word.lower() not in _prose())))
    return frozenset(filter(telling, words))


def _texts(value: Any) -> Iterator[str]:
    """All texts in a document: keys and values, and numbers with so many digits that they may be an identity."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(str(key))
            yield from _texts(inner)
    elif isinstance(value, list | tuple | set | frozenset):
        for inner in value:
            yield from _texts(inner)
    elif isinstance(value, int) and not isinstance(value, bool) and abs(value) > 9_999:
        yield str(value)


def _strange(name: str) -> Iterator[str]:
    """The segments of a logged name that no trainer writes."""
    for segment in re.split(r"[/\s]", name):
        words = {word.lower() for word in _WORDS.findall(segment)}
        if not words <= ordinary():
            yield segment
            yield from (word for word in _WORDS.findall(segment) if word.lower() not in ordinary())


def telling(text: str) -> bool:
    """Whether a text says anything of whose run it is."""
    known = text.lower() in ordinary() or text in {*COLUMNS, *SETTINGS, *MEMBERS}
    return not (known or _NUMBER.fullmatch(text) or _VERSION.fullmatch(text) or not _WORDS.search(text) or len(text) < 2)


@cache
def ordinary() -> frozenset[str]:
    """Words that say nothing of a run: those of the schema, of the names of metrics and rules, and of what trainers log."""
    names: list[str] = [*COLUMNS, *_COMMON, *metrics_for(COLUMNS), *(rule.name for rule in rules().values()), *rules()]
    for settings in (SETTINGS, MEMBERS):
        for key, setting in settings.items():
            names += [key, *setting.words]
    for trainer in trainers().values():
        names += [trainer.name, *trainer.reads, *(item.native for item in trainer.names)]
    return frozenset(_pieces(names))


@cache
def _prose() -> frozenset[str]:
    """Words of sentences about any run: where a piece of a path is one of them, replacing it there would give it away."""
    texts = [setting.meaning for settings in (SETTINGS, MEMBERS) for setting in settings.values()]
    texts += [column.meaning for column in COLUMNS.values()]
    texts += [text for rule in rules().values() for text in (rule.doc, rule.cause, *rule.advice)]
    return frozenset(word.lower() for text in texts for word in _WORDS.findall(text))


def _pieces(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        yield name.lower()
        yield from (word.lower() for word in _WORDS.findall(re.sub(r"\{\w+\}", "", name)))
        yield from (segment.lower() for segment in name.split("/") if "{" not in segment)
