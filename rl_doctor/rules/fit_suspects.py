"""Which cause stands behind a way of computing that reproduces what the trainer logged."""

from __future__ import annotations

import re
from typing import Final

from rl_doctor.analyzer.comparison import Comparison, Fit

_LOSSES: Final = ("policy.loss_pg", "policy.loss_total")
_DIFFERENTIATED: Final[tuple[tuple[str, str], ...]] = (
    (r"KL term with the opposite sign", "kl-sign-in-loss"),
    (r"entropy term with the opposite sign", "entropy-sign-in-loss"),
    (r"no KL term", "kl-left-out-of-loss"),
    (r"no entropy term", "entropy-left-out-of-loss"),
    (r"coefficient twice", "coefficient-applied-twice"),
    (r"without its coefficient", "coefficient-left-out"),
    (r"dual clip alone", "dual-clip-without-inner"),
    (r"dual clip on both signs", "dual-clip-on-both-signs"),
    (r"without any clip|without the (clip range|dual clip)|bound alone|always clipped|smaller of the two|bound on both sides",
     "loss-clipped-otherwise"),
    (r"mean over (ranks|micro-batches)|micro-batches and ranks", "each-rank-own-tokens"),
    (r"token-mean|token-sum|mean of the sequences'|mean over tokens|^aggregated|^[a-z_]+'s$", "loss-aggregated-otherwise"),
)  # fmt: skip
"""What the names of explanations of a loss hold -> the cause: the loss is what is differentiated."""
_LOGGED: Final[tuple[tuple[str, str], ...]] = (
    (r"minus the ratio", "kl-logged-as-minus-ratio"),
    (r"^(k3|k1) reversed", "kl-logged-in-other-direction"),
    (r"^(k1|k2|k3|abs|squared)\b|^KL term k", "other-estimator-logged"),
    (r"opposite sign|negated", "logged-with-opposite-sign"),
    (r"^(times|divided by) |sum over|coefficient|entropy shard", "scaled-by-a-count"),
    (r"mean over|weighted over|of each rank|tokens? weighted|mean of the sequences'", "mean-of-means-logged"),
    (r"without the mask|padded width|prompt|over the (whole responses|stored tokens)|mask one position|inverted mask|loss_mask",
     "masked-tokens-in-metric"),
    (r"(rank \d+|micro-batch|mini-batch|epoch|responses) only|^(first|last) (micro|mini|epoch)", "part-of-step-logged"),
    (r"row's value", "logged-at-other-step"),
    (r"whatever the advantage|both sides|(lower|upper) side|opposite advantage|dual clip", "clip-share-counted-otherwise"),
)  # fmt: skip
"""The same of all other keys: what is logged is wrong, and nothing says that the training is."""


def suspect_of(item: Comparison, fitting: list[Fit]) -> str:
    """The cause that the best explanation of a key points to; the one that says no more than it where none is known."""
    table = (*_DIFFERENTIATED, *_LOGGED) if item.metric in _LOSSES else _LOGGED
    name = fitting[0].explanation.name
    return next((cause for pattern, cause in table if re.search(pattern, name)), "metric-computed-otherwise")
