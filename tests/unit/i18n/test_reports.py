"""Reports of recorded and simulated runs are told whole, with every number that they have."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rl_doctor import check, open_run
from rl_doctor.analyzer.dialects.registry import trainers
from rl_doctor.collectors.importers.registry import importers
from rl_doctor.i18n.telling import told, understood
from rl_doctor.i18n.templates import terms
from rl_doctor.report import text
from rl_doctor.report.diagnosis import told as diagnosed
from rl_doctor.report.model import Report
from tests.diseases.catalogue import diseases

DEMO = Path(__file__).resolve().parents[3] / "rl_doctor" / "demo"
RUNS = sorted(path.name for path in DEMO.iterdir() if path.suffix in {".parquet", ".json"} and path.name != "index.json")
EACH = 18
"""Of how many diseases one is made here."""
SOME = list(diseases())[::EACH]
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_NAME = re.compile(r"\S*[_./<>\d*=`|]\S*|[A-Z]+s?|RLD\S*|[a-z]+(?:-[a-z]+)+")
_LATIN = re.compile(r"[A-Za-z][\w./*=`<>|-]*")


def sentences(report: Report) -> Iterator[str]:
    """Every text of a report that is for people."""
    for finding in report.findings:
        yield from (finding.message, finding.cause, *finding.advice, *finding.ruled_out, *finding.unchecked)
    for entry in diagnosed(report):
        yield from (entry.cause, *entry.ruled_out, *entry.also_fits, *entry.advice)
        yield from (sign.text for sign in (*entry.seen, *entry.absent, *entry.unchecked))
    yield from (result.detail for result in report.results)
    yield from (*report.run.notes, *report.run.skipped_parts)
    yield from (reason for _, reason in report.run.not_recomputed)


def assert_told(report: Report) -> None:
    for sentence in dict.fromkeys(sentences(report)):
        chinese = told(sentence)
        assert understood(sentence), f"{sentence}\n{chinese}"
        assert Counter(_NUMBER.findall(sentence)) == Counter(_NUMBER.findall(chinese)), f"{sentence}\n{chinese}"


@pytest.mark.parametrize("name", RUNS)
def test_reports_of_the_demo_are_told_whole(name: str) -> None:
    report = check(open_run(DEMO / name))
    assert_told(report)
    printed = text.render([report], tell=told)
    assert [line for line in printed.split("\n") if _left_over(line)] == []


def _left_over(line: str) -> list[str]:
    """English words that are no technical terms, where there are several in a row."""
    words = [word for word in _LATIN.findall(line) if word not in terms() and not _NAME.fullmatch(word)]
    runs = re.findall(r"(?:[A-Za-z]+ ){3,}[A-Za-z]+", line)
    return [run for run in runs if len(set(run.split()) & set(words)) > 3]


@pytest.mark.parametrize("name", SOME)
def test_reports_of_diseases_are_told_whole(name: str) -> None:
    assert_told(check(diseases()[name].make(0)))


def test_notes_on_what_was_read_are_told_whole() -> None:
    notes = [f"read as {one.label}" for one in importers().values()]
    notes += [f"loss/x {name.note}" for one in trainers().values() for name in one.names if name.note]
    assert [note for note in dict.fromkeys(notes) if not understood(note)] == []
