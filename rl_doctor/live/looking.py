"""Looks at a run that may still grow, again and again, and makes a ``Sight`` of each look."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.series import Series
from rl_doctor.errors import DoctorError, SeveralRunsError
from rl_doctor.live.followed import Followed
from rl_doctor.live.pace import BEGINNING, Pace
from rl_doctor.live.sight import ENDED, Found, Sight, Trouble
from rl_doctor.report.diagnosis import told
from rl_doctor.report.model import SEVERITY_ORDER, Diagnosis, Evidence, Finding, Report
from rl_doctor.report.wording import evidence, why_not_judged
from rl_doctor.schema import RunInfo
from rl_doctor.store import layout
from rl_doctor.store.info import parse_info
from rl_doctor.store.run import is_stored
from rl_doctor.views.opened import Opened

TREND: Final = 12
"""Values of a trend."""
_CLEAN_STEPS: Final = 3
_CLEAN_SHARE: Final = 0.1
"""A finding is over after so many steps without it, and that share of its own length: what comes and goes is not over."""


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a run.

    Attributes:
        sight: what was seen, now or the last time that the run could be read; None where it never could be.
        problem: why the run cannot be read now; "" where it can.
        missing: whether that is because there is nothing at its path.
        closing: whether the recording has ended, and only its last parts may be missing.
        over: whether there is nothing to wait for.
        exit_code: what a watch that ends now exits with.
    """

    sight: Sight | None
    problem: str = ""
    missing: bool = False
    closing: bool = False
    over: bool = False
    exit_code: int = 3


class Looker:
    """Looks at one run.

    Args:
        path: run folder, Parquet file or log.
        codes: codes of the rules that count; None for all.
        now: tells the Unix time.
        clock: tells the time of a clock that nobody sets.
    """

    def __init__(
        self,
        path: Path,
        codes: Collection[str] | None = None,
        *,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._codes = codes
        self._now = now
        self._clock = clock
        self._followed = Followed(path, everything=False)
        self._pace = Pace(path)
        self._sight: Sight | None = None
        self._report: Report | None = None

    def look(self) -> Look:
        """Read what is new and judge the run; raises nothing that a further look may mend."""
        try:
            new = self._followed.refresh()
            opened = self._followed.opened
            closing = opened.run.info.status in ENDED or (self._path.is_file() and is_stored(self._path))
            # The status is read after the parts are listed: only where nothing was new since is the end the end.
            sight = self._seen(opened, closing=closing, ended=closing and not new)
        except (DoctorError, OSError) as error:
            code = error.exit_code if isinstance(error, DoctorError) else 2
            unnamed = isinstance(error, SeveralRunsError)
            return self._failed(str(error), code, missing=not self._path.exists(), hopeless=unnamed)
        except Exception as error:  # noqa: BLE001 - a watch of days must not end by what one look stumbles on
            return self._failed(f"internal error: {type(error).__name__}: {error}", 2)
        return Look(sight, closing=closing, over=sight.ended, exit_code=sight.exit_code)

    def close(self) -> None:
        """Keep what was computed for whoever looks at the run next; raises nothing."""
        with suppress(Exception):  # what is not kept is computed again
            self._followed.close()

    def _seen(self, opened: Opened, *, closing: bool, ended: bool) -> Sight:
        if self._sight is None or opened.report is not self._report:
            self._report = opened.report
            self._sight = sight_of(opened, self._codes)
        quiet = None if closing else self._quiet(self._sight, opened.written)
        read = max((int(series.steps[-1]) for series in opened.series.values() if len(series)), default=self._sight.step)
        self._sight = replace(self._sight, ended=ended, read=read, written=opened.written, quiet=quiet)
        return self._sight

    def _quiet(self, sight: Sight, written: float) -> float | None:
        return self._pace.quiet(written, self._now(), self._clock(), running=sight.status == "running")

    def _failed(self, problem: str, exit_code: int, *, missing: bool = False, hopeless: bool = False) -> Look:
        sight, info = self._sight, None if missing else self._info()
        if sight is not None and not sight.ended:
            sight = self._sight = replace(sight, quiet=self._quiet(sight, sight.written))
        elif sight is None and info is not None and info.status == "running":
            sight = self._begun(info)
        over = hopeless or (info.status in ENDED if info is not None else self._is_damaged())
        return Look(sight, problem, missing, over=over, exit_code=exit_code)

    def _info(self) -> RunInfo | None:
        """The description of a run folder, where that can be read."""
        path = self._path / layout.INFO_NAME
        try:
            return parse_info(path.read_bytes(), str(path))
        except (DoctorError, OSError):
            return None

    def _begun(self, info: RunInfo) -> Sight | None:
        """What is seen of a run that has been recorded for too long without a step; None where it has not."""
        try:
            written = (self._path / layout.INFO_NAME).stat().st_mtime
        except OSError:
            return None
        silence = self._now() - written
        if silence <= BEGINNING:
            return None
        key = info.run_id or str(self._path.resolve())
        return Sight(str(self._path), key, status=info.status, written=written, quiet=silence, exit_code=3)

    def _is_damaged(self) -> bool:
        """Whether what cannot be read is one file that is written at once, so that waiting for it is in vain."""
        try:
            return self._path.is_file() and is_stored(self._path)
        except OSError:
            return False


def sight_of(opened: Opened, codes: Collection[str] | None = None) -> Sight:
    """What is seen of a run.

    Args:
        opened: the run with all that is known of it.
        codes: codes of the rules that count; None for all.
    """
    report = opened.report if codes is None else narrowed(opened.report, codes)
    run, info = report.run, opened.run.info
    known = (" ".join(part for part in (run.trainer, run.trainer_version) if part), run.algorithm)
    series = {name: _until(own, run.last_step) for name, own in opened.series.items()}  # they may go on where the report ends
    axis = max((own.steps for own in series.values()), key=len, default=np.empty(0, np.int64))
    exit_code = report.exit_code()
    crashed = [result.code for result in report.results if result.outcome == "crashed"]
    return Sight(
        str(opened.path),
        info.run_id or str(opened.path.resolve()),
        " · ".join(part for part in known if part),
        info.status,
        step=run.last_step,
        tokens=run.tokens,
        written=opened.written,
        troubles=tuple(_trouble(entry, series, axis) for entry in told(report)),
        exit_code=exit_code,
        why=f"crashed: {', '.join(crashed)}" if crashed else why_not_judged(report) if exit_code == 3 else "",
    )


def _until(series: Series, last: int | None) -> Series:
    if last is None or not len(series) or series.steps[-1] <= last:
        return series
    size = int(np.searchsorted(series.steps, last, side="right"))
    return replace(series, steps=series.steps[:size], values=series.values[:size], counts=series.counts[:size])


def narrowed(report: Report, codes: Collection[str]) -> Report:
    """The report as far as it rests on some rules; causes are told with those of their findings alone."""
    entries = []
    for entry in report.diagnosis:
        own = tuple(finding for finding in entry.findings if finding.code in codes)
        if own:
            worst = max((finding.severity for finding in own), key=SEVERITY_ORDER.__getitem__)
            follows = tuple(finding for finding in entry.followed_by if finding.code in codes)
            entries.append(replace(entry, findings=own, followed_by=follows, severity=worst))
    results = tuple(result for result in report.results if result.code in codes)
    return replace(report, results=results, diagnosis=tuple(entries))


def _trouble(entry: Diagnosis, series: Mapping[str, Series], axis: NDArray[np.int64]) -> Trouble:
    items = [item for finding in entry.findings for item in finding.evidence]
    metric = next((item.metric for item in items if item.metric in series and len(series[item.metric].measured()) > 1), None)
    return Trouble(
        entry.name,
        entry.cause,
        entry.severity,
        tuple(_found(finding, series, axis) for finding in entry.findings),
        tuple(_found(finding, series, axis) for finding in entry.followed_by),
        tuple(sorted({finding.fingerprint for finding in entry.findings})),
        entry.first_step,
        entry.last_step,
        entry.advice,
        metric,
        () if metric is None else trend(series[metric]),
    )


def _found(finding: Finding, series: Mapping[str, Series], axis: NDArray[np.int64]) -> Found:
    return Found(
        finding.code,
        finding.name,
        finding.severity,
        finding.message,
        tuple(map(evidence, finding.evidence)),
        finding.first_step,
        finding.last_step,
        finding.last_step is None or any(_goes_on(item, series, axis) for item in finding.evidence if item.last_step is not None),
    )


def _goes_on(item: Evidence, series: Mapping[str, Series], axis: NDArray[np.int64]) -> bool:
    """Whether there were too few steps after it to say that it is over; counted by the steps at which its metric exists."""
    steps = series[item.metric].measured().steps if item.metric in series else axis
    last = -1 if item.last_step is None else item.last_step
    first = last if item.first_step is None else item.first_step
    after, within = int((steps > last).sum()), int(((steps >= first) & (steps <= last)).sum())
    return after < max(_CLEAN_STEPS, math.ceil(_CLEAN_SHARE * within))


def trend(series: Series, most: int = TREND) -> tuple[float, ...]:
    """Means of the measured values over at most ``most`` equal stretches of them, oldest first."""
    values = series.measured().values
    return tuple(float(part.mean()) for part in np.array_split(values, min(most, len(values))) if len(part))
