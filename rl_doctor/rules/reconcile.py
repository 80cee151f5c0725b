"""The trainer's own numbers against the recomputed ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.closest import closest, constant, constant_ratio
from rl_doctor.analyzer.comparison import Comparison, Fit, allowed, differing, fits, same, unequal
from rl_doctor.report.model import Evidence, Hit, Severity
from rl_doctor.rules.fit_suspects import suspect_of
from rl_doctor.rules.registry import Limits, Skip, Told, rule
from rl_doctor.rules.view import View

Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]

_MOST_ALIKE: Final = 2
_MOST_NAMED: Final = 6
_MOST_REJECTED: Final = 12
"""What is listed: explanations that fit as well as the first, keys, explanations that do not fit."""
_VARIED: Final = 3
"""Different numbers from which it is no chance that something reproduces them."""
_WHOLE: Final = "Record every rank and tell world_size in run.json: steps that lack a rank are then not compared."
_TELL_APART: Final = "unequal numbers of micro-batches, mini-batches, epochs and ranks, and of tokens in them, would tell them"


@rule(
    "RLD801",
    "logged-metric-mismatch",
    severity="error",
    limits={"relative": 1e-3, "min_steps": 3, "share": 0.5, "share_warning": 0.1, "spread": 0.01, "explained": 0.95},
    cause="The code that computes the logged number does something else than its definition says: another mask, another "
    "normaliser, an average in the wrong stages, a wrong sign, or a value from another step.",
    advice=(
        "Compare the trainer's function with the definition in docs/dialects/<trainer>.md, on one recorded micro-batch.",
        "A constant ratio is a normaliser (ranks, micro-batches, padded width) or a unit; a ratio of -1 a sign.",
        "Until it is found, read the recomputed series: `rl-doctor metrics RUN --select <logged name>`.",
    ),
    avoids=(
        "Rounding in the trainer's float32 sums or in the log: each step has its own tolerance.",
        "Rows that a trainer logs only in some steps, and windows that were not recorded completely: they are not compared.",
        "Names that the trainer does not define, trainers and versions whose definitions are not known.",
        "A few odd steps, such as those around a resume: they are told, and are no warning.",
    ),
    source="the trainer's own source; every definition is checked against its functions on the same tensors",
)
def logged_metric_mismatch(view: View, limits: Limits) -> Iterator[Hit | Skip | Told]:
    """A number that the trainer logged differs from the same number recomputed from the recorded tokens.

    Each key that the trainer logs is recomputed in the same stages as the trainer computes it: the same mask, the same
    estimator, token-weighted or not, averaged over the same micro-batches, ranks and logging window. A step differs if the
    difference exceeds both what rounding explains and ``relative`` of the larger of the two numbers. It is an error if at
    least ``share`` of the compared steps differ, and at least ``min_steps`` of them (or all, where fewer could be compared);
    a warning from ``share_warning``, or where NaN or an infinity was logged and the recomputed number is finite. Fewer steps that
    differ are told in one line for all keys. A ratio counts as constant if its middle half lies within ``spread`` of its median.

    Where a key differs, up to three of the steps at which it does are read once more, and the key is computed in each of many
    known wrong ways, one ingredient exchanged at a time: other tokens (without the mask, one position early or late, over the
    padded width or the prompt, the other mask), another value (KL estimate, direction, base, clamp, clip range), other rows
    (means or sums of sequences), other stages (weighted or not, per rank, micro-batch, mini-batch, summed, one of them alone),
    another sign or coefficient of a term, another deviation, the number of another step, a factor that the run knows. Those that
    fit at one of these are computed at up to 16 steps, evenly spread. Those that equal the log there, within rounding alone, at
    ``explained`` of the steps are named as the cause, the best first; those that the data cannot tell from each other together.
    What tokens cannot reproduce, such as the entropy of a part of the vocabulary, is only called consistent. If none fits, that
    is said. Where the number of ranks is not told (or as one), and groups, generation batches or the numbers of the ranks show
    that rows may be missing, what nothing reproduces is a warning: the recording may lack a rank.
    """
    if view.failed is not None:
        raise view.failed
    if not view.comparisons:
        yield Skip("data", view.uncompared or "no logged metric could be recomputed")
        return
    with np.errstate(over="ignore", invalid="ignore"):  # numbers near the largest that there is are data
        yield from _judged(view, limits)


def _judged(view: View, limits: Limits) -> Iterator[Hit | Told]:
    """The findings about the comparisons, and how many there are."""
    advice = _advice(view)
    few: list[Comparison] = []
    for item in view.comparisons:
        wrong = differing(item, limits)
        if wrong is not None:
            yield _differs(item, wrong, limits, advice)
        elif unequal(item, limits["relative"]).any():
            few.append(item)
        if len(item.unreal_steps):
            yield _unreal(item, advice)
    if few:
        yield _at_few(few, limits, advice)
    counted = f"{len(view.comparisons)} of {max(view.recomputable, len(view.comparisons))} compared"
    yield Told(f"{counted}; {view.uncompared}" if view.uncompared else counted)


def _advice(view: View) -> tuple[str, ...]:
    """The rule's advice, with the page of the run's trainer by its name."""
    trainer = view.trainer
    return tuple(
        "Compare the code that computes it with the metric's definition in docs/metrics.md, on one recorded micro-batch."
        if trainer is None and "<trainer>" in line
        else line.replace("<trainer>", trainer.name if trainer else "")
        for line in logged_metric_mismatch.advice
    )


def _differs(item: Comparison, wrong: Flags, limits: Limits, advice: tuple[str, ...]) -> Hit:
    """That a key differs where it is ``wrong`` (bool ``[n]``)."""
    number, compared = int(wrong.sum()), len(item.steps)
    steps, logged, recomputed = item.steps[wrong], item.logged[wrong], item.recomputed[wrong]
    worst = _worst(logged, recomputed)
    ratio, fixed = constant_ratio(logged, recomputed, limits["spread"]), _fixed(item)
    told = f"; logged / recomputed is {ratio:.4g} throughout" if ratio is not None else ""
    if fixed is not None:
        told = f"; {fixed:.6g} is logged at every step"
    message = (
        f"{item.name} differs from its recomputation in {number} of {compared} step{'s' if compared > 1 else ''}, e.g. "
        f"{logged[worst]:.6g} logged against {recomputed[worst]:.6g} at step {int(steps[worst])}{told}"
    )
    cause, more, ruled_out, suspect = _explained(item, wrong, ratio, limits["explained"])
    severity: Severity = "error" if number >= limits["share"] * compared else "warning"
    if item.doubt and not _beyond_doubt(item, wrong, limits["explained"]):
        severity, suspect, advice = "warning", "rank-not-recorded", (_WHOLE, *advice)
        cause = f"The recording may lack a rank: {item.doubt}." + (
            f" If it does not: {cause[0].lower()}{cause[1:]}" if cause else ""
        )
    evidence = _evidence(item, wrong, limits["relative"])
    return Hit(message + more, severity, (evidence,), cause, ruled_out, _untried(item), advice, suspect or "metric-unexplained")


def _beyond_doubt(item: Comparison, wrong: Flags, share: float) -> bool:
    """Whether an explanation reproduces numbers that vary: those of a part of the rows alone would not follow it."""
    varied = len(np.unique(item.logged[wrong])) >= _VARIED
    return varied and any(fit.fits(share) and not fit.explanation.approximate for fit in fits(item, wrong))


def _worst(logged: Floats, recomputed: Floats) -> int:
    """Index of the largest difference, relative to the larger of the two numbers."""
    with np.errstate(over="ignore"):
        return int(np.argmax(np.abs(logged - recomputed) / np.maximum(np.abs(logged), np.abs(recomputed))))


def _evidence(item: Comparison, wrong: Flags, relative: float) -> Evidence:
    steps, logged, recomputed = item.steps[wrong], item.logged[wrong], item.recomputed[wrong]
    worst = _worst(logged, recomputed)
    return Evidence(
        item.metric or item.name, int(steps[0]), int(steps[-1]), float(logged[worst]), float(recomputed[worst]),
        float(allowed(item, relative)[wrong][worst]), item.unit, int(wrong.sum()), {"logged_name": item.name},
    )  # fmt: skip


def _unreal(item: Comparison, advice: tuple[str, ...]) -> Hit:
    """That a number was logged as none where it is one."""
    number, compared = len(item.unreal_steps), item.compared
    value = float(item.unreal[0])
    word = "NaN" if np.isnan(item.unreal).all() else "an infinity" if np.isinf(item.unreal).all() else "NaN or an infinity"
    plural = "s" if compared > 1 else ""
    message = f"{item.name}: logged {word} at {number} of {compared} step{plural} where the recomputation is finite"
    evidence = Evidence(
        item.metric or item.name, int(item.unreal_steps[0]), int(item.unreal_steps[-1]), value, None, None, item.unit, number,
        {"logged_name": item.name},
    )  # fmt: skip
    cause = "The code that computes the logged number divides by zero, overflows, or takes in values outside the mask."
    return Hit(message, "warning", (evidence,), cause, (), (), advice, "not-a-number-logged")


def _at_few(items: list[Comparison], limits: Limits, advice: tuple[str, ...]) -> Hit:
    """That some keys differ at steps that are too few to be held against the trainer."""
    wrong = {item.name: unequal(item, limits["relative"]) for item in items}
    named = [f"{item.name} at {int(wrong[item.name].sum())} of {len(item.steps)}" for item in items]
    more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    evidence = tuple(_evidence(item, wrong[item.name], limits["relative"]) for item in items)
    cause = "Odd steps: after a resume, a step that was repeated, a row of the log that belongs to another step."
    their = "its" if len(items) == 1 else "their"
    message = f"equal to {their} recomputation but for a few steps: {', '.join(named[:_MOST_NAMED])}{more}"
    return Hit(message, "info", evidence, cause, (), (), advice, "odd-steps-logged")


def _untried(item: Comparison) -> tuple[str, ...]:
    """What could not be tried, together by the columns that are lacking."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for one in item.untried:
        groups.setdefault(one.columns, []).append(one.name)
    return tuple(f"{', '.join(names)} (needs {', '.join(columns)})" for columns, names in groups.items())


def _explained(item: Comparison, wrong: Flags, ratio: float | None, share: float) -> tuple[str | None, str, tuple[str, ...], str]:
    """What computes the logged numbers where they are ``wrong`` (bool ``[n]``): the cause, its numbers, what does not, its name.

    The cause names no number and no key, so that all keys that it is the cause of are told of together.
    """
    if not item.explanations:
        return None, "", (), ""
    tried = fits(item, wrong)
    told = [fit for fit in tried if fit.fits(share)]
    fitting = [fit for fit in told if not fit.explanation.approximate]
    rejected = list(dict.fromkeys(fit.explanation.name for fit in tried if fit not in told))
    more = f" and {len(rejected) - _MOST_REJECTED} more" if len(rejected) > _MOST_REJECTED + 1 else ""
    ruled_out = (f"{item.name}: {', '.join(rejected[:_MOST_REJECTED] if more else rejected)}{more}",) if rejected else ()
    if fitting:
        return _cause(item, fitting), _numbers(item, fitting[0]), ruled_out, suspect_of(item, fitting)
    matches = f"; it matches none of the {len(tried)} ways that were tried"
    if len(tried) == 1:
        matches = "; it does not match the one way that was tried"
    if item.untried:
        matches += f", {len(item.untried)} could not be for lack of columns"
    none = "The logged number matches none of the ways to compute it that were tried."
    consistent = [fit for fit in told if fit.explanation.approximate]
    if consistent:
        words = "; ".join(fit.explanation.sentence for fit in consistent)
        return f"{none} It is consistent with this, which tokens cannot reproduce: it {words}.", matches, ruled_out, ""
    near = closest(item, wrong)
    if near is not None:
        matches += f"; the closest is that it {near[0].sentence}, off by {100 * near[1]:.2g}%"
    if _fixed(item) is not None:
        return f"{none[:-1]}; it is the same at every step, whatever was trained on.", matches, ruled_out, ""
    if ratio is not None:
        return f"{none[:-1]}; it is a constant times its definition, which no known number explains.", matches, ruled_out, ""
    return none, matches, ruled_out, ""


def _fixed(item: Comparison) -> float | None:
    """The number that is logged at every step, where the recomputed one varies; else None."""
    return constant(item.logged) if constant(item.recomputed) is None else None


def _numbers(item: Comparison, best: Fit) -> str:
    """How well the best explanation fits, and what it gives at one step."""
    one, first = best.explanation, best.first
    steps = f"the {best.told} steps" if best.told > 1 else "the 1 step"
    text = (
        f"; {one.name} gives {one.values[first]:.6g} at step {int(item.steps[first])} ({item.logged[first]:.6g} logged) and "
        f"equals the log in {best.equal} of {steps} looked at"
    )
    return text + (f", {best.worst:.3g} tolerances away at worst" if best.equal < best.told else "")


def _cause(item: Comparison, fitting: list[Fit]) -> str:
    """The best explanation, and those that fit as well."""
    one = fitting[0].explanation
    text = f"The logged number {one.sentence}"
    alike: list[Fit] = []
    others: list[Fit] = []
    for fit in fitting[1:]:
        if fit.explanation.sentence != one.sentence:
            (alike if same(item, one, fit.explanation) else others).append(fit)
    words, left = _listed(alike)
    if words:
        more = f", and {left} more that this run cannot tell apart; {_TELL_APART}" if left else ""
        text += f". In this run the same numbers result if it {words}{more}"
    words, left = _listed(others)
    if words:
        text += f". It fits as well, within the precision of the log, that it {words}{f'; or {left} more' if left else ''}"
    return text + "."


def _listed(found: list[Fit]) -> tuple[str, int]:
    """The sentences of the first few, and how many are left out."""
    words = list(dict.fromkeys(fit.explanation.sentence for fit in found))
    return "; or ".join(words[:_MOST_ALIKE]), max(len(words) - _MOST_ALIKE, 0)
