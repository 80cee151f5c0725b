"""Losses that are not what the settings say: signs, coefficients, clipping, and what a token weighs."""

from __future__ import annotations

from typing import Final

import numpy as np

from rl_doctor.causes.registry import Look, Sign, cause
from rl_doctor.causes.scene import Scene
from rl_doctor.causes.signs import configured, found, measured, over, sign

_FINDS: Final = ("logged-metric-mismatch", "impossible-values")
_SOURCE: Final = "Loss = policy loss - entropy_coef * entropy + kl_coef * KL; fixing commits of trainers"
_RELATIVE: Final = 1e-3


def _term(name: str, label: str, words: str, *signs: Sign, leads_to: tuple[str, ...], advice: tuple[str, ...], doc: str) -> None:
    """A cause that rules tell from the loss that was logged."""
    cause(
        name, label, explains=_FINDS, leads_to=leads_to,
        signs=(_named(words, name), *signs), advice=advice, source=_SOURCE, doc=doc,
    )  # fmt: skip


def _named(words: str, name: str) -> Sign:
    """A sign that is there where either rule has recognised the cause."""
    parts = [found(rule, words, suspect=name) for rule in _FINDS]

    def look(scene: Scene) -> Look:
        looks = [part.look(scene) for part in parts]
        return next((one for one in looks if one.there), next((one for one in looks if one.there is None), looks[0]))

    return Sign(words, "needed", (), look)


_DRIFT: Final = (
    "kl-runaway",
    "kl-spike",
    "entropy-collapse",
    "entropy-explosion",
    "reward-drift",
    "sudden-collapse",
    "kl-reversed",
)

_term(
    "kl-sign-in-loss",
    "the KL term enters the loss with the wrong sign",
    "the logged loss is that with the sign of the KL term turned",
    found("kl-runaway", "the KL grows without bound", role="typical"),
    leads_to=_DRIFT,
    advice=(
        "Add kl_coef * KL to the loss that is minimised; subtract it from a reward or an objective that is maximised.",
        "Go back to the start: every update was paid for leaving the reference.",
    ),
    doc="""Drift lowers the loss. The loss looks healthy, and falls; the KL does not.""",
)
_term(
    "entropy-sign-in-loss",
    "the entropy enters the loss with the wrong sign",
    "the logged loss is that with the sign of the entropy bonus turned",
    found("entropy-collapse", "the entropy collapses", role="typical"),
    leads_to=("entropy-collapse", "entropy-explosion", "zero-variance-groups", "duplicate-samples"),
    advice=("Subtract entropy_coef * entropy from the loss that is minimised.",),
    doc="""A bonus that is added to the loss is a penalty on exploration: the policy becomes sure faster than it learns.""",
)
_term(
    "kl-left-out-of-loss",
    "the KL term is left out of the loss",
    "the logged loss is that without the KL term",
    leads_to=_DRIFT,
    advice=("Check the switch that turns the KL loss on: a coefficient alone does not in some trainers.",),
    doc="""kl_coef is set and has no effect. Where the log adds the term apart, only the logged total is short of it.""",
)
_term(
    "entropy-left-out-of-loss",
    "the entropy bonus is left out of the loss",
    "the logged loss is that without the entropy bonus",
    leads_to=("entropy-collapse",),
    advice=("Check that the entropy is computed with its gradient in the update pass.",),
    doc="""entropy_coef is set and has no effect.""",
)
_term(
    "kl-twice-in-loss",
    "the KL term is added to the loss twice",
    "the logged loss is that with twice the KL term",
    leads_to=("kl-penalty-dominates", "reward-flatline"),
    advice=("Look for a second addition: in the loss function and in the update loop.",),
    doc="""The pull towards the reference is twice what kl_coef says.""",
)
_term(
    "entropy-twice-in-loss",
    "the entropy bonus is added to the loss twice",
    "the logged loss is that with twice the entropy bonus",
    leads_to=("entropy-explosion",),
    advice=("Look for a second addition: in the loss function and in the update loop.",),
    doc="""The bonus is twice what entropy_coef says.""",
)
_term(
    "coefficient-left-out",
    "a term of the loss is added without its coefficient",
    "the logged loss is that without a coefficient",
    leads_to=("kl-penalty-dominates", "entropy-explosion", "reward-flatline"),
    advice=("Multiply the term by its coefficient; check whether the logged or the differentiated loss lacks it.",),
    doc="""A term that should be a thousandth of the loss is all of it.""",
)
_term(
    "coefficient-applied-twice",
    "a coefficient of the loss is applied twice",
    "the logged loss is that with a coefficient squared",
    leads_to=_DRIFT,
    advice=("Multiply once: where the term is made, or where it is added.",),
    doc="""A small coefficient squared is none: the term has no effect. Often it is the log alone that multiplies again.""",
)
_term(
    "dual-clip-without-inner",
    "dual clip replaces the clip range instead of adding to it",
    "the logged loss is that of dual clip without the inner clip range",
    leads_to=("ratio-saturation", "kl-spike", "kl-runaway"),
    advice=("For A < 0 take min(max(-r A, -clip(r) A), -c A): dual clip bounds the clipped loss, it does not replace it.",),
    doc="""Below the clip range the loss of a token with a negative advantage keeps its gradient: bad tokens are pushed down
    without end. Above the range nothing changes, so the loss differs by little.""",
)
_term(
    "dual-clip-on-both-signs",
    "dual clip bounds the loss of positive advantages too",
    "the logged loss is that of dual clip on both signs of the advantage",
    measured("policy.ratio_max", over(3.0), "ratios reach the bound", "the largest ratio is {}", role="typical"),
    leads_to=("ratio-saturation", "reward-flatline"),
    advice=("Apply the bound where A < 0 only: torch.where(advantage < 0, min(loss, -c A), loss).",),
    doc="""For a positive advantage the clip range bounds the gain already. A second bound caps nothing but tokens whose ratio
    has fallen far below the range, or all of them where the constant is small.""",
)
_term(
    "loss-clipped-otherwise",
    "the loss is clipped in another way than the settings say",
    "the logged loss is that with another clip",
    leads_to=("ratio-saturation", "kl-spike", "kl-runaway"),
    advice=("Compare the loss function with PPO's at ratios of .5, 1 and 2 with both signs of the advantage.",),
    doc="""The bounds, the side on which they bind, or the choice between plain and clipped loss are not PPO's.""",
)
_term(
    "loss-aggregated-otherwise",
    "the loss is aggregated in another way than the settings say",
    "the logged loss is that of another aggregation",
    leads_to=("length-explosion", "length-collapse"),
    advice=("Set loss_agg to what is meant: token-mean weighs tokens alike, a mean over sequences weighs short ones more.",),
    doc="""Which tokens carry the gradient depends on it: under a mean of sequences' means a token of a long answer weighs
    little, so that long wrong answers are hardly punished.""",
)


@sign("tokens weigh unequally by rank")
def _by_rank(scene: Scene) -> Look:
    """Unequal recorded normalisers, or a logged loss that is the mean over ranks."""
    uneven = found("uneven-token-weights", "ranks divide by unequal numbers of tokens").look(scene)
    if uneven.there:
        return uneven
    words = "the logged loss is a mean over ranks or micro-batches"
    logged = found("logged-metric-mismatch", words, suspect="each-rank-own-tokens").look(scene)
    return logged if logged.there is not None or uneven.there is None else uneven


cause(
    "each-rank-own-tokens", "each rank divides the loss by its own tokens",
    explains=("uneven-token-weights", "logged-metric-mismatch"), leads_to=("length-explosion", "grad-norm-spike"),
    signs=(
        _by_rank,
        measured("weight.rank_ratio", over(1.2), "ranks have unequal numbers of tokens",
                 "the largest rank has {} times the tokens of the smallest", role="typical"),
        configured("loss_agg", lambda value: value == "token-mean", "a mean over tokens is set", "loss_agg is {}",
                   role="typical"),
    ),
    advice=(
        "Sum the token counts over the ranks before dividing; where gradients are averaged, multiply by the number of ranks.",
        "Or balance the ranks by tokens.",
    ),
    source="Public issue threads on token-mean losses that are averaged over ranks",
    doc="""A token weighs by how few others stand on its rank. With a mean over sequences unequal weights are meant; with one over
    tokens they are a fault. Where only the logged loss is such a mean, and the gradient is not, it is the log alone.""",
)  # fmt: skip
cause(
    "loss-divided-by-other-tokens", "the loss is divided by the tokens of another set than the optimizer step",
    explains=("loss-normaliser-scale",),
    leads_to=("grad-norm-spike", "reward-flatline", "grad-vanished", "logged-metric-mismatch"),
    signs=(
        found("loss-normaliser-scale", "the normaliser is a multiple of the tokens of the optimizer step"),
    ),
    advice=(
        "Divide by the tokens of the optimizer step, all ranks and micro-batches together.",
        "Until then read the learning rate and max_grad_norm as multiplied by the factor.",
    ),
    source="Public issue threads on losses divided by the tokens of the generation batch",
    doc="""A generation batch that is used in several optimizer steps has several times the tokens of each. Tokens weigh alike;
    all gradients are too small, or too large, by one factor.""",
)  # fmt: skip


def _reproduces(metric: str, words: str) -> Sign:
    """A sign that is there where a loss that was computed otherwise equals the log at steps where the configured one does not."""

    def look(scene: Scene) -> Look:
        made = scene.view.get(metric)
        told = [item for item in scene.view.comparisons if item.metric in {"policy.loss_pg", "policy.loss_total"}]
        if not told:
            return Look(there=False, text="no policy loss of the log was compared")
        if made is None:
            return Look(None, words, None, scene.missing(metric))
        equal = wrong = 0
        first: int | None = None
        for item in told:
            size = np.maximum(np.abs(item.logged), np.abs(item.recomputed))
            off = np.abs(item.logged - item.recomputed) > np.maximum(item.tolerance, _RELATIVE * size)
            steps, here, there = np.intersect1d(item.steps[off], made.steps, return_indices=True)
            near = np.abs(item.logged[off][here] - made.values[there]) <= np.maximum(
                item.tolerance[off][here], _RELATIVE * np.abs(item.logged[off][here])
            )
            equal, wrong = equal + int(near.sum()), wrong + len(near)
            if near.any():
                first = int(steps[near][0])
        return Look(wrong > 0 and equal >= 0.95 * wrong, f"it equals the log at {equal} of {wrong} steps that differ", first)

    return Sign(words, "needed", (metric,), look)


cause(
    "loss-per-token-for-sequence-ratio", "the loss uses a ratio per token where the algorithm has one per sequence",
    explains=("logged-metric-mismatch",), leads_to=("ratio-saturation",),
    signs=(
        found("logged-metric-mismatch", "the logged loss is not the configured one"),
        sign("one ratio per sequence is set")(
            lambda scene: Look(
                "gspo" in (scene.view.info.algorithm or "").lower(), f"the algorithm is {scene.view.info.algorithm}"
            )
        ),
        _reproduces("policy.loss_if_by_token", "a loss with a ratio per token is what was logged"),
    ),
    advice=("Take the mean log-ratio of the sequence before exp, and clip that.",),
    source="GSPO, arXiv:2507.18071, eq. 5; fixing commits of trainers",
    doc="""The name of the algorithm is set, the loss is still PPO's. With the narrow range of sequences almost every token is
    clipped.""",
)  # fmt: skip
cause(
    "loss-per-sequence-for-token-ratio", "the loss uses a ratio per sequence where the algorithm has one per token",
    explains=("logged-metric-mismatch",),
    signs=(
        found("logged-metric-mismatch", "the logged loss is not the configured one"),
        sign("a ratio per token is set")(
            lambda scene: Look(
                "gspo" not in (scene.view.info.algorithm or "").lower(), f"the algorithm is {scene.view.info.algorithm}"
            )
        ),
        _reproduces("policy.loss_if_by_sequence", "a loss with a ratio per sequence is what was logged"),
    ),
    advice=("Check the level of importance sampling in the settings against the algorithm that is meant.",),
    source="GSPO, arXiv:2507.18071, eq. 5",
    doc="""With the wide range of tokens a sequence's ratio is never clipped.""",
)  # fmt: skip
