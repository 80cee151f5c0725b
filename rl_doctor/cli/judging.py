"""Checks runs, prints their reports, and tells the exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from rl_doctor.cli.output import colour, complain, emit, remark, width, writable, write_file
from rl_doctor.errors import DoctorError, UsageError, unreadable

if TYPE_CHECKING:
    from rl_doctor.checking.keeping import Keep
    from rl_doctor.report.model import FailOn, Report
    from rl_doctor.rules.registry import Rule


class FailLevel(StrEnum):
    """Severity from which findings fail the check."""

    error = "error"
    warning = "warning"
    never = "never"


class Lang(StrEnum):
    """Languages of the report as text."""

    en = "en"
    zh = "zh"


class States(StrEnum):
    """What becomes of the states that are kept of a run between checks."""

    used = "used"
    unused = "unused"
    verified = "verified"

    @classmethod
    def of(cls, *, cache: bool, verify: bool) -> States:
        """What the flags of ``check`` ask for.

        Raises:
            UsageError: they contradict each other.
        """
        if verify and not cache:
            raise UsageError("--verify compares with the states that --no-cache leaves aside; give one of them")
        return cls.verified if verify else cls.used if cache else cls.unused


class Format(StrEnum):
    """Formats of the report."""

    text = "text"
    json = "json"
    junit = "junit"


def check_runs(  # noqa: PLR0913, PLR0917 - the options of a command
    runs: Sequence[Path],
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    require: Sequence[str] = (),
    fail_on: FailLevel = FailLevel.error,
    output_format: Format = Format.text,
    output: Sequence[str] = (),
    join: bool = False,  # noqa: FBT001, FBT002 - a flag of the command
    first_steps: int | None = None,
    lang: Lang | None = None,
    states: States = States.used,
) -> int:
    """Do what ``rl-doctor check`` is asked for; the arguments are its own.

    Returns:
        The exit code.

    Raises:
        UsageError: an argument is wrong.
    """
    from rl_doctor.cli.selecting import choose_rules
    from rl_doctor.report.model import exit_code
    from rl_doctor.report.wording import why_not_judged

    files = [_output(item, runs) for item in output]
    rules, required = choose_rules(select, ignore, require)
    one_each = [(runs[0], runs[1:])] if join else [(path, []) for path in runs]
    reports = [judge(path, rules, required, more, first_steps, states) for path, more in one_each]
    lang = lang or preferred()
    tell = telling(lang if can_print(lang) else Lang.en)
    emit(render(reports, output_format, fail_on.value, to_terminal=True, tell=tell))
    for report in reports:
        if report.failure is not None:
            complain(report.failure.message)
        elif report.exit_code(fail_on.value) == 3:
            complain(f"{report.run.path}: {tell(why_not_judged(report))}")
    for form, path in files:
        write_file(path, render(reports, form, fail_on.value, tell=telling(lang)))
    return exit_code(reports, fail_on.value)


def judge(
    path: Path,
    rules: Sequence[Rule],
    required: tuple[str, ...] = (),
    more: Sequence[Path] = (),
    first_steps: int | None = None,
    states: States = States.unused,
) -> Report:
    """The report of one run; one that cannot be read or judged gives a report with a failure, so that the others are judged.

    ``more`` are further logs of the same run; ``first_steps`` as of ``api.check``. What there is to say of states goes to
    standard error.
    """
    from rl_doctor.api import check, failed, open_run
    from rl_doctor.cli.progress import Progress
    from rl_doctor.live.known import remember, written

    try:
        keep = _keep(path, states, first_steps)
        stamp = written(path) if states is States.used else 0.0
        run = open_run(path, *more) if keep is None else keep.opened(*more)
        keep = keep if run.columns else None  # reading a log again takes no longer than reading states
        with Progress(str(path)) as progress:
            report = check(run, rules, required=required, progress=progress, first_steps=first_steps, keep=keep)
    except UsageError:
        raise
    except DoctorError as error:
        return failed(path, error)
    except OSError as error:
        return failed(path, unreadable(path, error))
    if keep is not None:
        remember(path, report, stamp)
    for note in () if keep is None else keep.notes:
        remark(note)
    return report


def _keep(path: Path, states: States, first_steps: int | None) -> Keep | None:
    """What keeps the states of a run."""
    if states is States.unused or first_steps is not None:
        return None
    from rl_doctor.checking.keeping import Keep

    return Keep(path, verify=states is States.verified)


def telling(lang: Lang) -> Callable[[str], str]:
    """What gives a sentence of a report in a language."""
    if lang is Lang.en:  # the catalogues need not be read
        return str
    from rl_doctor.i18n.speaker import Speaker

    return Speaker("zh").tell


def preferred() -> Lang:
    """The language of the environment: ``RL_DOCTOR_LANG``, whatever stands behind the language in it; English by default."""
    return Lang.zh if os.environ.get("RL_DOCTOR_LANG", "").lower().startswith("zh") else Lang.en


def can_print(lang: Lang) -> bool:
    """Whether standard output can take the signs of a language."""
    try:
        "\u8bad\u7ec3".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return lang is Lang.en
    return True


def render(
    reports: Sequence[Report], form: Format, fail_on: FailOn, *, to_terminal: bool = False, tell: Callable[[str], str] = str
) -> str:
    """The reports in a format, with the width and colours of standard output where they go there.

    Text is in the language that ``tell`` gives; what is read by machines is English.
    """
    if form is Format.json:
        from rl_doctor.report import json_document

        return json_document.render(reports, fail_on)
    if form is Format.junit:
        from rl_doctor.report import junit

        return junit.render(reports, fail_on)
    from rl_doctor.report import text

    if to_terminal:
        return text.render(reports, fail_on, width=width(sys.stdout), colour=colour(sys.stdout), tell=tell)
    return text.render(reports, fail_on, tell=tell)


def _output(item: str, runs: Sequence[Path]) -> tuple[Format, Path]:
    form, equals, path = item.partition("=")
    if not equals or not path or form not in {known.value for known in Format}:
        raise UsageError(f"--output {item}: write FORMAT=PATH, where FORMAT is one of {', '.join(Format)}")
    return Format(form), writable(Path(path), runs)
