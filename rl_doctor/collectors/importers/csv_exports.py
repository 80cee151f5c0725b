"""Tables that trackers let one download: charts and tables of runs from Weights & Biases, curves from TensorBoard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from rl_doctor.collectors.importers.csv_table import form_of_sample, read_table
from rl_doctor.collectors.importers.patterns import when_used
from rl_doctor.collectors.importers.registry import Fit, Imported, Sample, importer, part_of
from rl_doctor.collectors.importers.several_runs import one_run
from rl_doctor.errors import InputError
from rl_doctor.store.step_axis import plain_name, step_names

_BAND: Final = when_used(r"(.+)__(MIN|MAX)")
_OF_RUN: Final = when_used(r"(.+) - (.+)")
_RUNS_TABLE: Final = frozenset({"Name", "State"})
_OF_RUNS_TABLE: Final = frozenset({"Created", "Runtime", "User", "Tags", "Notes", "Sweep", "ID"})
_TAG: Final = when_used(r".*\btag-(.+)|.*_tag_(.+)")


def _names(sample: Sample) -> tuple[str, ...]:
    form = form_of_sample(sample)
    return () if form is None else form.names


def _is_chart(sample: Sample) -> Fit:
    names = _names(sample)
    banded = {match[1] for name in names if (match := _BAND.fullmatch(name))}
    if any(name in names and _OF_RUN.fullmatch(name) for name in banded):
        return Fit.SIGNATURE
    others = [name for name in names if not step_names([name])]
    return Fit.SHAPE if others and len(others) < len(names) and all(map(_OF_RUN.fullmatch, others)) else Fit.NO


@importer("wandb-chart", "the chart of Weights & Biases, exported as CSV", _is_chart, parts=True)
def read_chart(path: Path) -> Imported:
    """Read the columns ``<run> - <metric>`` of a run, without the bands ``__MIN`` and ``__MAX`` beside them."""
    file, wanted = part_of(path)
    return read_table(file, _metrics_of(file, wanted))


def _metrics_of(file: Path, wanted: str | None) -> Callable[[Sequence[str]], dict[str, str]]:
    def named(names: Sequence[str]) -> dict[str, str]:
        plain = [name for name in names if not _BAND.fullmatch(name)]
        own = {name: match for name in plain if (match := _OF_RUN.fullmatch(name))}
        run = one_run(file, {match[1] for match in own.values()}, wanted)
        return {name: own[name][2] if name in own else name for name in plain if name not in own or own[name][1] == run}

    return named


def _is_table_of_runs(sample: Sample) -> Fit:
    names = set(_names(sample))
    return Fit.SIGNATURE if names >= _RUNS_TABLE and names & _OF_RUNS_TABLE else Fit.NO


@importer("wandb-runs", "a table of runs of Weights & Biases, exported as CSV", _is_table_of_runs)
def read_runs(path: Path) -> Imported:
    """Refuse a table with one row per run: it has no history."""
    raise InputError(f"{path}: a table of runs, one row per run: it has no history; export the charts or the history of one run")


def _is_curve(sample: Sample) -> Fit:
    plain = [plain_name(name) for name in _names(sample)]
    if plain == ["wall_time", "step", "value"]:
        return Fit.SIGNATURE
    return Fit.SHAPE if len(plain) == 2 and plain[1] == "value" and step_names(plain[:1]) else Fit.NO


@importer("tensorboard-curve", "the curve of TensorBoard, exported as CSV", _is_curve)
def read_curve(path: Path) -> Imported:
    """Read one curve; its name is the file's, after ``tag-`` where TensorBoard named the file."""
    match = _TAG.fullmatch(path.stem)
    called = path.stem if match is None else match[1] or match[2]
    return read_table(path, lambda names: {name: called if plain_name(name) == "value" else name for name in names})
