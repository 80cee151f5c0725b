"""The shape of advantages over tokens and ranks: one per response where the estimator says so, and one scale for all ranks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rl_doctor.report.model import Hit
from rl_doctor.rules.advantage import GROUPED
from rl_doctor.rules.reading import lacking
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.stretch import joined, stretch
from rl_doctor.rules.view import View

_MEANS, _STDS = "adv.mean_by.rank.", "adv.std_by.rank."


@rule(
    "RLD421", "advantage-varies-in-response",
    severity="error", since="0.2.0",
    optional=("adv.inside_frac", "adv.varying_frac"),
    limits={"inside": 1e-3, "rows": 0.1, "steps": 3, "tokens": 200},
    cause="One advantage per response was spread over tokens along the wrong axis, or something per token was added to it.",
    advice=(
        "Print the advantages of two responses: along a row they must be equal, between rows they must not.",
        "Spread with an explicit axis (advantage[:, None]); a batch as wide as it is high hides the mistake.",
        "If tokens are weighted on purpose (entropy, process rewards), name the estimator in the configuration.",
    ),
    avoids=("Critics and rewards per token.", "A KL penalty in the reward.", "Rounding."),
    source="Public issue threads: a masked normalisation broadcasts over the wrong axis",
)  # fmt: skip
def advantage_varies_in_response(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The advantage differs between the tokens of a response although the estimator gives each response one.

    An outcome estimator compares whole responses. If the advantage changes from token to token, tokens are rewarded for their
    position or for what stands in another row.

    It fires if at least `rows` of the responses have advantages that differ, and what differs within responses makes up at
    least `inside` of the square of all advantages, at a stretch of `steps` steps with `tokens` tokens, where the configuration
    names an estimator of one advantage per response and no KL in the reward.
    """
    declared = view.config.adv_estimator
    if declared not in GROUPED:
        yield Skip("config", "the estimator is not known to give one advantage per response", ("config.adv_estimator",))
        return
    if view.config.kl_in_reward:
        yield Skip("config", "a KL per token is part of the reward")
        return
    found = joined(view.get("adv.inside_frac"), view.get("adv.varying_frac"))
    if found is None:
        yield lacking(view, "adv.inside_frac")
        return
    inside, varying = found
    marked = (inside.values > limits["inside"]) & (varying.values >= limits["rows"])
    breach = stretch(inside, marked, limits["inside"], steps=int(limits["steps"]), items=int(limits["tokens"]))
    if breach is None:
        return
    yield Hit(
        f"{breach.value:.1%} of the squared advantage lies within responses, {breach.when}; with {declared} each has one",
        "error",
        (breach.evidence(),),
        ruled_out=("rounding: it would be less than a millionth",),
    )


@rule(
    "RLD422", "advantage-whitened-by-rank",
    severity="warning", since="0.2.0",
    optional=(_MEANS, _STDS, "length.min", "length.max"),
    limits={"mean": 1e-3, "std": 0.02, "steps": 3, "tokens": 400},
    cause="Mean and standard deviation are taken over the tokens of one rank instead of those of all ranks.",
    advice=(
        "Reduce sums and counts over all ranks before they become a mean and a standard deviation.",
        "If whitening by rank is meant, make sure that every rank has a fair sample of the prompts.",
    ),
    avoids=("A single rank.", "Responses that all have one length: groups then centre every rank as well."),
    source="A public fix: statistics of advantages over a context-parallel group only",
)  # fmt: skip
def advantage_whitened_by_rank(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The advantages of every rank have mean 0 and standard deviation 1 for themselves.

    Whitened over all tokens, a rank with better responses has a mean above 0. Whitened by rank, that difference is lost: a
    response is then good or bad by which other prompts its rank happened to get.

    Over the tokens of each rank, mean and standard deviation are held against 0 (within `mean`) and 1 (within `std`). It fires
    if all ranks agree, at a stretch of `steps` steps with `tokens` tokens, of at least two ranks, whose responses differ in
    length.
    """
    means, stds = view.named(_MEANS), view.named(_STDS)
    if not means:
        yield lacking(view, _MEANS)
        return
    if view.info.partial or view.estimated.intersection(series.metric for series in means.values()):
        yield Skip("data", "not all ranks or tokens were recorded: the mean of a rank cannot be held against 0")
        return
    found = joined(*means.values(), *stds.values())
    if len(means) < 2 or found is None or len(stds) != len(means):
        yield Skip("data", "one rank trains on all tokens: there is nothing to tell apart")
        return
    low, high = view.get("length.min"), view.get("length.max")
    if low is not None and high is not None and bool(np.all(np.median(high.values) == np.median(low.values))):
        yield Skip("data", "all responses have one length: what centres groups centres ranks as well")
        return
    centre = np.max([np.abs(series.values) for series in found[: len(means)]], axis=0)
    scale = np.max([np.abs(series.values - 1.0) for series in found[len(means) :]], axis=0)
    series = found[0]
    marked = (centre < limits["mean"]) & (scale < limits["std"])
    breach = stretch(series, marked, limits["mean"], steps=int(limits["steps"]), items=int(limits["tokens"]))
    if breach is None:
        return
    worst = float(centre[breach.marked].max())
    yield Hit(
        f"On each of {len(means)} ranks the advantages have mean 0 (within {max(worst, 1e-9):.1g}) and standard deviation 1, "
        f"{breach.when}",
        "warning",
        (breach.evidence(value=worst),),
        ruled_out=("chance: means of ranks differ by more, where all tokens are whitened together",),
        suspect="statistics-of-one-rank",
    )
