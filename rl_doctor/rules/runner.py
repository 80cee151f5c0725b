"""Runs rules over a view: the only place that catches a rule's exception."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Final

from rl_doctor.report.model import SEVERITY_ORDER, Finding, Hit, Result, Severity
from rl_doctor.rules.applicability import inapplicable
from rl_doctor.rules.registry import Rule, Skip, Told
from rl_doctor.rules.view import View

_ROWS: Final = 3
"""Rows of a log below which nothing that a rule does not find is told."""


def run_rules(rules: Iterable[Rule], view: View) -> tuple[Result, ...]:
    """Run each rule and return its result, in the order given."""
    return tuple(_applied(_run(rule, view), view) for rule in rules)


def _applied(result: Result, view: View) -> Result:
    """The result, where it lacks numbers, told apart: not recorded, or nothing that this training has."""
    if result.outcome != "skipped" or result.reason not in {"column", "data"}:
        return result
    why = inapplicable(result.code, view)
    return result if why is None else replace(result, missing=(), reason="config", detail=why)


def _run(rule: Rule, view: View) -> Result:
    blank = Result(rule.code, rule.name, "passed", measures=rule.measures)
    lacking = sorted({column for name in rule.needs for column in view.missing.get(name, ())})
    if lacking:
        reason = "config" if all(name.startswith("config.") for name in lacking) else "column"
        return replace(blank, outcome="skipped", missing=tuple(lacking), reason=reason)
    if empty := [name for name in rule.needs if not (view.named(name) if name.endswith(".") else view.get(name))]:
        return replace(blank, outcome="skipped", reason="data", detail=f"nothing measured for {empty[0]}")
    started = time.perf_counter()
    seen = view.narrowed((*rule.needs, *rule.optional))
    try:
        yielded = list(rule.check(seen, rule.limits))
    except Exception as error:  # noqa: BLE001 - a rule's bug must not hide the other rules' findings
        seconds = time.perf_counter() - started
        return replace(blank, outcome="crashed", reason=type(error).__name__, detail=str(error), seconds=seconds)
    return _told(rule, replace(blank, seconds=time.perf_counter() - started), yielded, seen)


def _told(rule: Rule, done: Result, yielded: Iterable[Hit | Skip | Told], seen: View) -> Result:
    """The result of what a rule yielded; of several skips the first counts, and none beside a finding."""
    told = tuple(yielded)
    done = replace(done, detail=next((item.words for item in told if isinstance(item, Told)), ""))
    if findings := tuple(_finding(rule, item, seen.estimated) for item in told if isinstance(item, Hit)):
        return replace(done, outcome="found", findings=findings)
    skip = next((item for item in told if isinstance(item, Skip)), None)
    if skip is None and rule.measures and (rule.needs or rule.optional):
        skip = _vacuous(seen)
    if skip is None:
        return done
    return replace(done, outcome="skipped", missing=skip.missing, reason=skip.reason, detail=skip.why)


def _vacuous(seen: View) -> Skip | None:
    """Why a rule that found nothing has passed nothing either: it saw no number, or a row or two of a log."""
    measured = [kept for series in seen.all_series.values() if len(kept := series.measured())]
    if not measured:
        return Skip("data", "nothing measured that it looks at")
    longest = max(map(len, measured))
    if longest >= _ROWS or any(int(series.counts.max()) > 1 for series in measured):
        return None
    return Skip("length", f"inconclusive: {longest} row{'s' if longest > 1 else ''} of a log, and {_ROWS} are needed")


def _finding(rule: Rule, hit: Hit, estimated: Collection[str]) -> Finding:
    most: Severity = "warning" if rule.status == "preview" else "error"
    severity = min(hit.severity, rule.severity, most, key=SEVERITY_ORDER.__getitem__)
    scope = [rule.code, *sorted({item.metric for item in hit.evidence})]
    scope += sorted(f"{key}={value}" for item in hit.evidence for key, value in (item.where or {}).items())
    return Finding(
        rule.code,
        rule.name,
        severity,
        hit.message,
        tuple(replace(item, estimated=True) if item.metric in estimated else item for item in hit.evidence),
        hit.cause or rule.cause,
        hit.advice or rule.advice,
        hit.ruled_out,
        hit.unchecked,
        hashlib.sha256("\n".join(scope).encode()).hexdigest()[:16],
        hit.suspect,
        hit.samples,
        hit.cause not in {None, "", rule.cause},
    )
