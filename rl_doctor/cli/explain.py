"""``rl-doctor explain``: the page of a rule or a cause."""

from __future__ import annotations

import re
import sys
from typing import Annotated, Final

import typer

from rl_doctor.cli.output import colour, emit, is_terminal, width

NAME: Final = "explain"


def command(name: Annotated[str, typer.Argument(metavar="CODE", help="Code or name of a rule, or name of a cause.")]) -> None:
    """Explain a rule or a cause: limits, signs, what to do.

    CODE is a code such as RLD102, or a name such as rollout-trainer-mismatch or old-logprob-outdated.
    """
    from rl_doctor.analyzer.registry import metrics
    from rl_doctor.causes.registry import causes
    from rl_doctor.cli.pages import cause_page, rule_page
    from rl_doctor.cli.selecting import one_rule
    from rl_doctor.rules.registry import rules

    known = tuple(rules().values())
    if (cause := causes().get(name.lower())) is not None:
        page = cause_page(cause, known)
    else:
        page = rule_page(one_rule(name, known, causes()), metrics(), causes().values())
    page = re.sub("(?<!`)``(?!`)", "`", page)  # docstrings have them as reStructuredText does
    emit(_rendered(page) if is_terminal(sys.stdout) else page)


def _rendered(page: str) -> str:
    from rich.console import Console
    from rich.markdown import Markdown

    system: Final = "standard" if colour(sys.stdout) else None
    console = Console(width=width(sys.stdout), force_terminal=system is not None, color_system=system, legacy_windows=False)
    with console.capture() as captured:
        console.print(Markdown(page))
    return captured.get()
