"""The page of a rule or a cause, and tables, in Markdown: what ``explain`` prints and what ``docs/`` holds."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from rl_doctor.examples import example_of, written_by
from rl_doctor.report.wording import number

if TYPE_CHECKING:
    from rl_doctor.analyzer.registry import Metric
    from rl_doctor.causes.registry import Cause
    from rl_doctor.rules.registry import Rule

_WIDTH: Final = 120
_ROLES: Final = {"needed": "needs", "typical": "as a rule", "against": "never"}
_FEW: Final = 3
"""Metrics of one topic that a rule's page still tells one by one."""


def rule_page(rule: Rule, metrics: Mapping[str, Metric], causes: Iterable[Cause] = ()) -> str:
    """Everything there is to know about a rule; ``causes`` are all that there are."""
    preview = " Until it is stable it warns at most." if rule.status == "preview" and rule.severity == "error" else ""
    known = [cause for cause in causes if rule.name in cause.explains]
    parts = [
        f"# {rule.code} {rule.name}",
        f"Severity: at most {rule.severity}. Status: {rule.status}, since {rule.since}.{preview}",
        inspect.cleandoc(rule.doc),
        _section("Likely cause", [rule.cause]),
        _section("Causes, and what tells them apart", _told_apart(known)),
        _section("What to do", _numbered(rule.advice)),
        _section("Limits", _limits(rule)),
        _section("False alarms it avoids", [f"- {line}" for line in rule.avoids]),
        _example(rule),
        _section("Source", [rule.source]),
        _section("What it computes", _computes(rule, metrics)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def cause_page(cause: Cause, rules: Iterable[Rule]) -> str:
    """Everything there is to know about a cause; ``rules`` are all that there are."""
    code = {rule.name: f"{rule.code} {rule.name}" for rule in rules}
    follows = [code.get(name, name) for name in cause.leads_to if name != "*"] or ["whatever is found after it"] * bool(
        cause.leads_to
    )
    parts = [
        f"# {cause.name}",
        cause.sentence,
        inspect.cleandoc(cause.doc),
        _section("Signs", [f"- {_ROLES[sign.role]}: {sign.words}" for sign in cause.signs]),
        _section("Found by", [f"- {code.get(name, name)}" for name in cause.explains]),
        _section("What follows from it", [f"- {name}" for name in follows]),
        _section("What to do", _numbered(cause.advice)),
        _section("Source", [cause.source]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _example(rule: Rule) -> str:
    program = example_of(rule.name)
    if program is None:
        return ""
    command = f"rl-doctor check {written_by(program)} --select {rule.name}"
    return f"## Example\n\n```python\n{program}\n```\n\n```console\n$ {command}\n```"


def _numbered(lines: Iterable[str]) -> list[str]:
    return [f"{place}. {line}" for place, line in enumerate(lines, 1)]


def _told_apart(causes: Sequence[Cause]) -> Iterator[str]:
    """The causes of a finding, each with its signs."""
    if not causes:
        return
    for cause in causes:
        signs = "; ".join(f"{_ROLES[sign.role]}: {sign.words}" for sign in cause.signs)
        yield f"- `{cause.name}`: {cause.label}. {signs[:1].upper()}{signs[1:]}."
    yield from ("", "`rl-doctor explain NAME` prints the page of a cause.")


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
            told = f"`{name}{'*' * name.endswith('.')}`"
            kind = "each that was logged" if name.endswith(".") else "of the components of the reward"
            yield f"- {told}: {kind}" if found is None else f"- {told} [{found.unit}]: {found.doc}"


def _limits(rule: Rule) -> list[str]:
    return [f"- `{name}` = {number(value)}" for name, value in rule.limits.items()]


def _code_list(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
