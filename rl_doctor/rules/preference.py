"""Training on preferences (DPO and its kin): margins that run away, losses that teach nothing, sides that are swapped."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Evidence, Hit, Severity
from rl_doctor.rules import trend
from rl_doctor.rules.reading import evidence, lacking, too_short
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.view import View

_MARGIN: Final = "pref.margin"
_ACCURACY: Final = "pref.accuracy"
_LOSS: Final = "pref.loss"
_DPO: Final = "arXiv:2305.18290, eq. 7: the gradient of a pair is weighted by sigmoid(-margin)"
_LEAST: Final = 4
"""Rows below which nothing is said of a run on preferences."""


def _end(series: Series) -> trend.Window:
    """The last rows: a late window that a log of a few rows has too."""
    count = min(max(round(0.15 * len(series)), min(3, len(series) // 2)), 100)
    return trend.window(series.values, len(series) - count, len(series) - 1)


def _start(series: Series) -> float:
    """The level of the first rows."""
    return float(np.median(series.values[: max(round(0.1 * len(series)), 1)]))


@rule(
    "RLD430", "preference-margin-explosion",
    severity="error",
    optional=(_MARGIN, _ACCURACY, _LOSS, "pref.chosen_logprob", "pref.rejected_logprob"),
    limits={"saturated": 10.0, "error": 20.0, "accuracy": 0.98, "growth": 1.5},
    cause="The pairs are told apart completely and the loss goes on pushing the rejected responses down: pairs that differ in "
    "something trivial (length, format, another model's style), too many epochs, or a learning rate that is too high.",
    advice=(
        "Stop at the checkpoint at which the accuracy on held-out pairs stopped rising.",
        "Look at a few pairs: can the side be told from length or format alone?",
        "Lower the learning rate or the number of epochs, raise beta, or take a loss with a bounded target (IPO).",
    ),
    avoids=("A margin of a few units with an accuracy below 1.", "Losses whose margins are small by construction."),
    source=_DPO,
)  # fmt: skip
def preference_margin_explosion(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The margin between chosen and rejected responses grows far beyond what the loss can still tell apart.

    The margin is in the units of the loss: at a margin of 10 a pair has a weight of 5e-5, and nothing is learned from it any
    more. A margin that goes on growing comes from the rejected responses being made ever less probable, which takes other
    text down with them.

    It fires if the late margin is at least `saturated`, `growth` times the early one, and the accuracy is at least `accuracy`
    where it was logged. An error from `error` on or if the loss is exactly 0 there, else a warning. Few rows are enough: the
    limit does not depend on the run's own past.
    """
    margin = view.get(_MARGIN)
    if margin is None:
        yield lacking(view, _MARGIN)
        return
    if skip := too_short(margin, _LEAST):
        yield skip
        return
    late, early = _end(margin), _start(margin)
    accuracy, loss = view.get(_ACCURACY), view.get(_LOSS)
    if late.center < limits["saturated"] or late.center < limits["growth"] * early:
        return
    if accuracy is not None and _end(accuracy).center < limits["accuracy"]:
        return
    dead = loss is not None and _end(loss).center == 0.0
    found = [evidence(margin, late.first, late.last, baseline=early, limit=limits["saturated"])]
    if loss is not None:
        found.append(evidence(loss, _end(loss).first, -1, baseline=_start(loss)))
    yield Hit(
        f"Margin grew from {early:.3g} to {late.center:.3g}"
        + (f" at an accuracy of {_end(accuracy).center:.2g}" if accuracy is not None else "")
        + (" and the loss is exactly 0: no pair teaches anything any more" if dead else "")
        + _fallen(view),
        "error" if dead or late.center >= limits["error"] else "warning",
        tuple(found),
        ruled_out=("pairs that are still hard: all are told apart",) if accuracy is not None else (),
        unchecked=() if accuracy is not None else ("whether all pairs are told apart: rewards/accuracies",),
    )


def _fallen(view: View) -> str:
    """How far the rejected responses fell, in words."""
    rejected = view.get("pref.rejected_logprob")
    if rejected is None or len(rejected) < _LEAST:
        return ""
    before, after = _start(rejected), _end(rejected).center
    return f"; the logprob of the rejected responses fell from {before:.4g} to {after:.4g}" if after < before else ""


@rule(
    "RLD431", "preference-not-learning",
    severity="error",
    optional=(_MARGIN, _ACCURACY, _LOSS, "pref.chosen_logprob", "pref.rejected_logprob", "optim.learning_rate"),
    limits={"rows": 5, "chance": 0.03, "z": 4.0, "loss": 1e-3},
    cause="The policy does not move away from its reference: a learning rate of 0 or far too small, frozen weights, or a "
    "reference that is the policy itself.",
    advice=(
        "Check that trainable parameters receive a gradient and that the learning rate is above 0.",
        "Check that the reference is a frozen copy and not the policy: with adapters, that they are off in the reference pass.",
        "Compare chosen and rejected of a few pairs: identical texts have a margin of 0 for good.",
    ),
    avoids=("The first rows, where the margin is 0.", "Warm-up.", "Slow learning: a margin that grows beyond its noise."),
    source="Closed form: equal log-ratios give a loss of log 2 = .693 and a margin of 0",
)  # fmt: skip
def preference_not_learning(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """Chosen and rejected responses are never told apart.

    At the start the policy is its reference, every margin is 0 and the loss is log 2. A run in which that stays so learns
    nothing.

    An error if the margin is exactly 0 (or, where it was not logged, the loss within `loss` of log 2) in all of `rows` or more
    rows after the first, or if the loss is exactly 0 throughout without any margin, which no pair can give. If the
    two logprobs are equal as well, the pairs are identical. A warning if over a long log the accuracy stays within `chance` of
    one half, and neither margin nor loss moves by `z` standard errors.
    """
    margin, loss = view.get(_MARGIN), view.get(_LOSS)
    told = margin if margin is not None else loss
    if told is None:
        yield lacking(view, _MARGIN, _LOSS)
        return
    if skip := too_short(told, int(limits["rows"]) + 1):
        yield skip
        return
    hit = _no_loss(margin, loss) or _never_apart(view, margin, loss, limits)
    if hit is not None:
        yield hit
        return
    accuracy = view.get(_ACCURACY)
    if accuracy is None or len(accuracy) < trend.SHORTEST or len(told) < trend.SHORTEST:
        return
    moved = [
        abs(trend.change(series.values).z) for series in (margin, loss) if series is not None and len(series) >= trend.SHORTEST
    ]
    level = float(np.mean(accuracy.values[len(accuracy) // 2 :]))
    if abs(level - 0.5) <= limits["chance"] and max(moved, default=math.inf) < limits["z"]:
        yield Hit(
            f"Chosen and rejected responses are not told apart: the accuracy is {level:.3f} in the second half of "
            f"{len(accuracy)} rows, and the {'margin' if margin is not None else 'loss'} does not move",
            "warning",
            (evidence(accuracy, len(accuracy) // 2, -1, value=level, baseline=0.5), evidence(told, 0, -1)),
            cause="Too small a learning rate, or pairs whose sides were labelled at random.",
            unchecked=("which: the learning rate, and the agreement of the labels",),
            suspect="pairs-never-told-apart",
        )  # fmt: skip


def _no_loss(margin: Series | None, loss: Series | None) -> Hit | None:
    """A loss of exactly 0 that no margin explains."""
    if loss is None or np.any(loss.values != 0.0) or (margin is not None and float(np.median(margin.values)) >= 10.0):
        return None
    return Hit(
        f"Loss is exactly 0 in all {len(loss)} rows although no margin explains it",
        "error",
        (evidence(loss, 0, -1),),
        cause="Every label is masked, or the loss is computed on nothing: an undecided pair has a loss of log 2.",
        ruled_out=("pairs that are told apart: the margin is small",) if margin is not None else (),
        suspect="pair-loss-of-nothing",
    )


def _never_apart(view: View, margin: Series | None, loss: Series | None, limits: Limits) -> Hit | None:
    """A margin of exactly 0, or a loss of log 2, in every row after the first."""
    if margin is not None:
        still, told = bool(np.all(margin.values[1:] == 0.0)), margin
    elif loss is not None:
        off = np.abs(loss.values - math.log(2.0))
        still, told = bool(np.all(off <= limits["loss"])) and float(np.ptp(loss.values)) < 1e-4, loss
    else:
        return None
    rate = view.get("optim.learning_rate")
    if not still or (rate is not None and not np.any(rate.values > 0.0) and len(rate) < trend.SHORTEST):
        return None
    chosen, rejected = view.get("pref.chosen_logprob"), view.get("pref.rejected_logprob")
    both = chosen is not None and rejected is not None
    same = chosen is not None and rejected is not None and np.array_equal(chosen.values, rejected.values)
    return Hit(
        f"{'Margin is exactly 0' if margin is not None else 'Loss is log 2'} in all {len(told) - 1} rows after the first"
        + ("; the logprobs of chosen and rejected responses are equal too" if same else ""),
        "error",
        (evidence(told, 0, -1),),
        cause="Chosen and rejected responses are the same text: the pairs were built wrongly, or both sides were cut to a common "
        "prefix."
        if same
        else None,
        ruled_out=("identical pairs: their logprobs differ",) if both and not same else (),
        unchecked=() if both else ("identical pairs: logps/chosen and logps/rejected",),
        suspect="pairs-of-equal-text" if same else "policy-stays-at-reference",
    )


@rule(
    "RLD432", "chosen-logprob-falls",
    severity="warning",
    optional=("pref.chosen_reward", _MARGIN, "pref.chosen_logprob"),
    limits={"share": 0.25, "all": 1.0, "lost": 0.3, "z": 6.0},
    cause="The margin grows because the rejected responses fall faster, while the chosen ones become less probable too: "
    "probability goes to text that is in neither.",
    advice=(
        "Add a supervised term on the chosen responses (rpo_alpha, a small SFT weight), or raise beta.",
        "Generate with the result and read it: the policy may no longer write like the chosen responses.",
    ),
    avoids=("A fall that is small beside the margin, which is common.", "Rejected responses that fall alone."),
    source="arXiv:2402.13228 and arXiv:2404.19733: the preferred response can lose probability under DPO",
)  # fmt: skip
def chosen_logprob_falls(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The chosen responses become less probable during training on preferences.

    The loss rewards the difference only. Some fall of both sides is common; if the chosen side loses more than the margin
    gains, training mostly removes what it was meant to teach.

    The implicit reward of the chosen responses (beta times the log-ratio to the reference, free of the noise of other texts)
    must fall by `z` standard errors and by `share` of what the margin gained: info. A warning if it fell by `all` of that and
    the logged logprob of the chosen responses lost `lost` of its start.
    """
    reward, margin = view.get("pref.chosen_reward"), view.get(_MARGIN)
    if reward is None or margin is None:
        yield lacking(view, "pref.chosen_reward" if reward is None else _MARGIN)
        return
    if skip := too_short(reward) or too_short(margin):
        yield skip
        return
    moved, gained = trend.change(reward.values), trend.change(margin.values).difference
    lost = -moved.difference
    if moved.z > -limits["z"] or gained <= 0.0 or lost < limits["share"] * gained:
        return
    begin = trend.onset(reward.values, moved.early, rising=False, share=0.3)
    found = [evidence(reward, begin, -1, value=moved.late.center, baseline=moved.early.center)]
    fall = _lost_logprob(view, found)
    severity: Severity = "warning" if fall is not None and fall >= limits["lost"] and lost >= limits["all"] * gained else "info"
    yield Hit(
        f"Implicit reward of the chosen responses fell from {moved.early.center:.3g} to {moved.late.center:.3g}, "
        f"{lost / gained:.2g} times what the margin gained"
        + (f"; their logprob lost {fall:.0%} of its start" if fall is not None and fall > 0 else ""),
        severity,
        tuple(found),
        ruled_out=("other texts in the batch: the reward compares the same texts with the reference",),
        unchecked=() if fall is not None else ("how improbable they became: logps/chosen",),
    )  # fmt: skip


def _lost_logprob(view: View, found: list[Evidence]) -> float | None:
    """By what share of its start the logprob of the chosen responses fell; adds the evidence."""
    series = view.get("pref.chosen_logprob")
    if series is None or len(series) < trend.SHORTEST:
        return None
    before, after = trend.early(series.values).center, trend.late(series.values).center
    if before >= 0.0:
        return None
    found.append(evidence(series, trend.late(series.values).first, -1, value=after, baseline=before))
    return (before - after) / -before


@rule(
    "RLD433", "preference-reversed",
    severity="error",
    optional=(_MARGIN, _ACCURACY, "pref.chosen_reward", "pref.rejected_reward"),
    limits={"accuracy": 0.4, "z": 6.0, "rows": 8},
    cause="The sides are swapped between the data and the loss, or the loss has the wrong sign: the policy is trained to prefer "
    "what was rejected.",
    advice=(
        "Print one pair as the loss sees it and check which side is chosen.",
        "Check the sign of the loss, and of labels that are given as +1 and -1 or 0 and 1.",
    ),
    avoids=("The first rows.", "A margin that is below 0 by noise.", "Margins of runs that do not learn."),
    source="Closed form: a step on the loss raises the margin of its own pairs",
)  # fmt: skip
def preference_reversed(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The rejected responses earn more than the chosen ones, more and more.

    Every step on a loss of preferences raises the margin of the pairs that it is computed on. A margin that goes below 0
    means that loss and metric disagree about the sides.

    It fires if the late margin (or the difference of the two rewards) is below 0 by `z` standard errors of its change and below
    its start, over at least `rows` rows, while the accuracy, where logged, ends below `accuracy`.
    """
    margin = view.get(_MARGIN) or _difference(view)
    if margin is None:
        yield lacking(view, _MARGIN, "pref.chosen_reward")
        return
    if skip := too_short(margin, int(limits["rows"])):
        yield skip
        return
    late, accuracy = _end(margin), view.get(_ACCURACY)
    if late.center >= 0.0 or (accuracy is not None and _end(accuracy).center >= limits["accuracy"]):
        return
    if len(margin) >= trend.SHORTEST:
        clear = trend.change(margin.values).z <= -limits["z"]
    else:
        clear = accuracy is not None and bool(np.all(margin.values[len(margin) // 2 :] < min(_start(margin), 0.0)))
    if not clear:
        return
    told = [evidence(margin, late.first, late.last, baseline=_start(margin), limit=0.0)]
    if accuracy is not None:
        told.append(evidence(accuracy, _end(accuracy).first, -1, limit=limits["accuracy"]))
    yield Hit(
        f"Margin fell from {_start(margin):.3g} to {late.center:.3g}"
        + (f", and the accuracy ends at {_end(accuracy).center:.2g}" if accuracy is not None else ""),
        "error",
        tuple(told),
        ruled_out=("noise: training lowers it step by step",),
        unchecked=() if accuracy is not None else ("the share of pairs: rewards/accuracies",),
    )


def _difference(view: View) -> Series | None:
    """Reward of the chosen less that of the rejected responses, where both were logged at the same steps."""
    chosen, rejected = view.get("pref.chosen_reward"), view.get("pref.rejected_reward")
    if chosen is None or rejected is None or not np.array_equal(chosen.steps, rejected.steps):
        return None
    return Series(_MARGIN, chosen.unit, chosen.steps, chosen.values - rejected.values, chosen.counts)
