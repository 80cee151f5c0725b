"""Numbers at tokens that are not trained, and how they get into those that are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from rl_doctor.analyzer.comparison import Comparison
from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Evidence, Hit
from rl_doctor.rules.reading import lacking
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.spans import above, at, pooled
from rl_doctor.rules.view import View

_KINDS: Final = ("k1", "k3")


@rule(
    "RLD025",
    "observations-in-returns",
    severity="error",
    optional=(
        "masked.rewarded_frac", "masked.reward_share", "masked.return_jump_corr", "masked.return_jump_ratio", "value.mean",
    ),
    limits={"tokens": 0.5, "share": 0.01, "corr": 0.6, "gaps": 30, "times": 5.0},
    cause="Rewards of observed tokens (a KL penalty, usually) are summed into the returns of the actions before them.",
    advice=(
        "Multiply token rewards by the mask before returns are summed, not after.",
        "Recompute one row by hand: the return may only change where the policy acted.",
    ),
    avoids=(
        "rewards of the environment that stand at single tokens of an observation",
        "advantages of a critic, whose value may well change over an observation",
        "discounting, which makes returns fall over gaps too",
    ),
    source="public trainer issue: REINFORCE++ returns drift with the length of tool outputs",
    since="0.2.0",
)  # fmt: skip
def observations_in_returns(view: View, limits: Limits) -> Iterable[Hit | Skip]:
    """Actions are credited or blamed for tokens that the policy did not write.

    Returns sum what comes later. If observed tokens hold a penalty, an action before a long tool output looks worse than one
    before a short output, whatever it was good for.

    Two looks. With token rewards: more than ``tokens`` of the untrained tokens before the last trained one have a reward other
    than 0, and these make more than ``share`` of the reward of their rows by size. With returns alone, and neither a
    critic nor a discount: over at least ``gaps`` gaps in the mask the fall of the return correlates with the length of the gap
    by more than ``corr``, and is ``times`` that between neighbouring tokens.
    """
    rewarded, share = view.get("masked.rewarded_frac"), view.get("masked.reward_share")
    corr, ratio = view.get("masked.return_jump_corr"), view.get("masked.return_jump_ratio")
    if rewarded is None and corr is None:
        yield lacking(view, "masked.rewarded_frac", "masked.return_jump_corr")
        return
    found = above(rewarded, limits["tokens"])
    if found is not None and share is not None:
        part = at(share, found.series.steps[found.marked])
        if part is not None and pooled(part) > limits["share"]:
            message = (
                f"{found.value:.0%} of {found.n} observed tokens have a reward of their own {found.when}: "
                f"{pooled(part):.1%} of all reward by size"
            )
            proof = Evidence(part.metric, found.first, found.last, pooled(part), None, limits["share"], "1", found.n)
            yield Hit(message, "error", (found.evidence(), proof))
            return
    discounted = view.config.gamma is not None and view.config.gamma < 1.0
    if corr is None or ratio is None or discounted or view.get("value.mean") is not None:
        return
    number = int(corr.counts.sum())
    if number < limits["gaps"] or pooled(ratio) < limits["times"]:
        return
    strength = pooled(corr)
    if abs(strength) < limits["corr"] or abs(strength) * np.sqrt(number) < 5.0:
        return
    first, last = int(corr.steps[0]), int(corr.steps[-1])
    message = (
        f"Returns change over observations by {pooled(ratio):.0f} times what they change between neighbouring tokens, and the "
        f"more, the longer the observation (correlation {strength:.2f} over {number} gaps)"
    )
    yield Hit(
        message, "error", (Evidence(corr.metric, first, last, strength, None, limits["corr"], "1", number),),
        unchecked=("which reward it is: token_reward is not recorded",),
    )  # fmt: skip


@rule(
    "RLD026",
    "observations-in-kl",
    severity="warning",
    optional=("masked.kl_k1", "masked.kl_k3", "ref.kl_k1", "ref.kl_k3"),
    limits={"relative": 0.02, "steps": 0.8, "apart": 0.1, "least": 3},
    cause="The KL term is averaged over observed tokens too, which the policy did not choose.",
    advice=(
        "Mask the KL term with the mask of the policy loss, before it is summed and in its denominator.",
        "Then compare the logged KL with the one that is recomputed: they must be equal.",
    ),
    avoids=("observations that are far from the reference but masked: the logged number tells", "runs without a logged KL"),
    source="public agent-training issue: retrieved text in the KL, and an early collapse that went away with the mask",
    since="0.2.0",
)
def observations_in_kl(view: View, limits: Limits) -> Iterable[Hit | Skip]:
    """The logged KL is that of all tokens, observations included.

    The policy then is held to the reference on text that a tool wrote. Such text is improbable under both, so that the term is
    large, noisy and often negative, and outweighs the KL of the actions.

    The logged KL is held against the mean over the trained tokens and against that over all stored ones, by k1 and by k3, where
    the two are at least ``apart`` of the larger apart. If it is within ``relative`` of the latter and not of the former at
    ``steps`` of at least ``least`` steps, it is a warning.
    """
    measured = [kind for kind in _KINDS if view.get(f"masked.kl_{kind}") is not None]
    if not measured:
        yield lacking(view, "masked.kl_k1")
        return
    logged = [item for item in view.comparisons if item.metric is not None and item.metric.startswith("ref.kl")]
    if not logged:
        yield Skip("data", "no KL to the reference was logged that could be compared")
        return
    for item in logged:
        for kind in measured:
            trained, masked = view.get(f"ref.kl_{kind}"), view.get(f"masked.kl_{kind}")
            if trained is not None and masked is not None and (hit := _over_all(item, trained, masked, limits)):
                yield hit
                return


def _over_all(item: Comparison, trained: Series, masked: Series, limits: Limits) -> Hit | None:
    steps = np.intersect1d(np.intersect1d(item.steps, trained.steps), masked.steps)
    if len(steps) < limits["least"]:
        return None
    logged = item.logged[np.isin(item.steps, steps)]
    own, others = at(trained, steps), at(masked, steps)
    if own is None or others is None:
        return None
    whole = (own.values * own.counts + others.values * others.counts) / (own.counts + others.counts)
    size = np.maximum(np.abs(whole), np.abs(own.values))
    apart = np.abs(whole - own.values) > limits["apart"] * size
    if apart.mean() < limits["steps"]:
        return None
    as_whole = np.abs(logged - whole) <= limits["relative"] * size
    as_own = np.abs(logged - own.values) <= limits["relative"] * size
    if (as_whole & ~as_own & apart).mean() < limits["steps"]:
        return None
    first, last = int(steps[0]), int(steps[-1])
    message = (
        f"{item.name} is the KL over all tokens ({np.mean(whole):.3g} nat at steps {first} to {last}); over those that are "
        f"trained it is {np.mean(own.values):.3g}, over the observations {np.mean(others.values):.3g}"
    )
    proof = (
        Evidence(masked.metric, first, last, pooled(others), pooled(own), None, masked.unit, int(others.counts.sum())),
        Evidence(item.name, first, last, float(np.mean(logged)), float(np.mean(own.values)), None, item.unit, len(steps)),
    )
    return Hit(message, "warning", proof, ruled_out=("the KL of the trained tokens: the logged number is another",))
