"""``rl-doctor metrics``: the recomputed metrics, per step."""

from __future__ import annotations

import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from rl_doctor.cli.output import PIPE_WIDTH, emit, is_terminal, width, writable, write_file
from rl_doctor.errors import NothingToJudgeError, UsageError

if TYPE_CHECKING:
    from rl_doctor.analyzer.engine import Analysis
    from rl_doctor.store.run import Run

NAME: Final = "metrics"


class Format(StrEnum):
    """Formats of the metrics."""

    text = "text"
    json = "json"
    csv = "csv"
    parquet = "parquet"


def command(
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help="Run folder, Parquet file, or log.")] = None,
    select: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Metrics, topics such as policy, or names in the trainer's log.")
    ] = None,
    output_format: Annotated[
        Format | None, typer.Option(help="What to print; by default what the suffix of --output says, else text.")
    ] = None,
    output: Annotated[Path | None, typer.Option(metavar="PATH", help="Write to a file instead of standard output.")] = None,
    list_all: Annotated[bool, typer.Option("--list", help="List the metrics; with a RUN, its own as well.")] = False,  # noqa: FBT002 - a flag
) -> None:
    """Print the recomputed metrics of a run, per step."""
    from rl_doctor.analyzer.registry import metrics, metrics_for
    from rl_doctor.api import open_run
    from rl_doctor.cli.selecting import choose_metrics, words

    if run is None and not list_all:
        raise UsageError("metrics: name a RUN, or write --list to see what there is")
    opened = None if run is None else open_run(run)
    known = metrics() if opened is None else metrics_for(opened.columns)
    native = [] if opened is None else [name for name in words(select or ()) if name in opened.metrics().names()]
    native = [name for name in native if name not in known]
    asked = [word for word in words(select or ()) if word not in native]
    names = choose_metrics(asked, known) if select else list(known)
    if opened is None or list_all:
        longest = max((len(name) for name in names), default=0)
        emit("".join(f"{name:<{longest}}  {known[name].unit:<9}  {known[name].doc}\n" for name in names))
        return
    if output is not None:
        writable(output, [opened.path])
    form = _form(output_format, output)
    if form is Format.parquet and output is None and is_terminal(sys.stdout):
        raise UsageError("metrics: Parquet is no text; add --output PATH or redirect standard output")
    columns = width(sys.stdout) if output is None else PIPE_WIDTH
    content = _formatted(_analysis(opened, names if select else None, native), form, columns)
    if output is not None:
        write_file(output, content)
    else:
        emit(content)


def _form(asked: Format | None, output: Path | None) -> Format:
    """The format asked for, or that of the file's suffix."""
    suffix = "" if output is None else output.suffix.removeprefix(".").lower()
    named = Format(suffix) if suffix in {known.value for known in Format} else None
    if asked is not None and named is not None and asked is not named:
        raise UsageError(
            f"metrics: --output {output} says {named.value}, and --output-format {asked.value}; leave one of them out"
        )
    return asked or named or Format.text


def _analysis(run: Run, names: list[str] | None, native: list[str]) -> Analysis:
    """The metrics, and the trainer's own numbers under their ``native`` names, recomputed as it defines them."""
    from rl_doctor.analyzer.engine import analyze
    from rl_doctor.api import recompute

    analysis = analyze(run, names)
    if native:
        found = recompute(run, native)
        if not found and not names:
            raise NothingToJudgeError(f"{run.path}: {native[0]} cannot be recomputed; `rl-doctor check` says why")
        analysis = replace(analysis, series={**analysis.series, **found})
    if not any(len(series) for series in analysis.series.values()):
        lacking = sorted({column for columns in analysis.missing.values() for column in columns})
        what = f"; the run has no {', '.join(lacking)}" if lacking else ""
        raise NothingToJudgeError(f"{run.path}: none of the metrics could be computed{what}")
    return analysis


def _formatted(analysis: Analysis, form: Format, columns: int) -> str | bytes:
    from rl_doctor.cli import metric_tables

    if form is Format.json:
        return metric_tables.to_json(analysis)
    if form is Format.csv:
        return metric_tables.to_csv(analysis)
    if form is Format.parquet:
        return metric_tables.to_parquet(analysis)
    return metric_tables.to_text(analysis, columns)
