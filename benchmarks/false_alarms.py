"""How often rules alarm on runs without any trend: autocorrelated noise, heavy tails, coarse and rounded logs, short and long.

Every metric of a run is noise around a level, stationary or (``--walk``) a random walk. Prints, for each kind of log, the share
of runs on which a rule reports a warning or an error, marked where that exceeds 1% by more than chance (three binomial standard
errors), and the share with an info.

    python benchmarks/false_alarms.py [--seeds N] [--steps N,...] [--rho R,...] [--form raw,mean10,every10,round3,round4] [--walk]
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.series import Series
from rl_doctor.rules.registry import Rule, rules
from rl_doctor.rules.runner import run_rules
from rl_doctor.rules.view import View
from rl_doctor.schema import RunConfig, RunInfo

Floats = NDArray[np.float64]
TARGET: Final = 0.01
LEVELS: Final = {
    "policy.entropy": 0.5, "ref.kl": 0.01, "policy.kl_old_k3": 0.001, "policy.clip_frac": 0.01, "optim.grad_norm": 0.4,
    "length.mean": 300.0, "length.limit_frac": 0.03, "reward.std": 0.4, "mismatch.abs": 0.01, "mismatch.k3": 2e-4,
    "group.zero_std_frac": 0.2,
}  # fmt: skip
"""Metric that is positive -> its level; the noise is on the logarithm."""
ADDED: Final = {"reward.mean": (0.5, 0.05), "ref.kl_k1": (0.0, 0.01)}
"""Metric -> level and standard deviation of noise that is added."""
FORMS: Final = ("raw", "mean10", "every10", "round3", "round4")
LARGEST: Final = 6.0
"""Noise is cut at so many standard deviations: beyond that a single value is an outlier by itself."""


def autoregressive(rng: np.random.Generator, runs: int, steps: int, rho: float, tail: float | None) -> Floats:
    """AR(1) noise ``[runs, steps]`` with variance 1 (for heavy tails that of the shocks); a random walk for ``rho`` = 1."""
    lead = 0 if rho == 1.0 else 100
    shape = (steps + lead, runs)
    values = rng.standard_normal(shape) if tail is None else rng.standard_t(tail, shape)
    for step in range(1, steps + lead):
        values[step] += rho * values[step - 1]
    scale = 1.0 / math.sqrt(steps) if rho == 1.0 else math.sqrt(1 - rho * rho)
    return np.asarray(values[lead:].T * scale)


def shaped(values: Floats, form: str) -> Floats:
    """What a log of that form keeps of values per step, ``[steps]`` or ``[10 * steps]``."""
    if form == "mean10":
        return np.asarray(values.reshape(-1, 10).mean(1))
    if form == "every10":
        return values[::10]
    return np.round(values, int(form[-1])) if form.startswith("round") else values


def runs(seeds: int, steps: int, rho: float, tail: float | None, form: str, spread: float = 0.2) -> Iterator[View]:
    """Views of runs without a trend."""
    rng = np.random.default_rng([steps, round(1000 * rho), 0 if tail is None else 1])
    finer = 10 if form in {"mean10", "every10"} else 1
    noise = {name: np.clip(autoregressive(rng, seeds, steps * finer, rho, tail), -LARGEST, LARGEST) for name in (*LEVELS, *ADDED)}
    at = np.arange(1, steps + 1) * finer
    for seed in range(seeds):
        values = {name: level * np.exp(spread * noise[name][seed]) for name, level in LEVELS.items()}
        values |= {name: level + deviation * noise[name][seed] for name, (level, deviation) in ADDED.items()}
        made = {name: Series(name, "1", at, shaped(part, form), np.ones(steps, np.int64)) for name, part in values.items()}
        yield View(RunInfo(config=RunConfig()), made)


def rates(views: Iterable[View], chosen: Iterable[Rule]) -> tuple[int, Counter[str], Counter[str]]:
    """Number of runs, and by rule how many of them gave a warning or worse, and how many an info."""
    loud: Counter[str] = Counter()
    mild: Counter[str] = Counter()
    number = 0
    picked = tuple(chosen)
    for view in views:
        number += 1
        for result in run_rules(picked, view):
            if result.outcome == "crashed":
                raise RuntimeError(f"{result.name} crashed: {result.reason} {result.detail}")
            severities = {item.severity for item in result.findings}
            loud[result.name] += bool(severities - {"info"})
            mild[result.name] += severities == {"info"}
    return number, +loud, +mild


def allowed(number: int) -> float:
    """The number of alarms in so many runs that a true rate of ``TARGET`` hardly ever exceeds."""
    return TARGET * number + 3.0 * math.sqrt(TARGET * (1.0 - TARGET) * number)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--steps", default="24,30,50,100,400,2000")
    parser.add_argument("--rho", default="0,0.5,0.8,0.9,0.95")
    parser.add_argument("--form", default=",".join(FORMS))
    parser.add_argument("--walk", action="store_true", help="random walks without drift instead")
    options = parser.parse_args()
    memories = [1.0] if options.walk else [float(rho) for rho in options.rho.split(",")]
    for steps in map(int, options.steps.split(",")):
        for tail in (None, 3.0):
            for rho in memories:
                for form in options.form.split(","):
                    number, loud, mild = rates(runs(options.seeds, steps, rho, tail, form), rules().values())
                    told = [
                        f"{name} {count / number:.3f}{' !' * (count > allowed(number))}" for name, count in loud.most_common()
                    ]
                    info = [f"{name} {count / number:.2f}" for name, count in mild.most_common(4)]
                    kind = f"{steps:5d} steps, rho {rho:4.2f}, {'normal' if tail is None else 't(3)  '}, {form:7s}"
                    print(f"{kind}: {', '.join(told) or 'none'} | info: {', '.join(info) or 'none'}", flush=True)


if __name__ == "__main__":
    main()
