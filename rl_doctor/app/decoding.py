"""The tokenizer that the app was started with: a local one, loaded only where one was given; nothing is downloaded."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final

from rl_doctor.errors import UsageError

VARIABLE: Final = "RL_DOCTOR_TOKENIZER"
"""Variable of the environment by which the server is told the tokenizer's path."""
_FAST: Final = "tokenizer.json"
_UNFINISHED: Final = "\N{REPLACEMENT CHARACTER}"
_KEPT: Final = 1 << 17
_AFTER: Final = 8
"""Tokens that may share one character: after so many a text that stays unfinished is taken as it is."""


@cache
def of_environment() -> Callable[[Sequence[int]], list[str]] | None:
    """The tokenizer that the app was started with, if it was with one.

    Raises:
        UsageError: it cannot be loaded.
    """
    path = os.environ.get(VARIABLE)
    return load(Path(path)) if path else None


def load(path: Path) -> Callable[[Sequence[int]], list[str]]:
    """What gives the text of each token of a sequence; joined, they are the text of the sequence.

    A character that several tokens make up is told at the last of them, the texts of the others are empty.

    Args:
        path: a folder with a tokenizer, or its ``tokenizer.json``.

    Raises:
        UsageError: there is no tokenizer, the library that it needs is not installed, or it cannot read it.
    """
    if not path.exists():
        raise UsageError(f"--tokenizer {path}: no such file or folder; give a local folder with a tokenizer, or a tokenizer.json")
    file = path / _FAST if path.is_dir() else path
    name = "tokenizers" if file.is_file() else "transformers"
    try:
        library = importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"--tokenizer {path}: {name} is not installed; run: pip install {name}") from error
    try:
        if name == "tokenizers":
            fast: Any = library.Tokenizer.from_file(str(file))
            return _telling(fast.decode)
        slow: Any = library.AutoTokenizer.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UsageError(f"--tokenizer {path}: cannot be loaded ({reason[:160]}); give another folder") from error
    return _telling(slow.decode)


def _telling(decode: Callable[..., str]) -> Callable[[Sequence[int]], list[str]]:
    """What gives the text of each token by a library's ``decode``; what it said of a few tokens is kept, for they come again."""

    @lru_cache(maxsize=_KEPT)
    def text(ids: tuple[int, ...]) -> str:
        return str(decode(list(ids), skip_special_tokens=False))

    return lambda ids: _pieces(ids, lambda some: text(tuple(some)))


def _pieces(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[str]:
    """The text that each token adds to that of the tokens before it."""
    pieces: list[str] = []
    told, begun = 0, 0
    for at in range(len(ids)):
        before, text = _decoded(ids[begun:told], decode), _decoded(ids[begun : at + 1], decode)
        if (text.endswith(_UNFINISHED) and at + 1 < len(ids) and at - told < _AFTER) or len(text) <= len(before):
            pieces.append("")
            continue
        pieces.append(text[len(before) :])
        begun, told = told, at + 1
    return pieces


def _decoded(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> str:
    """The text of some tokens; nothing where the tokenizer does not know one."""
    try:
        return decode(ids) if len(ids) else ""
    except (IndexError, KeyError, OverflowError, TypeError, ValueError):
        return ""
