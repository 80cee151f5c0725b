"""The report as JSON: the document that every other machine format could be derived from (docs/report.schema.json)."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rl_doctor.report.diagnosis import told
from rl_doctor.report.model import Diagnosis, Evidence, FailOn, Finding, Report, Result, RunSummary, Sample


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
        "diagnosis": [_diagnosis(entry) for entry in told(report)],
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
        "name": entry.name,
        "cause": entry.cause,
        "severity": entry.severity,
        "first_step": entry.first_step,
        "last_step": entry.last_step,
        "codes": list(entry.codes),
        "followed_by": list(dict.fromkeys(finding.code for finding in entry.followed_by)),
        "signs": {
            "seen": [sign.text for sign in entry.seen] or [finding.message for finding in entry.findings],
            "absent": [sign.text for sign in entry.absent],
            "unchecked": [sign.text for sign in entry.unchecked],
        },
        "ruled_out": list(entry.ruled_out),
        "also_fits": list(entry.also_fits),
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
        "suspect": finding.suspect or None,
        "samples": [_sample(item) for item in finding.samples],
    }


def _sample(item: Sample) -> dict[str, Any]:
    return {
        "step": item.step,
        "sequence": item.sequence,
        "uid": item.uid,
        "metric": item.metric,
        "value": number(item.value),
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
        **({} if item.interval is None else {"interval": [number(bound) for bound in item.interval]}),
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
