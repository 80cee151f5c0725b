"""The report as JSON: the document that every other machine format could be derived from (docs/report.schema.json)."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rl_doctor.report.diagnosis import Diagnosis, diagnose
from rl_doctor.report.model import Evidence, FailOn, Finding, Report, Result, RunSummary


def render(reports: Sequence[Report], fail_on: FailOn = "error") -> str:
    """One report as an object, several as an array of them; ASCII, with non-finite numbers as strings."""
    documents = [document(report, fail_on) for report in reports]
    return json.dumps(documents[0] if len(documents) == 1 else documents, indent=1, allow_nan=False) + "\n"


def document(report: Report, fail_on: FailOn = "error") -> dict[str, Any]:
    """The report as JSON-compatible data."""
    outcomes = Counter(result.outcome for result in report.results)
    severities = Counter(finding.severity for finding in report.findings)
    return {
        "schema_version": report.schema_version,
        "doctor_version": report.doctor_version,
        "created_at": report.created_at,
        "run": _run(report.run),
        "failure": None if report.failure is None else report.failure.message,
        "summary": {
            **{name: severities[name] for name in ("error", "warning", "info")},
            **{name: outcomes[name] for name in ("passed", "skipped", "crashed")},
            "exit_code": report.exit_code(fail_on),
        },
        "diagnosis": [_diagnosis(entry) for entry in diagnose(report)],
        "results": [_result(result) for result in report.results],
    }


def number(value: float | None) -> float | Literal["NaN", "Infinity", "-Infinity"] | None:
    """A number as JSON can hold it: non-finite ones as strings."""
    if value is None or math.isfinite(value):
        return None if value is None else float(value)
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _run(run: RunSummary) -> dict[str, Any]:
    return {
        "path": run.path,
        "trainer": run.trainer,
        "trainer_version": run.trainer_version,
        "algorithm": run.algorithm,
        "steps": [run.first_step, run.last_step],
        "sequences": run.sequences,
        "tokens": run.tokens,
        "logged_values": run.logged_values,
        "skipped_parts": list(run.skipped_parts),
        "unknown_columns": list(run.unknown_columns),
        "renamed_columns": list(run.renamed_columns),
        "notes": list(run.notes),
        "reconciled": [
            {
                "name": item.name,
                "metric": item.metric,
                "steps": [item.first_step, item.last_step],
                "compared": item.compared,
                "differing": item.differing,
            }
            for item in run.reconciled
        ],
        "not_recomputed": [{"name": name, "reason": reason} for name, reason in run.not_recomputed],
        "not_recomputable": run.not_recomputable,
        "undefined": run.undefined,
    }


def _diagnosis(entry: Diagnosis) -> dict[str, Any]:
    return {
        "cause": entry.cause,
        "severity": entry.severity,
        "first_step": entry.first_step,
        "codes": list(entry.codes),
        "signs": {"seen": list(entry.seen), "absent": list(entry.absent), "unchecked": list(entry.unchecked)},
        "advice": list(entry.advice),
    }


def _result(result: Result) -> dict[str, Any]:
    return {
        "code": result.code,
        "name": result.name,
        "outcome": result.outcome,
        "missing": list(result.missing),
        "reason": result.reason,
        "detail": result.detail,
        "findings": [_finding(finding) for finding in result.findings],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "name": finding.name,
        "severity": finding.severity,
        "message": finding.message,
        "evidence": [_evidence(item) for item in finding.evidence],
        "cause": finding.cause,
        "ruled_out": list(finding.ruled_out),
        "unchecked": list(finding.unchecked),
        "advice": list(finding.advice),
        "fingerprint": finding.fingerprint,
    }


def _evidence(item: Evidence) -> dict[str, Any]:
    estimated = {"estimated": True} if item.estimated else {}
    return {
        "metric": item.metric,
        "first_step": _plain(item.first_step),
        "last_step": _plain(item.last_step),
        "value": number(item.value),
        "baseline": number(item.baseline),
        "limit": number(item.limit),
        "unit": item.unit,
        "n": _plain(item.n),
        "where": None if item.where is None else _plain(item.where),
        **estimated,
    }


def _plain(value: Any) -> Any:
    """The value without numpy's scalars, which rules may leave in evidence."""
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):
        value = value.item()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return number(value)
    return value if value is None or isinstance(value, (bool, int)) else str(value)
