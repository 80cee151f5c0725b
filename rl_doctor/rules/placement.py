"""Outcome rewards that stand at the wrong token."""

from __future__ import annotations

from collections.abc import Iterable

from rl_doctor.report.model import Hit
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.spans import above, at, pooled
from rl_doctor.rules.view import View


@rule(
    "RLD018",
    "outcome-off-last-token",
    severity="error",
    needs=("mask.reward_off_last_frac",),
    optional=("mask.reward_off_by_padding_frac", "mask.reward_off_padded_frac", "mask.reward_off_unpadded_frac"),
    limits={"share": 0.02, "rows": 3, "with_kl": 0.2, "convention": 0.98, "padded": 0.9},
    cause="The index of the last token is wrong for some rows, so that the reward stands at another token.",
    advice=(
        "Take the last index from the positions of the mask (the largest position with mask 1), not from its sum.",
        "Check padding on both sides: sum - 1 is the last index only where padding stands to the right.",
    ),
    avoids=(
        "rewards of single steps or tokens: one token must hold nine tenths of the row's",
        "a convention that all rows share",
    ),
    source="public fix: the last index was mask.sum() - 1, which is off by the padding to the left",
    since="0.2.0",
)
def reward_off_last_token(view: View, limits: Limits) -> Iterable[Hit | Skip]:
    """The reward of the outcome does not stand at the last token that is trained.

    Tokens behind it then get no credit, and a critic learns the value of the wrong place.

    Rows count in which one token holds nine tenths of the row's reward by size. If in more than ``share`` of them, ``rows`` at
    least, it is not the last trained one, it is an error; where that is so in more than ``convention`` of the rows, and not by
    the padding to the left, it may be how the trainer stores it, and is info. If rows with padding to the left are concerned and
    others are not, or the distance equals the padding in ``padded`` of the rows, that is the cause. Where the KL term is part of
    the reward, its share at one token can outweigh a reward near 0: then ``with_kl`` of the rows are needed.
    """
    series = view.series("mask.reward_off_last_frac")
    found = above(series, limits["with_kl" if view.config.kl_in_reward else "share"])
    if found is None or found.items < limits["rows"]:
        return
    steps = series.steps[found.marked]
    by, padded, plain = (at(view.get(f"mask.reward_off_{name}_frac"), steps) for name in ("by_padding", "padded", "unpadded"))
    split = padded is not None and plain is not None and pooled(padded) > 0.5 and pooled(plain) < limits["share"]
    exact = by is not None and padded is not None and pooled(by) > limits["padded"]
    whole = found.value > limits["convention"] and not exact and not split
    message = f"In {found.items:.0f} of {found.n} rows the reward does not stand at the last trained token {found.when}"
    if padded is not None and plain is not None:
        message += f": {pooled(padded):.0%} of the rows with padding to the left, {pooled(plain):.0%} of the others"
    cause = "The last index is taken from the sum of the mask, which is off by the padding to the left."
    if whole:
        cause = "In all rows the reward stands elsewhere than at the last trained token: a convention, or an index that is off."
    unchecked = () if padded is not None else ("padding to the left: left_padding is not recorded",)
    yield Hit(
        message, "info" if whole else "error", (found.evidence(),), cause if whole or split or exact else None, (), unchecked,
        suspect="last-index-ignores-left-padding" if split or exact else "",
    )  # fmt: skip
