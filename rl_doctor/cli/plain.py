"""A call of ``rl-doctor check`` that needs no help and is not wrong, read without typer.

Importing typer and pydantic, and building what they check a call with, takes a quarter of the check of a long log.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rl_doctor.cli.judging import FailLevel, Format, Lang, States

_REPEATED: Final = {"--select": "select", "--ignore": "ignore", "--require": "require", "--output": "output"}
_CHOSEN: Final[dict[str, tuple[str, type[FailLevel | Format | Lang]]]] = {
    "--fail-on": ("fail_on", FailLevel),
    "--output-format": ("output_format", Format),
    "--lang": ("lang", Lang),
}
_COUNT: Final = "--first-steps"
_STATES: Final = {"--no-cache": States.unused, "--verify": States.verified}


def plain_check(words: Sequence[str]) -> dict[str, Any] | None:  # noqa: C901, PLR0912 - a case for each kind of option
    """The arguments of ``check_runs`` that words mean; None where typer must read them: for another verb, for help, for errors.

    Args:
        words: those after ``rl-doctor``.
    """
    if not words or words[0] != "check" or os.name == "nt":  # there typer expands patterns of files
        return None
    runs: list[Path] = []
    given: dict[str, Any] = {"runs": runs}
    rest = iter(words[1:])
    for word in rest:
        name, equals, value = word.partition("=")
        if name in {*_REPEATED, *_CHOSEN, _COUNT}:
            value = value if equals else next(rest, "")
            if not value or value.startswith("-") or (name == _COUNT and not value.strip("0").isdecimal()):
                return None
        if name in _REPEATED:
            given.setdefault(_REPEATED[name], []).append(value)
        elif name == _COUNT:
            given["first_steps"] = int(value)
        elif name in _CHOSEN:
            argument, choices = _CHOSEN[name]
            if value not in {choice.value for choice in choices}:
                return None
            given[argument] = choices(value)
        elif word == "--join":
            given["join"] = True
        elif word in _STATES:
            if given.get("states", _STATES[word]) is not _STATES[word]:
                return None
            given["states"] = _STATES[word]
        elif not word or word.startswith("-"):
            return None
        else:
            runs.append(Path(word))
    return given if runs else None
