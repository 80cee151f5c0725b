"""Recorded advantages against those that rewards and groups give."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Hit
from rl_doctor.rules.reading import evidence, lacking
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.view import View

GROUPED = frozenset({"grpo", "dr_grpo", "rloo"})
_FIT = "advantage.fit_"
_FAMILIES = {
    "grpo_group": "grpo",
    "grpo_batch": "grpo with the standard deviation of the batch",
    "dr_grpo": "dr_grpo",
    "rloo": "rloo",
}


@rule(
    "RLD410", "advantage-mismatch",
    severity="error",
    optional=("advantage.", "adv.abs_mean", "adv.varying_frac"),
    limits={"match": 0.01, "off": 0.05, "tokens": 500, "exact": 1e-3, "share": 0.9, "steps": 5, "rows": 64},
    cause="Advantages belong to other rows than their rewards (a shuffle between reward and advantage), use another "
    "grouping, or come from "
    "another formula than the configuration says.",
    advice=(
        "Recompute the advantages of one batch by group id from the recorded rewards and compare row by row.",
        "Check every shuffle, filter and balance step between the reward and the advantage: all columns must move together.",
        "Record the estimator and its normalisation in the run's configuration.",
    ),
    avoids=(
        "ddof and epsilon conventions: all common ones are tried.",
        "A token-weighted mean that is not 0.",
        "Advantages that differ within a response, such as those of a critic.",
    ),
    source="Public issue threads: rewards keep the old order after dynamic batching shuffles the rows",
)  # fmt: skip
def advantage_mismatch(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The recorded advantages cannot be reproduced from the recorded rewards, or contradict the configuration.

    If the advantage of a row does not follow from the rewards of its group, the policy is trained on noise or on another
    objective, and nothing else in the log shows it.

    Advantages are recomputed from rewards and groups by GRPO (standard deviation of the group or of the batch, ddof 0 or 1,
    four epsilons), Dr. GRPO and RLOO, and by what the configuration asks for. The mean difference over the mean absolute
    advantage is taken per step, and its median over steps for each formula. Below `match` a formula reproduces them. It is
    an error if the best is above `off` although one of these estimators is configured, or if one of another family matches;
    where the configuration names none, no match is info. At least `tokens` tokens with an advantage are needed.

    Where nothing matches row by row, the same formulas are tried with the sign turned, and with both sides sorted over the
    generation batch. If one fits within `exact` at `share` of at least `steps` steps with `rows` rows, it is an error without
    any configuration: the sign is turned, or the advantages are those of other rows.
    """
    scale, varying = view.get("adv.abs_mean"), view.get("adv.varying_frac")
    fits = {
        name.removeprefix(_FIT).removesuffix("_mean"): found for name, found in view.named(_FIT).items() if name.endswith("_mean")
    }
    fits.pop("gae", None)
    if scale is None or not fits:
        yield lacking(view, "advantage.fit_dr_grpo_mean" if scale is not None else "adv.abs_mean")
        return
    declared = view.config.adv_estimator
    if declared is not None and declared not in GROUPED:
        yield Skip("config", f"{declared} is not computed from the rewards of a group alone")
        return
    if varying is not None and float(np.median(varying.values)) > 0.1:
        yield Skip("data", "advantages differ within a response: they do not come from the group's rewards alone")
        return
    if int(scale.counts.sum()) < limits["tokens"]:
        yield Skip("length", f"inconclusive: {int(scale.counts.sum())} tokens with an advantage")
        return
    residuals = {name: value for name, found in fits.items() if (value := _relative(found, scale)) is not None}
    if not residuals:
        yield Skip("data", "every recorded advantage is 0")
        return
    yield from _judge_fit(view, residuals, fits, scale, limits)


def _relative(fit: Series, scale: Series) -> float | None:
    """Median over steps of the mean difference over the mean absolute advantage."""
    _, here, there = np.intersect1d(fit.steps, scale.steps, return_indices=True)
    sizes = scale.values[there]
    usable = sizes > 1e-6
    return float(np.median(fit.values[here][usable] / sizes[usable])) if usable.any() else None


def _family(name: str) -> str:
    return next((words for stem, words in _FAMILIES.items() if name.startswith(stem)), name)


def _judge_fit(
    view: View, residuals: dict[str, float], fits: dict[str, Series], scale: Series, limits: Limits
) -> Iterator[Hit | Skip]:
    declared = view.config.adv_estimator
    configured = residuals.pop("configured", None)
    if configured is not None and configured <= limits["match"]:
        return
    best = min(residuals, key=residuals.__getitem__)
    value = residuals[best]
    series = fits[best]
    shown = (
        evidence(
            series, 0, -1, value=value * float(np.median(scale.values)), limit=limits["match"] * float(np.median(scale.values))
        ),
    )
    if value <= limits["match"]:
        if declared is None or configured is None or _family(best).startswith(declared):
            return
        yield Hit(
            f"Recorded advantages are those of {_family(best)} ({value:.1%} off), and {declared} as configured is "
            f"{configured:.0%} off",
            "error",
            shown,
            cause=f"The advantages follow {_family(best)}, not the {declared} that the configuration declares.",
            ruled_out=("conventions of ddof and epsilon: all common ones were tried",),
        )
        return
    if value < limits["off"]:
        return
    if (misplaced := _misplaced(view, scale, limits)) is not None:
        yield misplaced
        return
    yield Hit(
        f"No known formula reproduces the recorded advantages from rewards and groups; the nearest, {_family(best)}, "
        f"is {value:.0%} off",
        "info" if declared is None else "error",
        shown,
        ruled_out=("conventions of ddof and epsilon: all common ones were tried",),
        unchecked=("the formula that is meant: config.adv_estimator",) if declared is None else (),
    )


def _misplaced(view: View, scale: Series, limits: Limits) -> Hit | None:
    """Advantages that a known formula gives with the other sign, or for other rows."""
    for name, text, cause in (
        (
            "advantage.negated_mean",
            "Recorded advantages have the opposite sign of what rewards and groups give",
            "The advantage has the opposite sign: the policy is trained towards what is rewarded least.",
        ),
        (
            "advantage.reordered_mean",
            "Recorded advantages are those that rewards and groups give, in another order",
            (
                "The advantages of a batch stand in other rows than their rewards: a shuffle, filter or balance step "
                "between reward and advantage moved one of the two."
            ),
        ),
    ):
        found = view.get(name)
        if found is None:
            continue
        _, here, there = np.intersect1d(found.steps, scale.steps, return_indices=True)
        usable = scale.values[there] > 1e-6
        ratio = found.values[here][usable] / scale.values[there][usable]
        enough = ratio.size >= limits["steps"] and int(found.counts[here][usable].sum()) >= limits["rows"]
        if not enough or float(np.mean(ratio <= limits["exact"])) < limits["share"]:
            continue
        size = float(np.median(scale.values))
        return Hit(
            f"{text} (off by {float(np.median(ratio)):.1g} of their size, at {np.mean(ratio <= limits['exact']):.0%} of "
            f"{ratio.size} steps)",
            "error",
            (evidence(found, 0, -1, value=float(np.median(found.values)), limit=limits["exact"] * size),),
            cause=cause,
            ruled_out=("another formula: as they stand, no known one reproduces them",),
            unchecked=("a reward of which less is better",) if name == "advantage.negated_mean" else (),
        )
    return None
