"""``rl-doctor explain``: the page of a rule."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from rl_doctor.cli.output import colour, emit, is_terminal, width

NAME: Final = "explain"


def command(rule: Annotated[str, typer.Argument(metavar="CODE", help="Code or name of a rule.")]) -> None:
    """Explain a rule: limits, causes, what to do.

    CODE is a code such as RLD102, or a name such as rollout-trainer-mismatch.
    """
    from rl_doctor.analyzer.registry import metrics
    from rl_doctor.cli.pages import rule_page
    from rl_doctor.cli.selecting import one_rule
    from rl_doctor.rules.registry import rules

    page = rule_page(one_rule(rule, tuple(rules().values())), metrics())
    page = page.replace("``", "`")  # docstrings have them as reStructuredText does
    emit(_rendered(page) if is_terminal(sys.stdout) else page)


def _rendered(page: str) -> str:
    from rich.console import Console
    from rich.markdown import Markdown

    system: Final = "standard" if colour(sys.stdout) else None
    console = Console(width=width(sys.stdout), force_terminal=system is not None, color_system=system, legacy_windows=False)
    with console.capture() as captured:
        console.print(Markdown(page))
    return captured.get()
