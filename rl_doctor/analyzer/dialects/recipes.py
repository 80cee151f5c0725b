"""How a trainer arrives at a number, as data: what it averages, over which tokens, and in which stages.

``recompute/recipes.py`` turns a recipe into sums over a run; nothing here computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Final, Literal

from rl_doctor.frozen import frozen

Argument = str | float | bool | None
"""A number or a word; ``config.<field>`` and ``native.<key>`` (dots for nested ones) stand for how the run was configured. With a
question mark behind it such a setting may be None, which else means that it is unknown; of several with ``|`` between them the
first that is known counts. ``word.<word>`` stands for what is in that place of the name of a family."""
Row = Literal["tokens", "mean", "sum"]
How = Literal["mean", "sum", "max", "min", "first", "last"]
Statistic = Literal["mean", "sum", "max", "min", "median", "std"]
Joined = Literal["sum", "quotient", "deviation", "explained"]
Proof = Literal["exact", "derived"]

UNDIVIDED: Final = "1"
"""The divisor of a ``Fold`` that sums."""
CELL: Final = ("rank", "rollout_step", "epoch", "minibatch", "microbatch")
"""Columns that tell the parts of a step apart."""


@frozen
class Of:
    """A quantity per token or per row: the name of one in ``recompute/quantities.py``, and its arguments, also quantities."""

    name: str
    arguments: tuple[tuple[str, Argument | Of], ...] = ()


def of(name: str, /, **arguments: Argument | Of) -> Of:
    """A quantity with its arguments."""
    return Of(name, tuple(sorted(arguments.items())))


@frozen
class Stage:
    """How quotients that differ only in ``columns`` become one."""

    columns: tuple[str, ...]
    how: How


@frozen
class Fold:
    """How the values of a step's tokens become one number.

    Attributes:
        row: what a sequence adds: the sum of its tokens, weighing as much as it has tokens ("tokens"); their mean or their sum,
            weighing 1 ("mean", "sum").
        empty: whether a sequence without a token weighs 1 as well, as 0.
        apart: columns of ``CELL`` that tell apart what is pooled into one quotient; none pools the step.
        divisor: column of the contexts that divides the pooled numerators instead of their weights, "" for these weights, or
            ``UNDIVIDED`` for sums.
        filled: whether parts without any token are left out, instead of counting as 0.
        stages: what becomes of the quotients, the inner first; what is left after them is averaged.
    """

    row: Row = "tokens"
    empty: bool = False
    apart: tuple[str, ...] = ()
    divisor: str = ""
    filled: bool = False
    stages: tuple[Stage, ...] = ()


@frozen
class Recipe:
    """A number that can be recomputed.

    Attributes:
        value: what is averaged.
        fold: the stages; of a "token" recipe whose statistic is the mean.
        level: "token" for what is trained on, per step; "rollout" for the rows of a generation batch, each once.
        statistic: of the values over all tokens, or over what rows add to the fold; other than "mean" at once. With
            ``fold.apart`` it is taken of each part, and then come the stages; of "max" and "min", and of generation batches.
        ddof: of "std".
        mask: column that selects the tokens.
        where: further condition that a token must meet to be covered, a quantity that is 0 or 1; None for none.
        per: column; what has the same value there counts as one row of a mean. Of a "token" recipe these are whole rows whose
            tokens are pooled (``fold.row`` "mean"), of a "rollout" recipe it only tells how many there are.
        factor: the number is ``factor`` times the statistic.
        beside: further recipes of the same level that go into the number.
        joined: how: "sum"; "quotient", the first over the second; "deviation", of a mean and a mean square;
            "explained", the share of variance of R explained by v, of the means of R, v, R^2 and (R - v)^2.
        when: setting (as an ``Argument``) -> the values with which the trainer computes it so; an unknown one is none of them.
        unit: of the number.
        beside_columns: columns without which the number is of something that the run does not have, though it reads none.
    """

    value: Of
    fold: Fold = Fold()
    level: Literal["token", "rollout"] = "token"
    statistic: Statistic = "mean"
    ddof: int = 1
    mask: Literal["response_mask", "loss_mask", "stored"] = "response_mask"
    where: Of | None = None
    per: str = ""
    factor: float = 1.0
    beside: tuple[Recipe, ...] = ()
    joined: Joined = "sum"
    when: Mapping[str, tuple[Argument, ...]] = field(default_factory=lambda: MappingProxyType({}))
    unit: str = "1"
    beside_columns: tuple[str, ...] = ()


@frozen
class Definition:
    """What a trainer's number is.

    Attributes:
        formula: one line of mathematics: mask, clamps, sign, estimator, ddof, eps and stages, as the trainer has them.
        proof: "exact" where a test holds it against the trainer's own code or numbers that came out of it, "derived" where
            against a written reference; None where it cannot be recomputed from what is recorded.
        reason: why it cannot.
        recipes: how it is recomputed; of several the first whose ``when`` holds. Empty where code in ``recompute`` does.
    """

    formula: str
    proof: Proof | None = None
    reason: str = ""
    recipes: tuple[Recipe, ...] = ()


def exact(formula: str, *recipes: Recipe) -> Definition:
    """A definition that is held against the trainer's own code."""
    return Definition(formula, "exact", recipes=recipes)


def derived(formula: str, *recipes: Recipe) -> Definition:
    """A definition that is held against a written reference."""
    return Definition(formula, "derived", recipes=recipes)


def absent(reason: str, formula: str = "") -> Definition:
    """A number that cannot be recomputed from what is recorded."""
    return Definition(formula, None, reason)
