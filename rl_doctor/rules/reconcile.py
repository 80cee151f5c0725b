"""The trainer's own numbers against the recomputed ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.comparison import Comparison, Fit, differing, fits, same
from rl_doctor.report.model import Evidence, Hit, Severity
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.view import View

Flags = NDArray[np.bool_]

_MOST_NAMED: Final = 6
_MOST_REJECTED: Final = 12
"""Explanations that are listed, of those that fit as well and of those that do not."""


@rule(
    "RLD801",
    "logged-metric-mismatch",
    severity="error",
    limits={"relative": 1e-3, "min_steps": 3, "share": 0.5, "share_warning": 0.1, "spread": 0.01, "explained": 0.95},
    cause="The code that computes the logged number does something else than its definition says: another mask, another "
    "normaliser, an average in the wrong stages, a wrong sign, or a value from another step.",
    advice=(
        "Compare the trainer's function with the definition on the page of the metric, on one recorded micro-batch.",
        "A constant ratio is a normaliser (ranks, micro-batches, padded width) or a unit; a ratio of -1 a sign.",
        "Until it is found, read the recomputed series, not the trainer's.",
    ),
    avoids=(
        "Rounding in the trainer's float32 sums or in the log: each step has its own tolerance.",
        "Rows that a trainer logs only in some steps, and windows that were not recorded completely: they are not compared.",
        "Names that the trainer does not define, trainers and versions whose definitions are not known.",
        "A few odd steps, such as those around a resume.",
    ),
    source="the trainer's own source; every definition is checked against its functions on the same tensors",
)
def logged_metric_mismatch(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """A number that the trainer logged differs from the same number recomputed from the recorded tokens.

    Each key that the trainer logs is recomputed in the same stages as the trainer computes it: the same mask, the same
    estimator, token-weighted or not, averaged over the same micro-batches, ranks and logging window. A step differs if the
    difference exceeds both what rounding explains and ``relative`` of the larger of the two numbers. It is an error if at
    least ``share`` of the compared steps differ, and at least ``min_steps`` of them (or all, where fewer could be compared);
    a warning from ``share_warning``. A ratio counts as constant if its middle half lies within ``spread`` of its median.

    Where a key differs, up to three of the steps at which it does are read once more, and the key is computed in each of many
    known wrong ways, one ingredient exchanged at a time: other tokens (without the mask, one position early or late, over the
    padded width or the prompt, the other mask), another value (KL estimate, direction, base, clamp, clip range), other rows
    (means or sums of sequences), other stages (weighted or not, per rank, micro-batch, mini-batch, summed, one of them alone),
    another sign or coefficient of a term, another deviation, the number of another step, a factor that the run knows. Those that
    fit at one of these are computed at up to 24 steps, evenly spread. Those that equal the log there, within rounding alone, at
    ``explained`` of the steps are named as the cause, the best first; those that the data cannot tell from each other together.
    What tokens cannot reproduce, such as the entropy of a part of the vocabulary, is only called consistent. If none fits, that
    is said.
    """
    if not view.comparisons:
        yield Skip("data", view.uncompared or "no logged metric could be recomputed")
        return
    for item in view.comparisons:
        wrong = differing(item, limits)
        if wrong is None:
            continue
        number, compared = int(wrong.sum()), len(item.steps)
        difference = np.abs(item.logged - item.recomputed)
        size = np.maximum(np.abs(item.logged), np.abs(item.recomputed))
        steps, logged, recomputed = item.steps[wrong], item.logged[wrong], item.recomputed[wrong]
        worst = int(np.argmax(difference[wrong] / size[wrong]))
        ratio = _constant_ratio(logged, recomputed, limits["spread"])
        told = f"; logged / recomputed is {ratio:.4g} throughout" if ratio is not None else ""
        message = (
            f"{item.name} differs from its recomputation in {number} of {compared} steps, e.g. {logged[worst]:.6g} logged "
            f"against {recomputed[worst]:.6g} at step {int(steps[worst])}{told}"
        )
        evidence = Evidence(
            item.metric or item.name, int(steps[0]), int(steps[-1]), float(logged[worst]), float(recomputed[worst]),
            float(item.tolerance[wrong][worst]), item.unit, number, {"logged_name": item.name},
        )  # fmt: skip
        cause, ruled_out = _explained(item, wrong, ratio, limits["explained"])
        severity: Severity = "error" if number >= limits["share"] * compared else "warning"
        yield Hit(message, severity, (evidence,), cause, ruled_out, tuple(f"{item.name}: {name}" for name in item.untried))
    if view.uncompared:
        yield Skip("data", view.uncompared)


def _explained(item: Comparison, wrong: Flags, ratio: float | None, share: float) -> tuple[str | None, tuple[str, ...]]:
    """What computes the logged numbers where they are ``wrong`` (bool ``[n]``), in words, and what does not."""
    if not item.explanations:
        return None, ()
    tried = fits(item, wrong)
    told = [fit for fit in tried if fit.fits(share)]
    fitting = [fit for fit in told if not fit.explanation.approximate]
    rejected = list(dict.fromkeys(fit.explanation.name for fit in tried if fit not in told))
    more = f" and {len(rejected) - _MOST_REJECTED} more" if len(rejected) > _MOST_REJECTED + 1 else ""
    ruled_out = (f"{item.name}: {', '.join(rejected[:_MOST_REJECTED] if more else rejected)}{more}",) if rejected else ()
    if fitting:
        return _named(item, fitting), ruled_out
    none = f"The logged {item.name} matches none of the {len(tried)} known ways to compute it; the code computes something else."
    consistent = [fit for fit in told if fit.explanation.approximate]
    if consistent:
        words = "; ".join(fit.explanation.sentence for fit in consistent)
        return f"{none} It is consistent with this, which tokens cannot reproduce: the number {words}.", ruled_out
    if ratio is not None:
        return (
            f"{none[:-1]}: it is {ratio:.4g} times its definition throughout, which no known number explains.", ruled_out
        )  # fmt: skip
    return none, ruled_out


def _named(item: Comparison, fitting: list[Fit]) -> str:
    """The best explanation with its numbers, and those that fit as well."""
    best = fitting[0]
    one, first = best.explanation, best.first
    text = (
        f"The logged {item.name} {one.sentence}: that gives {one.values[first]:.6g} at step {int(item.steps[first])} "
        f"({item.logged[first]:.6g} logged) and equals the log in {best.equal} of the {best.told} steps looked at"
    )
    if best.equal < best.told:
        text += f" (it is {best.worst:.3g} tolerances away at worst)"
    alike: list[Fit] = []
    others: list[Fit] = []
    for fit in fitting[1:]:
        if fit.explanation.sentence != one.sentence:
            (alike if same(item, one, fit.explanation) else others).append(fit)
    if alike:
        text += f". The data cannot tell that from this: it {_listed(alike)}"
    if others:
        text += f". It fits as well, within the precision of the log, that it {_listed(others)}"
    return text + "."


def _listed(found: list[Fit]) -> str:
    """Their sentences, those of few."""
    words = list(dict.fromkeys(fit.explanation.sentence for fit in found))
    more = f"; or {len(words) - _MOST_NAMED} more" if len(words) > _MOST_NAMED else ""
    return "; or ".join(words[:_MOST_NAMED]) + more


def _constant_ratio(logged: NDArray[np.float64], recomputed: NDArray[np.float64], spread: float) -> float | None:
    """Logged over recomputed where that is the same at every step; None where it varies, or for a single step."""
    kept = recomputed != 0
    if kept.sum() < 2 or not kept.all():
        return None
    ratios = logged[kept] / recomputed[kept]
    low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
    return float(middle) if high - low <= 2 * spread * abs(middle) else None
