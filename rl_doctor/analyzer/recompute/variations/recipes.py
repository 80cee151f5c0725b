"""Recipes with one entry exchanged: rows, tokens, the divisor of a deviation, the statistic, the function of a log-ratio."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from rl_doctor.analyzer.derive import Floats
from rl_doctor.analyzer.dialects.recipes import CELL, Recipe, Row
from rl_doctor.analyzer.recompute.folds import folded
from rl_doctor.analyzer.recompute.quantities.registry import (
    Given,
    advantage_column,
    advantage_of,
    difference,
    evaluated,
    inner,
    pair,
)
from rl_doctor.analyzer.recompute.registry import Entries, Hypothesis
from rl_doctor.analyzer.recompute.stages import Share, sums_by
from rl_doctor.analyzer.recompute.variations.masks import OVER_WIDTH, over_width
from rl_doctor.analyzer.recompute.variations.values import Clip, Value, Valued, clamps, clipped_shares, estimates, losses
from rl_doctor.analyzer.registry import Reduction
from rl_doctor.store.batch import Batch

if TYPE_CHECKING:
    from rl_doctor.analyzer.recompute.configured import Made

Reduced = Callable[["Made"], tuple[Reduction, Callable[[Any], Entries]]]
ShareOf = Callable[["Made", "Valued | None"], Share]
_MASKS: Final = ("is_padding", "response_mask")
_ROWS: Final[dict[Row, tuple[str, str]]] = {
    "tokens": ("mean over tokens", "is a mean over tokens, not over sequences"),
    "mean": ("mean of the sequences' means", "is the mean of the sequences' own means, not a mean over tokens"),
    "sum": ("mean of the sequences' sums", "is the mean over sequences of the sum over each (seq-mean-token-sum)"),
}
_PLAIN: Final = ("log_ratio", "abs_log_ratio")
_OWN: Final = {"log_ratio": ("k1", "k1 reversed"), "abs_log_ratio": ("abs",), "ratio": ("ratio",)}
"""What the quantity is called among the estimates; those that it can only be told from by its sign too."""
_CLIPPED: Final[dict[str, dict[str, str]]] = {
    "binds": {"": "both sides", "low": "lower side", "high": "upper side"},
    "outside": {
        "": "whatever the advantage", "low": "below whatever the advantage", "high": "above whatever the advantage",
    },
    "dual_binds": {"": "dual clip alone"},
}  # fmt: skip
"""Shares of clipped tokens by the side that counts."""


def other_recipes(made: Made, reduced: Reduced, share_of: ShareOf) -> tuple[Hypothesis, ...]:
    """What the number would be by another recipe.

    Args:
        made: its own.
        reduced: makes a recipe's reduction and reading.
        share_of: what each sequence adds, by a recipe and another value per token.
    """
    if made.beside or made.recipe.per:
        return ()
    found = list(_changed(made, reduced))
    if made.recipe.level == "token" and made.recipe.statistic == "mean":
        found += [_over_width(made, share_of), *_other_values(made, share_of)]
    return tuple(found)


def _changed(made: Made, reduced: Reduced) -> Iterator[Hypothesis]:
    for name, sentence, recipe in _recipes(made.recipe):
        yield Hypothesis(name, sentence, *reduced(replace(made, recipe=recipe)))


def _recipes(recipe: Recipe) -> Iterator[tuple[str, str, Recipe]]:
    """Names, sentences and recipes that differ in one entry."""
    fold = recipe.fold
    if recipe.level == "token" and recipe.statistic == "mean":
        for row, (name, sentence) in _ROWS.items():
            if row != fold.row:
                yield name, sentence, replace(recipe, fold=replace(fold, row=row, empty=row != "tokens"))
        if fold.row != "tokens":
            word = "leaves out sequences without tokens" if fold.empty else "counts sequences without tokens as 0"
            yield word, word, replace(recipe, fold=replace(fold, empty=not fold.empty))
        if recipe.mask == "loss_mask":
            sentence = "is over the tokens of response_mask, not of loss_mask"
            yield "the response mask", sentence, replace(recipe, mask="response_mask")
    if recipe.statistic == "std":
        words = "n, not by n - 1" if recipe.ddof else "n - 1, not by n"
        yield f"ddof {1 - recipe.ddof}", f"is a standard deviation that divides by {words}", replace(recipe, ddof=1 - recipe.ddof)
    if recipe.level == "rollout":
        for statistic in ("mean", "sum", "max", "min", "median", "std"):
            if statistic != recipe.statistic:
                yield f"{statistic} of the rows", f"is the {statistic} over the rows", replace(recipe, statistic=statistic)


def _over_width(made: Made, share_of: ShareOf) -> Hypothesis:
    fold = replace(made.recipe.fold, row="tokens", empty=False, divisor="")
    share = over_width(share_of(replace(made, recipe=replace(made.recipe, fold=fold)), None))
    reduction = sums_by(CELL, share, needs=(*made.needs, "padded_width"), optional=_MASKS)
    return Hypothesis(*OVER_WIDTH, reduction, folded(fold)(()))


def _other_values(made: Made, share_of: ShareOf) -> Iterator[Hypothesis]:
    for one in _values(made.value):
        reduction = sums_by(CELL, share_of(made, one.function), needs=(*made.needs, *one.needs), optional=_MASKS)
        yield Hypothesis(one.name, one.sentence, reduction, folded(made.recipe.fold)(()))


def _values(given: Given) -> Iterator[Value]:
    """Other values per token than a quantity's own."""
    name, arguments = given.name, given.arguments
    if name == "product":
        weight = inner(arguments, "right")
        for one in _values(inner(arguments, "left")):
            yield replace(one, function=partial(_weighted, function=one.function, weight=weight))
    elif name in _CLIPPED and "x" not in arguments:
        own = _CLIPPED[name][str(arguments.get("side") or _side(given))]
        for one in clipped_shares(_clip(given), own):
            yield replace(one, needs=(*one.needs, *advantage_column(arguments)))
    elif name == "surrogate" and "x" not in arguments and "advantage" not in arguments:
        yield from losses(_clip(given), *(() if arguments.get("dual") else ("without the dual clip",)))
    elif name in _OWN or name == "estimate":
        yield from _estimated(given)


def _estimated(given: Given) -> Iterator[Value]:
    """Other functions of the same log-ratio, and the same one within other bounds."""
    kind = str(given.arguments.get("kind", "k1"))
    own = _OWN.get(given.name, ("k1", "k1 reversed") if kind == "k1" else (kind,))
    yield from estimates(partial(_difference, given=given), *own)
    if given.name in {"estimate", "ratio"} and "most" not in given.arguments:
        bound = given.arguments.get("clamp")
        unbound = replace(given, arguments={name: value for name, value in given.arguments.items() if name != "clamp"})
        yield from clamps(partial(_difference, given=unbound), own[0], None if bound is None else float(cast("float", bound)))


def _side(given: Given) -> str:
    """The one bound of the ratio that counts, where only one does."""
    told = [name for name in ("low", "high") if given.arguments.get(name) is not None]
    return told[0] if given.name == "outside" and len(told) == 1 else ""


def _weighted(batch: Batch, function: Valued, weight: Given) -> tuple[Floats, Floats]:
    value, size = function(batch)
    times = evaluated(batch, weight).values
    return value * times, size * np.abs(times)


def _difference(batch: Batch, given: Given) -> Floats:
    """The log-ratio that goes into the quantity; of one that is the log-ratio itself that of the trained policy to the other."""
    found = difference(batch, given.arguments)
    return -found if given.name in _PLAIN and pair(given.arguments)[1:] == ("logprob",) else found


def _clip(given: Given) -> Clip:
    """What a clipped loss follows from; the bounds that the quantity has."""
    low, high = (float(cast("float", given.arguments.get(name) or 0.0)) for name in ("low", "high"))
    dual = given.arguments.get("dual")
    arguments = {name: value for name, value in given.arguments.items() if name not in {"low", "high", "dual", "side"}}
    cap = None if dual is None else float(cast("float", dual))
    ratio, advantage = (lambda batch: np.exp(difference(batch, arguments))), (lambda batch: advantage_of(batch, arguments))
    return Clip(ratio, 1.0 - low, 1.0 + high, cap, advantage)
