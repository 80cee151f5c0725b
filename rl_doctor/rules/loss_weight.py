"""What tokens weigh in the loss: the normaliser that the trainer used."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rl_doctor.report.model import Hit, Severity
from rl_doctor.rules.reading import evidence
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.view import View

_MIN, _MAX, _RIGHT = "weight.normaliser_min", "weight.normaliser_max", "weight.normaliser_right_frac"


def _incomplete(view: View) -> Skip | None:
    """Why the tokens of an optimizer step are not known as a whole."""
    if view.info.partial or _MAX in view.estimated:
        return Skip("data", "not all ranks or tokens were recorded: the tokens of an optimizer step cannot be counted")
    return None


@rule(
    "RLD212", "uneven-token-weights",
    severity="error", since="0.2.0",
    needs=(_MIN, _MAX), optional=("weight.rank_ratio",),
    limits={"factor": 1.05, "large": 1.5, "steps": 0.5, "least": 3},
    cause="Each rank divides its loss by its own tokens before gradients are averaged: tokens on a rank with few count more.",
    advice=(
        "Sum the token counts over the ranks before dividing; where gradients are averaged, multiply by the number of ranks.",
        "Or balance the tokens of the ranks; a mean over sequences (seq-mean-token-mean) weighs tokens unequally on purpose.",
    ),
    avoids=("Means over sequences, which weigh tokens unequally on purpose.", "Ranks with about as many tokens each."),
    source="Public issue threads on token-mean losses that are averaged over ranks",
)  # fmt: skip
def uneven_token_weights(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """Under a token mean, a token on one rank weighs more than one on another.

    A mean over tokens promises the same weight to each. Where every rank divides by its own count, a token on a rank with a
    tenth of the tokens weighs ten times as much: short responses then drive the update wherever they happen to lie.

    The recorded normaliser (batch_num_tokens) of each rank is divided by the tokens that the whole optimizer step trains on. It
    fires if the largest of the ranks is `factor` times the smallest or more at `steps` of the steps since it first is so, and
    at `least` steps, or at all of a run of two; an error from `large` on.
    """
    if view.config.loss_agg not in {None, "token-mean"}:
        yield Skip("config", f"the loss is aggregated as {view.config.loss_agg}, which weighs tokens unequally on purpose")
        return
    if skip := _incomplete(view):
        yield skip
        return
    low, high = view.series(_MIN), view.series(_MAX)
    ratio = high.values / np.maximum(low.values, 1e-300)
    wrong = ratio >= limits["factor"]
    first = int(np.argmax(wrong))
    if int(wrong.sum()) < min(limits["least"], max(len(high), 2)) or float(np.mean(wrong[first:])) < limits["steps"]:
        return
    level = float(np.median(ratio[wrong]))
    severity: Severity = "error" if level >= limits["large"] else "warning"
    summed = view.get("weight.rank_ratio")
    own = summed is not None and abs(float(np.median(summed.values)) - level) < 0.05 * level
    told = ", as the ranks' own tokens do" if own else ""
    yield Hit(
        f"The ranks divide the loss by numbers of tokens that differ {level:.3g} times{told}: a token counts that much more on "
        "one rank than on another",
        severity,
        (evidence(high, first, -1, value=level, limit=limits["factor"]),),
        suspect="each-rank-own-tokens" if own else "",
    )


@rule(
    "RLD213", "loss-normaliser-scale",
    severity="warning", since="0.2.0",
    needs=(_MIN, _MAX, _RIGHT),
    limits={"off": 0.05, "same": 0.02, "steps": 2, "share": 0.8, "right": 0.2},
    cause="The loss is divided by the tokens of another set than the optimizer step: those of the generation batch, of all "
    "passes, or of one micro-batch.",
    advice=(
        "Divide by the tokens of the optimizer step, all ranks and micro-batches together.",
        "Until then read the learning rate and max_grad_norm as multiplied by the factor: the gradient is.",
    ),
    avoids=(
        "A recording without all ranks or tokens.", "Normalisers that differ between ranks: uneven-token-weights tells.",
        "Optimizer steps that are right, beside a smaller one at the end of a pass.",
    ),
    source="Public issue threads on losses divided by the tokens of the generation batch",
)  # fmt: skip
def loss_normaliser_scale(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The loss is divided by another number of tokens than the optimizer step trains on.

    The gradient is then off by a constant factor: the learning rate is not the one that was set, gradient clipping sets in too
    early or never, and two runs with other batch settings cannot be compared.

    The recorded normaliser (batch_num_tokens) is held against the tokens of the optimizer step. It fires if they differ by
    `off` or more at `share` of at least `steps` steps, the same way on all ranks (within `same`), and no more than `right` of the
    optimizer steps of each have the right one.
    """
    if skip := _incomplete(view):
        yield skip
        return
    low, high = view.series(_MIN), view.series(_MAX)
    if len(high) < limits["steps"]:
        yield Skip("length", f"inconclusive: the normaliser is known at {len(high)} steps")
        return
    alike = high.values <= (1.0 + limits["same"]) * low.values
    wrong = alike & (np.abs(high.values - 1.0) >= limits["off"]) & (view.series(_RIGHT).values <= limits["right"])
    if float(np.mean(wrong)) < limits["share"]:
        return
    factor = float(np.median(high.values[wrong]))
    known = [
        (words, float(number))
        for words, number in (
            ("mini-batches per generation batch", view.config.minibatches), ("epochs", view.config.epochs),
            ("ranks", view.info.world_size),
        )
        if number and number > 1
    ]  # fmt: skip
    named = [words for words, number in known if abs(factor - number) < 0.02 * number or abs(factor * number - 1.0) < 0.02]
    told = f", the number of {' or of '.join(named)}" if named else ""
    yield Hit(
        f"The loss is divided by {factor:.3g} times as many tokens as the optimizer step trains on{told}: its gradient is "
        f"{1.0 / factor:.3g} of what the settings say",
        "warning",
        (evidence(high, int(np.flatnonzero(wrong)[0]), -1, value=factor, baseline=1.0, limit=1.0 + limits["off"]),),
        suspect="loss-divided-by-other-tokens" if named else "",
        unchecked=() if view.info.world_size else ("whether all ranks were recorded: world_size",),
    )
