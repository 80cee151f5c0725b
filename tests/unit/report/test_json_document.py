"""The JSON document: its schema, its numbers, its shape."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from rl_doctor.report import json_document
from rl_doctor.report.model import Evidence, Report
from tests.unit.report.examples import BLANK, CLEAN, EXPLAINED, FULL, MISMATCH, RESULTS, UNREADABLE

SCHEMA = json.loads((Path(__file__).parents[3] / "docs" / "report.schema.json").read_text("utf-8"))


def parse(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("report", [FULL, EXPLAINED, CLEAN, BLANK, UNREADABLE])
def test_a_report_follows_the_schema(report: Report) -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(parse(json_document.render([report])))


def test_several_reports_are_an_array() -> None:
    document = parse(json_document.render([FULL, UNREADABLE]))
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    assert [item["run"]["path"] for item in document] == ["runs/grpo-7b-v3", "torn.parquet"]
    assert document[1]["failure"] == "torn.parquet: truncated: the footer is missing; copy the file again"


def test_the_summary_counts_findings_and_outcomes() -> None:
    assert parse(json_document.render([FULL]))["summary"] == {
        "error": 2, "warning": 1, "info": 0, "passed": 2, "skipped": 4, "crashed": 1, "exit_code": 1,
    }  # fmt: skip
    assert parse(json_document.render([FULL], "never"))["summary"]["exit_code"] == 2


def test_numbers_that_are_not_finite_are_strings() -> None:
    evidence = parse(json_document.render([FULL]))["results"][0]["findings"][0]["evidence"][0]
    assert (evidence["value"], evidence["limit"], evidence["baseline"]) == ("-Infinity", "NaN", None)
    assert evidence["where"] == {"share": "Infinity", "row": 5}


def test_numbers_of_numpy_are_plain_numbers() -> None:
    odd = Evidence(
        "x", np.int64(3), np.int64(4), np.float32(0.5), n=np.int64(7), where={"ranks": (np.int32(1),), "on": np.bool_(1)}
    )  # type: ignore[arg-type]
    finding = replace(MISMATCH, evidence=(odd,))
    document = parse(json_document.render([replace(FULL, results=(replace(RESULTS[3], findings=(finding,)),))]))
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    evidence = document["results"][0]["findings"][0]["evidence"][0]
    assert (evidence["first_step"], evidence["value"], evidence["n"]) == (3, 0.5, 7)
    assert evidence["where"] == {"ranks": [1], "on": True}


def test_findings_with_one_cause_are_one_diagnosis() -> None:
    other = replace(MISMATCH, code="RLD103", name="logprob-misaligned", message="Shifted.", evidence=(Evidence("y", 5, 6, 1.0),))
    results = (RESULTS[3], replace(RESULTS[3], code="RLD103", name="logprob-misaligned", findings=(other,)), RESULTS[8])
    first, second = parse(json_document.render([replace(FULL, results=results)]))["diagnosis"]
    assert (first["codes"], first["first_step"], first["severity"]) == (["RLD103", "RLD102"], 5, "error")
    assert first["signs"]["seen"] == ["Shifted.", MISMATCH.message]
    assert first["signs"]["unchecked"] == ["staleness: needs weight_version"]
    assert first["advice"] == list(MISMATCH.advice)
    assert second["codes"] == ["RLD401"]
