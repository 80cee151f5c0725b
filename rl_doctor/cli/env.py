"""``rl-doctor env``: which trainers are installed, and what can be recorded with them."""

from __future__ import annotations

import platform
import sys
import textwrap
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from rl_doctor.cli.output import emit, width

if TYPE_CHECKING:
    from rl_doctor.cli.environment import Installed
    from rl_doctor.collectors.support import Switch

NAME: Final = "env"
_OTHER: Final = "Any other loop: rl_doctor.Recorder, ten lines in the loop (docs/guide/own-loops.md)."
_INDENT: Final = 14


class Format(StrEnum):
    """Formats of the answer."""

    text = "text"
    json = "json"


def command(output_format: Annotated[Format, typer.Option(help="What to print.")] = Format.text) -> None:
    """Say which trainers are here and what is recorded with them.

    For each: whether its version is supported, how recording is switched on, which columns are recorded, which need a setting of
    the trainer, and which rules need these.
    """
    from rl_doctor.cli.environment import document

    if output_format is Format.json:
        import json

        emit(json.dumps(document(), indent=2) + "\n")
    else:
        emit("\n".join(_lines(width(sys.stdout))) + "\n")


def _lines(columns: int) -> Iterator[str]:
    from rl_doctor import __version__
    from rl_doctor.cli import environment

    found = environment.packages()
    yield f"rl-doctor {__version__}, Python {platform.python_version()}"
    shown = [f"{name} {version or '(version unknown)'}" for name, version in found.items() if version is not None]
    if found["torch"] is not None and (built := environment.built_for()):
        gpus = environment.accelerators()
        shown[0] += f" (built for {built}; {gpus or 'no'} NVIDIA GPU{'s' * (gpus > 1)} here)"
    yield from _wrapped("packages", ", ".join(shown) or "none that trainers use", columns)
    absent = [name for name, version in found.items() if version is None]
    if absent:
        yield from _wrapped("not here", ", ".join(absent), columns)
    installed = environment.trainers()
    for one in installed:
        yield ""
        yield from _trainer(one, columns)
    yield ""
    if not any(one.version is not None for one in installed):
        yield "No trainer that is recorded by itself is installed in this environment."
    yield _OTHER


def _trainer(one: Installed, columns: int) -> Iterator[str]:
    support = one.support
    if one.version is None:
        yield f"{support.name}: not installed (supported: {support.versions})"
        return
    version = one.version or "(version unknown)"
    yield f"{support.name} {version}: {'supported' if one.supported else 'NOT supported'} ({support.versions})"
    yield from _wrapped("records", support.recorded, columns)
    for number, line in enumerate(support.how):
        yield from _wrapped("" if number else "switch on", line, columns)
    if support.entry_point:
        yield from _wrapped("plugin" if one.found else "but", _plugin(one), columns)
    yield from _wrapped("columns", ", ".join(support.columns), columns)
    for number, switch in enumerate(support.switches):
        yield from _wrapped("" if number else "with a setting", _switch(switch), columns)
    if support.guide:
        yield from _wrapped("see", support.guide, columns)


def _plugin(one: Installed) -> str:
    """Whether the trainer finds the recording by itself here: looked up, not assumed."""
    support = one.support
    if one.found:
        return f"found: {support.entry_point} names rl_doctor in this environment"
    return (
        f"plugin NOT found: no entry point {support.entry_point} of rl-doctor is visible to this Python, and {support.name} will "
        f"not load it: pip install rl-doctor into this environment, or set {support.otherwise} where it can be imported"
    )


def _switch(switch: Switch) -> str:
    from rl_doctor.cli.environment import ENABLES

    rules = [name for column in switch.columns for name in ENABLES.get(column, ())]
    note = f" ({switch.note})" if switch.note else ""
    enables = f"; enables {', '.join(rules)}" if rules else ""
    return f"{', '.join(switch.columns)}: {switch.setting}{note}{enables}"


def _wrapped(label: str, text: str, columns: int) -> list[str]:
    head = f"  {label:<{_INDENT}} "
    return textwrap.wrap(
        text, columns, initial_indent=head, subsequent_indent=" " * len(head), break_long_words=False, break_on_hyphens=False
    )
