"""``rl-doctor demo``: check the recorded runs that ship with the package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import typer

from rl_doctor.cli.output import command_line, emit

if TYPE_CHECKING:
    from rl_doctor.demo import DemoRun
    from rl_doctor.report.model import Report

NAME: Final = "demo"


def command() -> None:
    """Check the recorded runs that ship with rl-doctor.

    One is healthy, the others have a known fault; their reports are printed.

    Exit code: 0 if each fault is found and the healthy runs are clean, else 1.
    """
    from rl_doctor.cli.judging import Format, judge, render
    from rl_doctor.demo import recorded_runs
    from rl_doctor.rules.registry import rules

    verdicts: list[tuple[DemoRun, bool]] = []
    with recorded_runs() as runs:
        for run in runs:
            report = judge(run.path, tuple(rules().values()))
            emit(f"== {run.title}\n\n{render([report], Format.text, 'error', to_terminal=True)}")
            verdicts.append((run, as_expected(report, run.fault)))
        lines = [_line(run, good=good) for run, good in verdicts]
        if runs:
            lines.append(f"\nTry: {command_line()} check {runs[-1].path} --output-format json\n")
            lines.append(f"See: {command_line()} app {runs[-1].path.parent}   (with the extra [app]: pip install '.[app]')\n")
    emit("".join(lines))
    raise typer.Exit(0 if all(good for _, good in verdicts) else 1)


def as_expected(report: Report, fault: str | None) -> bool:
    """Whether the report shows the fault; for no fault, whether it is a pass without errors and warnings."""
    if fault is not None:
        return any(fault == finding.name for finding in report.findings)
    return report.exit_code("warning") == 0


def _line(run: DemoRun, *, good: bool) -> str:
    expected = f"{run.fault} " if run.fault else "healthy "
    told = "found" if run.fault else "and judged so"
    return f"{'as expected' if good else 'NOT AS EXPECTED':<16}{expected}{told if good else 'expected'}: {run.title}\n"
