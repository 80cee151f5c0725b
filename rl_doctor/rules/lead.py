"""What comes before a gradient that explodes: a gap between engine and trainer that has grown for some time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.frozen import frozen
from rl_doctor.report.model import Hit
from rl_doctor.rules import trend
from rl_doctor.rules.reading import evidence, lacking, too_short
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.view import View

_GAPS: Final = ("mismatch.k3", "mismatch.abs", "mismatch.prob_abs")
_GRADIENT: Final = "optim.grad_norm"


@frozen
class _Rise:
    """A series that has left its start: index, level at the start, and highest level (of three points) after."""

    series: Series
    index: int
    before: float
    after: float

    @property
    def step(self) -> int:
        return int(self.series.steps[self.index])


@rule(
    "RLD122", "mismatch-before-explosion",
    severity="warning", since="0.2.0",
    needs=(_GRADIENT,),
    optional=_GAPS,
    limits={"gradient": 3.0, "gap": 1.5, "sigmas": 5.0, "lead": 3, "steps": 24, "material": 1e-3},
    cause="Engine and trainer drift apart where tokens are improbable; the importance of these tokens grows until single ones "
    "drive the gradient.",
    advice=(
        "Go back to a checkpoint from before the gap began to rise, not only from before the gradient did.",
        "Mask or truncate by the ratio of trainer and engine, per sequence (geometric mean) where responses are long.",
        "Raise the precision of the engine's and the trainer's last layer, and make their kernels the same.",
        "Split |d| by probability and turn: tokens after tool output and below a probability of .01 carry it first.",
    ),
    avoids=(
        "A gradient that explodes while engine and trainer agree: learning rate or clip range.",
        "A gap that rises with the gradient or after it: both follow from something else.",
        "A gap that stays within rounding, however many times it has grown.",
    ),
    source="Public posts and trainer issues on late collapse of runs whose engine and trainer disagree",
)  # fmt: skip
def mismatch_before_explosion(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The gap between engine and trainer turned up before the gradient norm did.

    Such runs look healthy for hundreds of steps. The mismatch at improbable tokens feeds itself: they are reinforced or punished
    by wrong weights, the policy moves where engine and trainer disagree most, and one day the gradient explodes. The lead is the
    time in which the run could have been stopped.

    Both series are compared with their own start, on a logarithmic scale: the gradient norm must reach `gradient` times its
    start, the gap (k3, mean |d| or the mean difference of the probabilities) `gap` times, each by `sigmas` times its own noise
    and in three points on end; the gap also `material` (k3: its square), below which it is rounding. The rise begins where the
    running median leaves the start for good. It fires if the gap's begins `lead` steps or more before that of the gradient.

    Limits: a lead is no proof of a cause. Runs of fewer than `steps` rows are not judged.
    """
    gradient = view.series(_GRADIENT)
    gaps = [series for name in _GAPS if (series := view.get(name)) is not None]
    if not gaps:
        yield lacking(view, *_GAPS)
        return
    if skip := too_short(gradient, int(limits["steps"])):
        yield skip
        return
    burst = _rise(gradient, limits["gradient"], limits["sigmas"])
    if burst is None:
        return
    rises = [
        found
        for series in gaps
        if (found := _rise(series, limits["gap"], limits["sigmas"])) is not None
        and found.after >= _least(series.metric, limits["material"])
    ]
    first = min(rises, key=lambda item: item.step, default=None)
    between = 0 if first is None else int(np.count_nonzero((gradient.steps > first.step) & (gradient.steps <= burst.step)))
    if first is None or between < limits["lead"]:
        return
    jumped = limits["gradient"] * burst.before
    yield Hit(
        f"{first.series.metric} turned up at step {first.step} (from {first.before:.2g} to {first.after:.2g}), {between} steps "
        f"before the gradient norm did at step {burst.step} (from {burst.before:.2g} to {burst.after:.2g})",
        "warning",
        (
            evidence(first.series, first.index, -1, value=first.after, baseline=first.before, limit=limits["gap"] * first.before),
            evidence(gradient, burst.index, -1, value=burst.after, baseline=burst.before, limit=jumped),
        ),
        ruled_out=("a learning rate or clip range that is too large by itself: engine and trainer parted first",),
        unchecked=() if len(gaps) > 1 else ("which tokens carry it: rollout_logprob and old_logprob per token",),
    )  # fmt: skip


def _least(metric: str, material: float) -> float:
    """What a gap must reach: k3 is about half of the square of a small difference."""
    return material**2 if metric == "mismatch.k3" else material


def _rise(series: Series, factor: float, sigmas: float) -> _Rise | None:
    """Where a positive series leaves its start for good and reaches ``factor`` times it; None if it does not."""
    positive = series.values > 0.0
    if np.count_nonzero(positive) < trend.SHORTEST:
        return None
    kept = Series(series.metric, series.unit, series.steps[positive], series.values[positive], series.counts[positive])
    values = np.log(kept.values)
    start = trend.early(values)
    calm = trend.running_median(values, 3)
    noise = max(start.scale, trend.noise(values)[0])
    peak = float(calm.max())
    if peak - start.center < max(math.log(factor), sigmas * noise):
        return None
    bar = start.center + max(0.25 * (peak - start.center), 3.0 * start.scale)
    top = int(np.argmax(calm))
    inside = np.flatnonzero(calm[: top + 1] < bar)
    index = int(inside[-1]) + 1 if inside.size else 0
    if index <= start.last // 2:
        return None
    return _Rise(kept, min(index, len(kept) - 1), math.exp(start.center), math.exp(peak))
