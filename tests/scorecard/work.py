"""Does one job: makes a run, checks it, and finds out how soon a fault shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, Final

import numpy as np

from rl_doctor.api import recompute
from rl_doctor.report.model import SEVERITY_ORDER
from rl_doctor.rules.registry import rules
from rl_doctor.store.metric_log import MetricLog
from tests.diseases.catalogue import Disease, diseases
from tests.diseases.complaints import complaints
from tests.diseases.recorded import load
from tests.diseases.verdict import Verdict, verdict
from tests.scorecard.outcome import Job, Outcome
from tests.scorecard.prefix import damaged_rows, first_difference, half_damaged, steps_of, up_to
from tests.scorecard.sensitivity import FAULTS
from tests.simulation.families import FAMILIES, hosting
from tests.simulation.healthy import KINDS
from tests.simulation.inject import onset
from tests.simulation.logged import LoggedRun
from tests.simulation.logs import relogged
from tests.simulation.run import SimulatedRun

_LACKING: Final = ("length", "column", "config", "data nothing measured")
"""Reasons of a rule that say that a host has not what it needs."""


def done(job: Job) -> Outcome:
    """What comes of a job."""
    return _WORK[job.kind](job)


def _healthy(job: Job) -> Outcome:
    run = load(job.name) if job.recorded else FAMILIES[job.name](job.seed)
    return _answered(job, len(steps_of(run)), verdict(run))


def _complaint(job: Job) -> Outcome:
    run = complaints()[job.name].make(job.seed)
    if isinstance(run, LoggedRun):
        return _answered(job, len(run.log.steps()), verdict(run))
    return _answered(job, len(steps_of(run)), verdict(run))


def _answered(job: Job, steps: int, told: Verdict) -> Outcome:
    alarms = {name: severity for name, (severity, _) in told.found.items() if severity != "info"}
    return Outcome(job, steps, alarms, tuple(sorted(told.crashed)), told.causes)


def _fault(job: Job) -> Outcome:
    disease = diseases()[job.name]
    random = np.random.default_rng(job.seed)
    if job.host == "" and (disease.into is None or job.size is None):
        run, healthy = disease.make(job.seed), None if disease.into is None else KINDS[disease.into](job.seed)
    else:
        healthy = _host(job, disease)
        if lacks := sorted({*disease.needs} - {*healthy.columns}):
            return Outcome(job, 0, unjudged=f"no {lacks[0]}")
        run = disease.damaged(healthy, random, job.size, onset(healthy), _relogged if job.recorded else relogged)
    begin = int(steps_of(run)[0]) if healthy is None else first_difference(run, _with_log_of(job, disease, healthy))
    if begin is None:
        return Outcome(job, len(steps_of(run)), unjudged="nothing to damage")
    hit = damaged_rows(run, healthy, disease.asks[1]) if job.host and disease.asks[0] and healthy is not None else None
    if hit is not None and hit < disease.asks[0]:
        return Outcome(job, len(steps_of(run)), unjudged="fewer damaged rows than its rule asks for")
    told = verdict(run)
    made = replace(_answered(job, len(steps_of(run)), told), found=_is_found(disease, told), causes=_new(told, disease, healthy))
    skipped = "" if disease.rule in told.found else told.skipped.get(disease.rule, "")
    made = replace(made, unjudged=skipped if skipped.startswith(_LACKING) and job.host else "")
    return _timed(made, disease, run, begin) if job.timed and made.found else made


def _new(told: Verdict, disease: Disease, healthy: SimulatedRun | None) -> tuple[str, ...]:
    """The causes told, in their order, without those that are the host's own: told of it undamaged as well."""
    if healthy is None or disease.cause not in told.causes[1:]:
        return told.causes
    own = {*verdict(healthy).causes} - {disease.cause}
    return tuple(cause for cause in told.causes if cause not in own)


def _host(job: Job, disease: Disease) -> SimulatedRun:
    if job.recorded:
        return load(job.host)
    return hosting(job.host, job.seed) if job.host else KINDS[disease.into or "on_policy"](job.seed)


def _with_log_of(job: Job, disease: Disease, healthy: SimulatedRun) -> SimulatedRun:
    """The host, with the log that the damaged run has where nothing was damaged."""
    return _relogged_host(job.host) if job.recorded and disease.log else healthy


@cache
def _relogged_host(name: str) -> SimulatedRun:
    return _relogged(load(name))


def _relogged(run: SimulatedRun) -> SimulatedRun:
    """The recorded run with a log that says what its damaged rows say, as its trainer defines the numbers."""
    source: Any = run
    points = dict(run.log.points)
    points |= {(name, "train"): (found.steps, found.values) for name, found in recompute(source, run.log.names()).items()}
    return replace(run, log=MetricLog(points))


def _is_found(disease: Disease, told: Verdict) -> bool:
    severities = [told.found[rule][0] for rule in (disease.rule, *disease.sooner) if rule in told.found]
    return any(SEVERITY_ORDER[severity] >= SEVERITY_ORDER[disease.least] for severity in severities)


def _timed(made: Outcome, disease: Disease, run: SimulatedRun, begin: int) -> Outcome:
    steps = steps_of(run)
    before, left = int(np.sum(steps < begin)), int(np.sum(steps >= begin))
    telling = [rule for rule in rules().values() if rule.name in {disease.rule, *disease.sooner}]

    def shows(count: int) -> bool:
        return _is_found(disease, verdict(up_to(run, int(steps[before + count - 1])), telling))

    needed = next(filter(shows, range(1, left + 1)))
    half = None if disease.damage is None else half_damaged(run, disease.damage, begin)
    return replace(made, before=before, latency=needed, half=half)


def _sensitivity(job: Job) -> Outcome:
    run = FAULTS[job.name].make(job.seed)
    steps = steps_of(run)
    told = verdict(run)
    codes = FAULTS[job.name].codes
    if not _speaks(told, codes):
        return _answered(job, len(steps), told)
    about = [rule for rule in rules().values() if rule.code.startswith(codes)]
    needed = next(n for n in range(1, len(steps) + 1) if _speaks(verdict(up_to(run, int(steps[n - 1])), about), codes))
    told = verdict(up_to(run, int(steps[needed - 1])))
    seen = run.arrays["response_mask"][run.token_step <= steps[needed - 1]]
    return replace(_answered(job, len(steps), told), found=True, latency=needed, tokens=int(seen.sum()))


def _speaks(told: Verdict, codes: tuple[str, ...]) -> bool:
    """Whether a rule whose code begins so found anything, be it only worth knowing."""
    return any(rule.code.startswith(codes) and rule.name in told.found for rule in rules().values())


_WORK: dict[str, Callable[[Job], Outcome]] = {
    "healthy": _healthy, "complaint": _complaint, "fault": _fault, "size": _fault, "sensitivity": _sensitivity,
}  # fmt: skip
