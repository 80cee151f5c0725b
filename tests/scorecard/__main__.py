"""Measure the scorecard. Exits 1 where a promise is missed, and says which."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import pickle
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

from tests.scorecard.outcome import Job, Outcome
from tests.scorecard.page import page
from tests.scorecard.plan import Size, jobs
from tests.scorecard.promises import missed
from tests.scorecard.score import Score
from tests.scorecard.work import done


def main() -> int:
    """Run all jobs in processes and say what came of them."""
    options = _options()
    size = Size(**{field.name: getattr(options, field.name) for field in fields(Size)})
    score = Score(measured(jobs(size, options.only), options.processes, options.keep))
    failed = missed(score)
    text = page(score, failed)
    sys.stdout.write(text)
    if options.write:
        options.write.write_text(text, "utf-8")
    for line in failed:
        sys.stderr.write(f"missed: {line}\n")
    return 1 if failed else 0


def measured(work: list[Job], processes: int, keep: Path | None = None) -> list[Outcome]:
    """The outcomes of jobs, in their order; each is added to the file ``keep``, and those that it has are not measured again."""
    found = {} if keep is None else {outcome.job: outcome for outcome in _kept(keep)}
    if keep is not None:
        keep.write_bytes(b"".join(map(pickle.dumps, found.values())))  # without what a kill has cut
    left, started = [job for job in work if job not in found], time.monotonic()
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for number, outcome in enumerate(pool.map(done, left, chunksize=4), 1):
            found[outcome.job] = outcome
            if keep is not None:
                with keep.open("ab") as file:
                    pickle.dump(outcome, file)
            if outcome.crashed or (outcome.alarms and outcome.job.kind == "healthy"):
                sys.stderr.write(f"{outcome.job.name}, seed {outcome.job.seed}: {dict(outcome.alarms)} {outcome.crashed or ''}\n")
            if number % 200 == 0:
                sys.stderr.write(f"{number} of {len(left)} runs, {time.monotonic() - started:.0f} s\n")
    return [found[job] for job in work]


def _kept(path: Path) -> Iterator[Outcome]:
    """The outcomes in a file, which a kill may have cut."""
    if not path.exists():
        return
    with path.open("rb") as file, suppress(EOFError, pickle.UnpicklingError):
        while True:
            yield pickle.load(file)  # noqa: S301 - written by this program


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.scorecard", description=__doc__)
    usual = Size()
    parser.add_argument("--healthy", type=int, default=usual.healthy, help="healthy runs of each family")
    parser.add_argument("--complaints", type=int, default=usual.complaints, help="runs of each complaint")
    parser.add_argument(
        "--simulated", type=int, default=usual.simulated, help="runs of each fault; 0 for no recorded ones either"
    )
    parser.add_argument("--families", type=int, default=usual.families, help="other families that each fault is put into")
    parser.add_argument("--sizes", type=int, default=usual.sizes, help="runs of each size of a fault")
    parser.add_argument("--sensitivity", type=int, default=usual.sensitivity, help="runs of each small fault")
    parser.add_argument("--timed", type=int, default=usual.timed, help="runs of each fault that are asked how soon it was found")
    parser.add_argument("--only", default="", help="only faults whose names contain this")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--write", type=Path, help="write the page to this file")
    parser.add_argument("--keep", type=Path, help="add outcomes to this file, and measure what it lacks")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
