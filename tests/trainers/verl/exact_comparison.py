"""What is recomputed from a recorded run against what was logged of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from rl_doctor import Run
from rl_doctor.analyzer import reconcile
from rl_doctor.analyzer.comparison import Comparison
from rl_doctor.analyzer.engine import analyze
from rl_doctor.report.model import Finding
from rl_doctor.rules.registry import rules
from rl_doctor.rules.runner import run_rules
from rl_doctor.rules.view import View
from rl_doctor.store.metric_log import MetricLog


def compared(run: Run, log: MetricLog | None = None) -> dict[str, Comparison]:
    """Every key that can be compared, from the run and from the passes of its critic."""
    plan = reconcile.plan(run.info, run.columns, run.metrics() if log is None else log)
    critic = run.critic
    apart = None if critic is None else reconcile.plan_critic(plan, critic.info, critic.columns)
    analysis = analyze(run, [], plan.metrics, of_critic=apart.metrics if apart else ())
    found = reconcile.compare(plan, analysis.series, analysis.partial_steps)
    if apart:
        found += reconcile.compare(apart, analysis.critic.series, analysis.critic.partial_steps)
    return {item.name: item for item in found}


def differing(found: Mapping[str, Comparison]) -> dict[str, tuple[list[float], list[float]]]:
    """Keys that are not equal at some step, with what was logged and what was recomputed."""
    return {
        name: (item.logged.tolist(), item.recomputed.tolist())
        for name, item in found.items()
        if not (np.abs(item.logged - item.recomputed) <= item.tolerance).all()
    }


def uncompared(run: Run, found: Mapping[str, Comparison]) -> set[str]:
    """Keys that were logged with a number at every step and could not be compared at every one."""
    log = run.metrics()
    finite = {name: steps[np.isfinite(values)] for name in log.names() for steps, values in [log.series(name)]}
    return {
        name
        for name, steps in finite.items()
        if len(steps) and (name not in found or not np.isin(steps, found[name].steps).all())
    }


def corrupted(log: MetricLog, names: Collection[str]) -> MetricLog:
    """The log with these keys multiplied, and moved off 0."""
    return MetricLog(
        {
            key: (steps, values * 1.05 + 0.01) if key[0] in names else (steps, values)
            for key, (steps, values) in log.points.items()
        }
    )


def findings(run: Run, log: MetricLog) -> list[Finding]:
    """What the rule on logged metrics says of the run with another log."""
    (result,) = run_rules([rules()["RLD801"]], View(run.info, {}, comparisons=tuple(compared(run, log).values())))
    return list(result.findings)
