"""Rollout against trainer where only the trainer's log tells: means and extremes per step, without tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Hit, Severity
from rl_doctor.rules import trend
from rl_doctor.rules.reading import counted, evidence, logged, span, times
from rl_doctor.rules.registry import Skip
from rl_doctor.rules.view import View

SIZES: Final[dict[str, tuple[float, float, float]]] = {
    "mismatch.prob_abs": (0.02, 0.1, 0.008),
    "mismatch.k3": (0.02, 0.1, 0.005),
    "mismatch.abs": (0.1, 0.5, 0.02),
}
"""Metric -> level of a warning, of an error, and the least level at which growth is told."""
LOGGED_GAP: Final = (*SIZES, "mismatch.prob_corr", "mismatch.abs_max", "mismatch.prob_max", "mismatch.k1")
_WORDS: Final = {
    "mismatch.prob_abs": "mean probability difference",
    "mismatch.k3": "k3",
    "mismatch.abs": "mean |trainer - rollout|",
}
_UNLIKE: Final = 0.5
_LOOSE: Final = 0.9
_STEPS: Final = 3
_GROWTH: Final = 4.0
_Z: Final = 6.0
_UNCHECKED: Final = (
    "the kind of difference (shift, temperature, truncation, stale weights); in a recording, rollout_logprob and old_logprob "
    "per token tell"
)


def only_logged(view: View) -> bool:
    """Whether sizes of the gap are known from the log, and none was recomputed from tokens."""
    found = [series for name in SIZES if (series := view.get(name)) is not None]
    return bool(found) and all(logged(series) for series in found)


def gap_level(view: View) -> Iterator[Hit | Skip]:
    """A gap that is large at the end or at most steps."""
    found = {name: series for name in SIZES if (series := view.get(name)) is not None}
    longest = max(len(series) for series in found.values())
    if longest < _STEPS:
        yield Skip("length", f"inconclusive: the gap to the sampler was logged at {counted(longest, 'step')}")
        return
    level = {name: max(_late(series), float(np.median(series.values))) for name, series in found.items()}
    correlation = view.get("mismatch.prob_corr")
    likeness = 1.0 if correlation is None or len(correlation) < _STEPS else _late(correlation)
    large = [name for name in level if level[name] > SIZES[name][0]]
    if not large and likeness >= _LOOSE:
        return
    severe = any(level[name] > SIZES[name][1] for name in large) or likeness < _UNLIKE
    severity: Severity = "error" if severe else "warning"
    told = large or list(level)
    parts = [f"{_WORDS[name]} is {level[name]:.3g}" for name in told]
    proof = [evidence(found[name], 0, -1, value=level[name], limit=SIZES[name][0]) for name in told]
    if correlation is not None and likeness < _LOOSE:
        parts.append(f"the correlation of the probabilities is {likeness:.2g}")
        proof.append(evidence(correlation, 0, -1, value=likeness, limit=_LOOSE))
    early = any(float(np.median(found[name].values[:_STEPS])) > 0.5 * SIZES[name][0] for name in large)
    yield Hit(
        f"As logged, {', '.join(parts)} at {span(found[told[0]], 0)}",
        severity,
        tuple(proof),
        ruled_out=("weights that are stale: it is there from the first step on",) if early else (),
        unchecked=(_UNCHECKED,),
    )


def gap_growth(view: View) -> Iterator[Hit]:
    """A gap that was small and has grown several times."""
    for name, (_, _, least) in SIZES.items():
        series = view.get(name)
        if series is None or len(series) < trend.SHORTEST:
            continue
        values = np.log(np.maximum(series.values, max(0.05 * least, float(np.median(series.values)) * 1e-3)))
        moved = trend.change(values)
        before, after = math.exp(moved.early.center), math.exp(moved.late.center)
        if after < max(_GROWTH * before, least) or moved.z < _Z:
            continue
        begin = trend.onset(values, moved.early, rising=True, share=0.3)
        yield Hit(
            f"As logged, the {_WORDS[name]} grew {times(after / before)}, from {before:.3g} to {after:.3g}, since step "
            f"{series.steps[begin]}",
            "warning",
            (evidence(series, begin, -1, value=after, baseline=before, limit=_GROWTH * before),),
            cause="The engine samples with weights that fall behind, from a stale cache, or its numerics get worse as the policy "
            "becomes sure.",
            ruled_out=("an engine that differs from the start: the first steps are at the floor",),
            unchecked=("which side is outdated: rollout_logprob, old_logprob, weight_version and policy_version",),
        )
        return


def _late(series: Series) -> float:
    """The median of the last rows, of a short log too."""
    return float(np.median(series.values[-max(min(round(0.15 * len(series)), 100), _STEPS) :]))
