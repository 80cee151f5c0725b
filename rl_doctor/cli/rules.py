"""``rl-doctor rules``: every rule in a line."""

from __future__ import annotations

from typing import Final

from rl_doctor.cli.output import emit

NAME: Final = "rules"


def command() -> None:
    """List every rule: code, severity, name, what it finds."""
    from rl_doctor.cli.pages import summary
    from rl_doctor.rules.registry import rules

    known = rules().values()
    longest = max((len(rule.name) for rule in known), default=0)
    emit("".join(f"{rule.code}  {rule.severity:<7}  {rule.name:<{longest}}  {summary(rule)}\n" for rule in known))
