"""How numbers, steps and foreign strings are written, the same in every output for people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rl_doctor.report.model import Evidence, Finding, Reconciled, Report, RunSummary, Sample

_NAMED: Final = 3
"""Numbers that are named, of those that are not equal."""


def number(value: float, unit: str = "1") -> str:
    """The value with four significant digits and its unit; ``1`` is the unit of plain ratios and is not written."""
    single = unit.removesuffix("s") if value == 1 and len(unit) > 1 else unit
    suffix = "" if unit in {"", "1"} else f" {single}"
    if math.isnan(value):
        return f"NaN{suffix}"
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}inf{suffix}"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}{suffix}"
    return f"{value:,.4g}{suffix}" if abs(value) < 1e4 else f"{value:.4g}{suffix}"


def steps(first: int | None, last: int | None) -> str:
    """The span of steps: "steps 3-9", "step 3", or "no steps"; "steps -3 to 9" where a dash would be read as a sign."""
    if first is None or last is None:
        return "no steps" if first is None and last is None else f"step {first if last is None else last}"
    if first == last:
        return f"step {first}"
    return f"steps {first}-{last}" if min(first, last) >= 0 else f"steps {first} to {last}"


def count(items: int, singular: str) -> str:
    """The number of items with their noun, in the plural unless there is one."""
    return f"{items:,} {singular}" if items == 1 else f"{items:,} {singular}s"


def place(where: Mapping[str, Any]) -> str:
    """Where a value concentrates: "rank 1, component format"."""
    return ", ".join(f"{key} {number(value) if isinstance(value, float) else value}" for key, value in where.items())


def evidence(item: Evidence) -> str:
    """One number behind a finding, with all that it was held against."""
    if item.where and "logged_name" in item.where:
        return _of_the_log(item)
    parts = [f"{item.metric} {number(item.value, item.unit)}"]
    if item.interval is not None:
        parts[0] += f" (95%: {number(item.interval[0])} to {number(item.interval[1])})"
    if item.baseline is not None:
        parts.append(f"baseline {number(item.baseline, item.unit)}")
    if item.limit is not None:
        parts.append(f"limit {number(item.limit, item.unit)}")
    if item.n is not None:
        parts.append(f"n {number(item.n)}")
    if item.first_step is not None:
        parts.append(steps(item.first_step, item.last_step))
    if item.where:
        parts.append(place(item.where))
    if item.estimated:
        parts.append("estimated from a sample of the tokens")
    return ", ".join(parts)


def headline(finding: Finding) -> str:
    """The rule of a finding, and its steps."""
    first, last = finding.first_step, finding.last_step
    return f"{finding.code} {finding.name}" + ("" if first is None else f", {steps(first, last)}")


def sample(item: Sample) -> str:
    """A sequence worth looking at."""
    uid = "" if item.uid is None else f" (uid {item.uid})"
    return f"step {item.step}, sequence {item.sequence}{uid}: {item.metric} {number(item.value)}"


def _of_the_log(item: Evidence) -> str:
    """A number that the trainer logged beside its recomputation."""
    name = (item.where or {})["logged_name"]
    parts = [f"{name} {number(item.value, item.unit)} logged"]
    if item.baseline is not None:
        parts.append(f"{number(item.baseline, item.unit)} recomputed")
    if item.limit is not None:
        parts.append(f"allowed difference {number(item.limit, item.unit)}")
    if item.n is not None:
        parts.append(count(item.n, "step"))
    if item.first_step is not None:
        parts.append(steps(item.first_step, item.last_step))
    return ", ".join(parts)


def not_recomputed(run: RunSummary) -> list[str]:
    """What the trainer logged and was not held against a recomputation, in one line, the first few with the reason."""
    left = run.not_recomputed
    parts = []
    if left:
        named = ", ".join(f"{name} ({reason})" for name, reason in left[:_NAMED])
        more = f" and {len(left) - _NAMED} more (the JSON report lists all)" if len(left) > _NAMED else ""
        parts.append(f"{count(len(left), 'number')}: {named}{more}")
    if run.not_recomputable:
        parts.append(f"{run.not_recomputable:,} cannot be from what is recorded")
    if run.undefined:
        names = run.undefined_names[:_NAMED]
        more = f" and {run.undefined - len(names)} more" if run.undefined > len(names) else ""
        named = f" ({', '.join(names)}{more})" if names else ""
        parts.append(f"of {run.undefined:,} no definition is known{named}")
    return ["; ".join(parts)] if parts else []


def recomputed(found: Sequence[Reconciled]) -> str:
    """How many of the trainer's numbers were recomputed, and which are not equal, the first few by name."""
    wrong = [item for item in found if item.differing]
    told = f"{count(len(found), 'number')} of the trainer's log"
    if not wrong:
        return f"{told}: equal at every step"
    named = [f"{item.name} (at {item.differing} of {count(item.compared, 'step')})" for item in wrong[:_NAMED]]
    more = f" and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
    rest = "" if len(wrong) == len(found) else f"{len(found) - len(wrong)} equal at every step, "
    return f"{told}: {rest}not equal {', '.join(named)}{more}"


def printable(text: str) -> str:
    """The text with every control character, lone surrogate and the like escaped: a file's name must not steer a terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else f"\\x{ord(char):02x}" for char in text)


def why_not_judged(report: Report) -> str:
    """Why a report that is no pass has nothing to say (exit code 3)."""
    answered = {key for result in report.results if result.outcome in {"passed", "found"} for key in (result.code, result.name)}
    if unanswered := [key for key in report.required if key not in answered]:
        return f"required, but not judged: {', '.join(unanswered)}"
    return "nothing could be judged: no rule that measures had what it needs"
