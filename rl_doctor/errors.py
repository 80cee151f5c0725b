"""Errors that rl-doctor reports in one line, each with its exit code."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, Final

_ADDRESS: Final = re.compile(r"^([a-z][a-z]+):/(?=[^/])")


class DoctorError(Exception):
    """A failure whose message is complete on its own: it names the file, the column, the row and what to do.

    The command line prints the message and exits with ``exit_code``; a traceback is never shown for it.
    """

    exit_code: ClassVar[int] = 2


class UsageError(DoctorError):
    """The call is wrong: an unknown rule code, an unknown metric, contradicting options."""


class InputError(DoctorError):
    """The input cannot be read: missing, empty, binary, truncated, or shapes that do not fit together."""


class ChangedError(InputError):
    """The input was changed while it was read, by a recorder that saves space: opened anew, it can be read."""


class SeveralRunsError(InputError):
    """A folder of runs was given for one run: waiting mends nothing, one of them has to be named."""


class NothingToJudgeError(DoctorError):
    """The input was read, but holds nothing that could be judged: no row, no known column, only NaN."""

    exit_code: ClassVar[int] = 3


def shown(path: Path) -> str:
    """A path as messages name it: an address has its two slashes, of which a path keeps one."""
    return _ADDRESS.sub(r"\1://", str(path))


def unreadable(path: Path, error: OSError) -> InputError:
    """What is told of a path that the system does not let be read: the file in it, if the system names one, and what to do.

    Args:
        path: what was to be read.
        error: what the system said.
    """
    where = shown(path) if error.filename is None else os.fsdecode(error.filename)
    if isinstance(error, PermissionError):
        return InputError(f"{where}: no permission to read it; change its mode or run as its owner")
    if isinstance(error, FileNotFoundError):
        return InputError(f"{where}: no such file or folder")
    return InputError(f"{where}: cannot be read ({error.strerror or error})")


def suggestion(word: str, candidates: Iterable[str], *, close: float = 0.6) -> str:
    """The end of a message about an unknown word: which candidates may have been meant, or nothing.

    Args:
        word: what was given.
        candidates: the known words.
        close: least similarity, from 0 to 1, as ``difflib`` measures it.
    """
    from difflib import get_close_matches

    folded = {candidate.lower(): candidate for candidate in candidates}
    found = get_close_matches(word.lower(), folded, n=3, cutoff=close)
    return f"; did you mean {' or '.join(folded[item] for item in found)}?" if found else ""
