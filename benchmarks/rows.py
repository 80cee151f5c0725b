"""How long single rows of a long run take: what a click in the app on a response, its group or its tokens waits for.

Writes a run folder with the package's own writer (that of check.py), packs it into a run file too, and asks for random rows of
both: wall seconds, the median and the longest of many, and the median of the CPU seconds. Nothing is kept between two of
them but the opened run, unless it says so.

    python benchmarks/rows.py [million tokens] [--rows N] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from check import packed, prepared

from rl_doctor.analyzer.logged import Logged
from rl_doctor.report.model import Report, RunSummary
from rl_doctor.store.lookup import group_of, passes_of, rows_of_step, sequence_of
from rl_doctor.store.run import Run, open_run
from rl_doctor.views.opened import Opened
from rl_doctor.views.rollouts import rollouts
from rl_doctor.views.tokens import tokens


def timed(function: Callable[[], Any]) -> tuple[float, float]:
    """Wall and CPU seconds."""
    start, busy = time.perf_counter(), time.process_time()
    if function() is None:
        raise SystemExit("a row that was written is not found")
    return time.perf_counter() - start, time.process_time() - busy


def told(name: str, seconds: list[tuple[float, float]]) -> None:
    wall, busy = zip(*seconds, strict=True)
    print(f"  {name:40} {statistics.median(wall):8.3f} {max(wall):8.3f} {statistics.median(busy):8.3f}")


def without_report(run: Run) -> Opened:
    """The run for views that need nothing that a check finds out."""
    summary = RunSummary(str(run.path), "custom", None, "grpo", run.steps[0], run.steps[-1], 0, 0)
    return Opened(run.path, run, Report(summary, (), "", 1, ""), {}, {}, (), Logged(run.metrics(), run.info, rows=True), 0.0)


def measure(path: Path, number: int) -> None:
    told("opening", [timed(lambda: open_run(path))])
    run = open_run(path)
    chosen = random.Random(0)  # noqa: S311 - any rows will do
    places = []
    for step in chosen.choices(run.steps, k=number):
        rows = rows_of_step(run, step)
        if rows is not None:
            places.append((step, chosen.choice(rows.columns["sequence"].tolist())))
    told("the rows of a step", [timed(lambda s=step: rows_of_step(run, s, ["reward", "uid"])) for step, _ in places])
    told("one row, all columns", [timed(lambda s=s, n=n: sequence_of(run, n, run.columns, s)) for s, n in places])
    told("one row, its step not known", [timed(lambda n=n: sequence_of(run, n, run.columns)) for _, n in places])
    found = [sequence_of(run, n, (), s) for s, n in places]
    told("its group, all columns", [timed(lambda r=row: group_of(run, r, run.columns)) for row in found])  # type: ignore[misc]
    told("all passes over it, all columns", [timed(lambda r=row: passes_of(run, r, run.columns)) for row in found])  # type: ignore[misc]
    opened = without_report(run)
    told("page of a response", [timed(lambda s=s, n=n: rollouts(opened, step=s, sequence=n)) for s, n in places])
    told("page of its tokens", [timed(lambda s=s, n=n: tokens(opened, step=s, sequence=n)) for s, n in places])
    told("page of tokens, step seen before", [timed(lambda s=s, n=n: tokens(opened, step=s, sequence=n)) for s, n in places[-5:]])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("million", nargs="?", type=float, default=100.0)
    parser.add_argument("--rows", type=int, default=20)
    parser.add_argument("--keep", type=Path, help="folder to keep the runs in, and to take them from if they are there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        keep = arguments.keep or Path(temporary)
        folder, count = prepared(keep, arguments.million)
        for kind, path in (("run folder", folder), ("run file", packed(folder))):
            print(f"{f'{kind}, {count:,} tokens':42} {'median':>8} {'longest':>8} {'CPU':>8}")
            measure(path, arguments.rows)


if __name__ == "__main__":
    main()
