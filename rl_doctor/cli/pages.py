"""The page of a rule and the tables of metrics, in Markdown: what ``explain`` prints and what ``docs/`` holds."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rl_doctor.report.wording import number

if TYPE_CHECKING:
    from rl_doctor.analyzer.registry import Metric
    from rl_doctor.rules.registry import Rule


def rule_page(rule: Rule, metrics: Mapping[str, Metric]) -> str:
    """Everything there is to know about a rule."""
    parts = [
        f"# {rule.code} {rule.name}",
        f"Severity: at most {rule.severity}. Status: {rule.status}, since {rule.since}.",
        inspect.cleandoc(rule.doc),
        _section("What it computes", _computes(rule, metrics)),
        _section("Limits", _limits(rule)),
        _section("Likely cause", [rule.cause]),
        _section("What to do", [f"{place}. {line}" for place, line in enumerate(rule.advice, 1)]),
        _section("False alarms it avoids", [f"- {line}" for line in rule.avoids]),
        _section("Source", [rule.source]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def summary(rule: Rule) -> str:
    """The first sentence of the rule's page."""
    return inspect.cleandoc(rule.doc).partition("\n\n")[0].replace("\n", " ")


def metric_rows(metrics: Iterable[Metric]) -> list[str]:
    """A Markdown table of metrics."""
    rows = ((f"`{item.name}`", item.unit, item.doc, _code_list(item.needs), item.source) for item in metrics)
    return table(("metric", "unit", "what it is", "needs", "source"), rows)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table."""
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    return lines + [f"| {' | '.join(cell.replace('|', chr(92) + '|').replace(chr(10), ' ') for cell in row)} |" for row in rows]


def _section(title: str, lines: Iterable[str]) -> str:
    body = "\n".join(lines)
    return f"## {title}\n\n{body}" if body else ""


def _computes(rule: Rule, metrics: Mapping[str, Metric]) -> Iterator[str]:
    for label, names in (("needs", rule.needs), ("uses where it can", rule.optional)):
        for name in names:
            found = metrics.get(name)
            if found is None:
                yield f"- `{name}` ({label})"
            else:
                columns = f" From {_code_list(found.needs)}." if found.needs else ""
                yield f"- `{name}` [{found.unit}] ({label}): {found.doc}{columns} Definition: {found.source}."


def _limits(rule: Rule) -> list[str]:
    return [f"- `{name}` = {number(value)}" for name, value in rule.limits.items()]


def _code_list(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
