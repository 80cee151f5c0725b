"""The outputs that are kept as files. ``python -m tests.golden.outputs`` writes them anew: read the diff before you commit it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rl_doctor.report import json_document, junit, text
from tests.unit.report.examples import BLANK, CLEAN, EXPLAINED, FULL, UNREADABLE

HERE = Path(__file__).parent
ALL = [FULL, CLEAN, BLANK, UNREADABLE]
OUTPUTS: dict[str, Callable[[], str]] = {
    "report.txt": lambda: text.render(ALL),
    "report-causes.txt": lambda: text.render([EXPLAINED]),
    "report-causes.json": lambda: json_document.render([EXPLAINED]),
    "report-narrow.txt": lambda: text.render([FULL], "warning", width=60),
    "report-colour.txt": lambda: text.render([FULL], colour=True),
    "report.json": lambda: json_document.render([FULL]),
    "reports.json": lambda: json_document.render(ALL, "warning"),
    "report.xml": lambda: junit.render(ALL),
}

if __name__ == "__main__":
    for name, render in OUTPUTS.items():
        (HERE / name).write_text(render(), "utf-8", newline="\n")
