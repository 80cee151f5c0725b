"""What a recorder is opened with, checked so that a wrong option is told in one line and never raised into the training."""

from __future__ import annotations

import numbers
import operator
import os
import re
from collections.abc import Mapping
from typing import Any, Final

from rl_doctor.errors import UsageError
from rl_doctor.schema import RunInfo

QUEUE_BYTES: Final = 1 << 30
_TOO_LARGE: Final = 1 << 63
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def folder_of(path: Any) -> str:
    """The run folder, with ``~`` expanded.

    Raises:
        UsageError: it is no place in a file system of this machine.
    """
    if path is None:
        raise UsageError("no run folder was given: the path is None, as an environment variable is that is not set")
    if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
        raise UsageError(f"the path of the run folder must be a text or a pathlib.Path, not {_shown(path)}")
    text = os.fspath(path)
    if not text:
        raise UsageError("no run folder was given: the path is empty")
    if _URL.match(text):
        raise UsageError(f"the path {_shown(text)} is a URL: record into a folder of this machine, and copy it afterwards")
    if "\0" in text:
        raise UsageError(f"the path {_shown(text)} holds a null character, which no folder's name can")
    return os.path.expanduser(text)  # noqa: PTH111 - a pathlib.Path would change the text of other paths


def check(options: Mapping[str, Any]) -> None:
    """Check the types of a recorder's options.

    Raises:
        UsageError: one is not what it should be.
    """
    rank, session = options["rank"], options["session"]
    if not _is_whole(rank) or rank < 0:
        raise UsageError(f"rank must be a whole number from 0 (this process's data-parallel rank), not {_shown(rank)}")
    if session is not None and not _is_whole(session):
        raise UsageError(f"session must be the number in rank 0's recorder.session, or left out, not {_shown(session)}")
    info = options["info"]
    if info is not None and not isinstance(info, (RunInfo, Mapping)):
        raise UsageError(f"info must be a mapping like run.json or a RunInfo, not {_shown(info)}")
    if options["on_part"] is not None and not callable(options["on_part"]):
        raise UsageError(f"on_part must be a function, not {_shown(options['on_part'])}")
    if codes_of(options["stop_on"]) is None:
        raise UsageError(f"stop_on must be codes or names of rules, as in ('RLD010',), not {_shown(options['stop_on'])}")
    if not _is_whole(options["stop_after"]) or options["stop_after"] < 1:
        raise UsageError(f"stop_after must be a whole number of steps from 1, not {_shown(options['stop_after'])}")
    for name in ("record_token_ids", "blocking", "states"):
        if not isinstance(options[name], bool) and not (_is_whole(options[name]) and options[name] in (0, 1)):
            raise UsageError(f"{name} must be True or False, not {_shown(options[name])}")


def codes_of(value: Any) -> tuple[str, ...] | None:
    """Codes or names of rules, from one text with commas between them or from several texts; None where it is neither."""
    if value is None:
        return ()
    if not isinstance(value, (str, list, tuple, set, frozenset)) or not all(isinstance(item, str) for item in value):
        return None
    texts = [value] if isinstance(value, str) else sorted(value) if isinstance(value, (set, frozenset)) else list(value)
    return tuple(code for text in texts for part in text.split(",") if (code := part.strip()))


def whole(value: Any) -> int:
    """A step as a number.

    Raises:
        UsageError: it is no whole number of 64 bits.
    """
    try:
        number = int(value) if isinstance(value, float) and value.is_integer() else operator.index(value)
    except (TypeError, ValueError, RuntimeError):
        number = _TOO_LARGE
    if isinstance(value, bool) or not -_TOO_LARGE < number < _TOO_LARGE:
        raise UsageError(f"step must be a whole number (the count of optimizer steps), not {_shown(value)}")
    return number


def mapping(name: str, value: Any) -> Mapping[Any, Any]:
    """A mapping that a call was given.

    Raises:
        UsageError: it is none.
    """
    if not isinstance(value, Mapping):
        raise UsageError(f"{name} must be a mapping of names to values, not {_shown(value)}")
    return value


def room(queue_bytes: Any) -> tuple[int, str | None]:
    """The bytes that may be queued, and what there is to say about what was given."""
    number = isinstance(queue_bytes, numbers.Real) and not isinstance(queue_bytes, bool)
    if number and 0 < queue_bytes < float("inf"):
        return max(1, int(queue_bytes)), None
    return QUEUE_BYTES, f"queue_bytes must be a number of bytes above 0, not {_shown(queue_bytes)}: {QUEUE_BYTES} are taken"


def _is_whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    """A value as messages show it: in one line, and short."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # noqa: BLE001 - a repr is the caller's code
        text = type(value).__name__
    return text if len(text) <= 80 else f"{text[:77]}..."
