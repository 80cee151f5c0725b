"""Runs rules over a view: the only place that catches a rule's exception."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from dataclasses import replace

from rl_doctor.report.model import SEVERITY_ORDER, Finding, Hit, Result
from rl_doctor.rules.registry import Rule, Skip
from rl_doctor.rules.view import View


def run_rules(rules: Iterable[Rule], view: View) -> tuple[Result, ...]:
    """Run each rule and return its result, in the order given."""
    return tuple(_run(rule, view) for rule in rules)


def _run(rule: Rule, view: View) -> Result:
    blank = Result(rule.code, rule.name, "passed", measures=rule.measures)
    lacking = sorted({column for name in rule.needs for column in view.missing.get(name, ())})
    if lacking:
        reason = "config" if all(name.startswith("config.") for name in lacking) else "column"
        return replace(blank, outcome="skipped", missing=tuple(lacking), reason=reason)
    if empty := [name for name in rule.needs if view.get(name) is None]:
        return replace(blank, outcome="skipped", reason="data", detail=f"nothing measured for {empty[0]}")
    started = time.perf_counter()
    try:
        yielded = list(rule.check(view.narrowed((*rule.needs, *rule.optional)), rule.limits))
    except Exception as error:  # noqa: BLE001 - a rule's bug must not hide the other rules' findings
        seconds = time.perf_counter() - started
        return replace(blank, outcome="crashed", reason=type(error).__name__, detail=str(error), seconds=seconds)
    done = replace(blank, seconds=time.perf_counter() - started)
    if findings := tuple(_finding(rule, item) for item in yielded if isinstance(item, Hit)):
        return replace(done, outcome="found", findings=findings)
    for item in yielded:
        if isinstance(item, Skip):
            return replace(done, outcome="skipped", missing=item.missing, reason=item.reason, detail=item.why)
    return done


def _finding(rule: Rule, hit: Hit) -> Finding:
    severity = min(hit.severity, rule.severity, key=SEVERITY_ORDER.__getitem__)
    scope = [rule.code, *sorted({item.metric for item in hit.evidence})]
    scope += sorted(f"{key}={value}" for item in hit.evidence for key, value in (item.where or {}).items())
    return Finding(
        rule.code,
        rule.name,
        severity,
        hit.message,
        hit.evidence,
        hit.cause or rule.cause,
        rule.advice,
        hit.ruled_out,
        hit.unchecked,
        hashlib.sha256("\n".join(scope).encode()).hexdigest()[:16],
    )
