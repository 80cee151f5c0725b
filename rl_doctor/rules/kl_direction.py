"""The sign and the direction of the KL to the reference."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Evidence, Hit
from rl_doctor.rules import trend
from rl_doctor.rules.reading import evidence, lacking, too_short
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.spans import at, pooled
from rl_doctor.rules.view import View

_GAP: Final = "ref.kl_recorded_gap_"
_HONEST: Final = ("k1", "k2", "k3", "abs")
_TURNED: Final = {
    "k3_reversed": "k3 of current minus reference: the direction is turned, and its mean is not the KL of the sampling policy",
    "k1_negated": "reference minus current: the sign is turned, and a penalty on it rewards drift",
} | {
    f"{form}_negated": f"the negative of {form}, which is below 0 where {form} cannot be: the sign is turned, and a penalty on "
    "it rewards drift"
    for form in ("k2", "k3", "abs")
}
_SWAPPED: Final = "The KL term is written with current - reference where samples from current need reference - current."
_NEGATIVE: Final = "The sign of the KL term is turned: what should be a penalty is a reward for drift."
_LOGGED: Final = "ref.kl"
_OWN: Final = "ref.kl_k1"
_SIGNED: Final = (_OWN, _LOGGED)
_STEPS: Final = 48
"""Steps below which a wandering estimate may stay on one side of 0 by chance."""
_NEGATED: Final = frozenset({"minimind"})
"""Trainers that log the negative of k1 by design."""


@rule(
    "RLD206", "kl-reversed",
    severity="error",
    optional=(*(_GAP + form for form in (*_HONEST, *_TURNED)), *_SIGNED),
    limits={"same": 0.02, "other": 0.2, "tokens": 50, "z": 6.0, "size": 1e-3, "least": 1e-5, "share": 0.5, "steps": 0.9,
            "against": 5},
    cause="Current and reference logprobs are swapped in the KL term, or its sign is turned.",
    advice=(
        "Write the term with x = ref_logprob - logprob: k1 is -x, k2 is x*x/2, k3 is exp(x) - 1 - x.",
        "Check the sign with which it enters the loss (plus, to be minimised) or the reward (minus).",
    ),
    avoids=(
        "Signed estimates (k1) that scatter around 0.",
        "Trainers that log minus k1 by design.",
        "Straight-through forms, which have the value of an honest estimator.",
    ),
    source="J. Schulman, Approximating KL divergence, 2020; public threads on negative KL (sampling settings, padding)",
)  # fmt: skip
def kl_reversed(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The KL term has the wrong sign or the wrong direction.

    Samples come from the current policy, so that the estimators of its KL to the reference are written with x = reference -
    current. Swapped, k1 pays for leaving the reference, and k3 has another mean and, where the policy has become sure, grows
    exponentially.

    Where the trainer's own term was recorded per token, it is compared with every estimator of ref_logprob - logprob. It
    fires if the term agrees within `same` of its mean size with a swapped or negated form, over at least `tokens` tokens, and
    with none of the honest ones within `other` of that (k1 and its negative are told apart by sign; on very small differences
    both directions of k3 agree, and nothing is said unless the sign is turned). Where logprob and ref_logprob were recorded
    beside a logged KL, it is an error if that is below 0 at `steps` of at least `against` steps whose tokens give a KL above
    `size`.

    Where only a signed KL was logged, its mean over the run must be below 0 by `z` standard errors (or it must fall by as many,
    to less than minus `size`), by `size` nat (`least` if every single value is below 0) and by `share` of its typical size,
    and it must be negative at `steps` of the steps: a warning, since sampling at another temperature, with top-k or with a
    minimum length does that as well. A logged k2, k3 or abs below 0 is reported by impossible-values.
    """
    gaps = {form: found for form in (*_HONEST, *_TURNED) if (found := view.get(_GAP + form)) is not None}
    if gaps:
        yield from _swapped(gaps, limits)
        return
    if (contradicted := _against_tokens(view, limits)) is not None:
        yield contradicted
        return
    signed = [found for name in _SIGNED if (found := view.get(name)) is not None]
    series = next((found for found in signed if np.any(found.values < 0.0)), next(iter(signed), None))
    if series is None:
        yield lacking(view, _GAP + "k3", *_SIGNED)
        return
    if skip := too_short(series, _STEPS):
        yield skip
        return
    yield from _negative(view, series, limits)


def _swapped(gaps: dict[str, Series], limits: Limits) -> Iterator[Hit | Skip]:
    tokens = int(gaps["k1"].counts.sum()) if "k1" in gaps else 0
    if tokens < limits["tokens"]:
        yield Skip("length", f"inconclusive: the KL term is recorded at {tokens} tokens")
        return
    level = {form: pooled(found) for form, found in gaps.items()}
    turned = min((form for form in _TURNED if form in level), key=level.__getitem__)
    honest = min((form for form in _HONEST if form in level), key=level.__getitem__)
    if level[turned] > limits["same"] or level[honest] < max(5.0 * level[turned], 1e-4):
        return
    if level[honest] < limits["other"] and turned == "k1_negated":
        return
    first, last = int(gaps[turned].steps[0]), int(gaps[turned].steps[-1])
    yield Hit(
        f"The recorded KL term is {_TURNED[turned]} (it differs by {level[turned]:.1%} of its size from that, and by "
        f"{level[honest]:.0%} or more from every estimator of the KL)",
        "error",
        (
            Evidence(_GAP + turned, first, last, level[turned], None, limits["same"], "1", tokens),
            Evidence(_GAP + honest, first, last, level[honest], None, None, "1", tokens),
        ),
        cause=_SWAPPED if turned == "k3_reversed" else _NEGATIVE,
        suspect="kl-direction-swapped" if turned == "k3_reversed" else "kl-sign-turned",
        ruled_out=("another estimator: k1, k2, k3 and abs all differ",),
        unchecked=("the sign with which it enters the loss or the reward",),
    )


def _against_tokens(view: View, limits: Limits) -> Hit | None:
    """That a logged KL is below 0 where the logprobs of the same steps give one above 0."""
    told, own = view.get(_LOGGED), view.get(_OWN)
    if told is None or own is None or view.info.trainer in _NEGATED:
        return None
    steps = own.steps[own.values > limits["size"]]
    there, theirs = at(own, steps), at(told, steps)
    if there is None or theirs is None or (there := at(there, theirs.steps)) is None or len(there) < limits["against"]:
        return None
    below = theirs.values < -limits["size"]
    if below.mean() < limits["steps"]:
        return None
    first, last = int(there.steps[0]), int(there.steps[-1])
    return Hit(
        f"The logged KL is {np.median(theirs.values):.3g} nat where logprob and ref_logprob of the same steps give "
        f"{np.median(there.values):.3g}, and below 0 at {np.mean(below):.0%} of {len(there)} steps",
        "error",
        (
            Evidence(_LOGGED, first, last, float(np.median(theirs.values)), None, 0.0, theirs.unit, len(there)),
            Evidence(_OWN, first, last, float(np.median(there.values)), None, None, there.unit, int(there.counts.sum())),
        ),
        cause=_NEGATIVE,
        suspect="kl-sign-turned",
        ruled_out=("an honest k1 below 0: that of the recorded tokens is above 0",),
        unchecked=("the sign with which it enters the loss or the reward",),
    )


def _negative(view: View, series: Series, limits: Limits) -> Iterator[Hit]:
    """A signed KL that is below 0 over the run, beyond noise."""
    values = series.values
    local, rho = trend.noise(values)
    sigma = max(local, trend.spread(values))
    mean = float(np.mean(values))
    error = sigma * np.sqrt(trend.inflation(min(rho + 1.0 / np.sqrt(values.size), 0.95)) / values.size) * (1 + 60 / values.size)
    usual = float(np.median(np.abs(values)))
    moved = trend.change(values)
    drifts = moved.z < -limits["z"] and moved.late.center < -limits["size"]  # a trend widens the scatter around the mean
    least = limits["least"] if bool(np.all(values < 0.0)) else limits["size"]
    if not drifts and mean >= -max(limits["z"] * error, least, limits["share"] * usual):
        return
    if float(np.mean(values < 0.0)) < limits["steps"] or view.info.trainer in _NEGATED:
        return
    goes = f", and goes from {moved.early.center:.2g} to {moved.late.center:.2g}" if drifts else ""
    below = float(np.mean(values < 0.0))
    apart = -moved.z if drifts else -mean / error if error > 0 else math.inf
    yield Hit(
        f"KL to the reference is {mean:.3g} on average over {len(series)} steps, below 0 at {below:.0%} of them{goes}",
        "warning",
        (evidence(series, 0, -1, value=mean, limit=0.0),),
        cause="Current and reference are swapped, or the samples are not from the distribution that is scored: another "
        "temperature, top-k or top-p, a minimum length, or observations and padding in the mean.",
        ruled_out=(f"the noise of k1: it is {apart:.0f} standard errors below 0" if math.isfinite(apart) else "noise",),
        unchecked=("which of these; in a recording, logprob and ref_logprob per token tell",),
    )
