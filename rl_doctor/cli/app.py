"""The verbs of ``rl-doctor``, with their options and help."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from rl_doctor import __version__
from rl_doctor.cli import app_, check, compare, demo, env, explain, import_, metrics, pack, report, rules, watch

VERBS: Final = (check, app_, watch, report, compare, explain, rules, metrics, import_, pack, demo, env)
"""Modules with a ``NAME`` and a ``command``, in the order of the help."""

app = typer.Typer(
    name="rl-doctor",
    help="Find out why an LLM post-training run (PPO, GRPO, DAPO, RLOO ...) is failing.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in VERBS:
    app.command(verb.NAME)(verb.command)


def _version(value: bool) -> None:  # noqa: FBT001 - the callback's signature is typer's
    if value:
        sys.stdout.write(f"rl-doctor {__version__}\n")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    del version
