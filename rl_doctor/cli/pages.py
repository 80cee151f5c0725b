"""The page of a rule, and tables, in Markdown: what ``explain`` prints and what ``docs/`` holds."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from rl_doctor.report.wording import number

if TYPE_CHECKING:
    from rl_doctor.analyzer.registry import Metric
    from rl_doctor.rules.registry import Rule

_WIDTH: Final = 120
_FEW: Final = 3
"""Metrics of one topic that a rule's page still tells one by one."""


def rule_page(rule: Rule, metrics: Mapping[str, Metric]) -> str:
    """Everything there is to know about a rule."""
    parts = [
        f"# {rule.code} {rule.name}",
        f"Severity: at most {rule.severity}. Status: {rule.status}, since {rule.since}.",
        inspect.cleandoc(rule.doc),
        _section("Likely cause", [rule.cause]),
        _section("What to do", [f"{place}. {line}" for place, line in enumerate(rule.advice, 1)]),
        _section("Limits", _limits(rule)),
        _section("False alarms it avoids", [f"- {line}" for line in rule.avoids]),
        _section("Source", [rule.source]),
        _section("What it computes", _computes(rule, metrics)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def summary(rule: Rule) -> str:
    """The first sentence of the rule's page."""
    return inspect.cleandoc(rule.doc).partition("\n\n")[0].replace("\n", " ")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table."""
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    return lines + [f"| {' | '.join(cell.replace('|', chr(92) + '|').replace(chr(10), ' ') for cell in row)} |" for row in rows]


def _section(title: str, lines: Iterable[str]) -> str:
    body = "\n".join("\n".join(_wrapped(line)) for line in lines)
    return f"## {title}\n\n{body}" if body else ""


def _wrapped(line: str) -> list[str]:
    """The line in lines that fit a page; those of a list go on below its text. An empty line stays."""
    indent = "  " if line.startswith("- ") else "   " if line[:1].isdigit() else ""
    joined = line.replace(" - ", "\0-\0")  # a line that began with a minus would be an item of its own
    lines = textwrap.wrap(joined, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return [item.replace("\0", " ") for item in lines] or [""]


def _computes(rule: Rule, metrics: Mapping[str, Metric]) -> Iterator[str]:
    """The metrics, each once: a line for one that stands alone, and one line for all of a topic where a rule reads many."""
    optional = [name for name in dict.fromkeys(rule.optional) if name not in rule.needs]
    yield from _listed("Needed", dict.fromkeys(rule.needs), metrics)
    yield from [""] * bool(rule.needs and optional)
    yield from _listed("Used where they can be computed", optional, metrics)
    if rule.needs or optional:
        yield from ("", "Definitions and sources: `docs/metrics.md`.")


def _listed(label: str, names: Iterable[str], metrics: Mapping[str, Metric]) -> Iterator[str]:
    topics: dict[str, list[str]] = {}
    for name in names:
        topics.setdefault(name.partition(".")[0], []).append(name)
    if topics:
        yield from (f"{label}:", "")
    for members in topics.values():
        if len(members) > _FEW:
            yield f"- {_code_list(name + '*' * name.endswith('.') for name in members)}"
            continue
        for name in members:
            found = metrics.get(name)
            yield f"- `{name}*`: each that was logged" if found is None else f"- `{name}` [{found.unit}]: {found.doc}"


def _limits(rule: Rule) -> list[str]:
    return [f"- `{name}` = {number(value)}" for name, value in rule.limits.items()]


def _code_list(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
