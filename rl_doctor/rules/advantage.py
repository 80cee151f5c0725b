"""Recorded advantages against those that rewards and groups give."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Evidence, Hit
from rl_doctor.rules.advantage_rows import in_some_rows
from rl_doctor.rules.reading import evidence, lacking
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.spans import Breach, at
from rl_doctor.rules.stretch import stretch
from rl_doctor.rules.trend import Floats
from rl_doctor.rules.view import View

GROUPED = frozenset({"grpo", "dr_grpo", "rloo"})
_FIT = "advantage.fit_"
_NOTHING = 1e-6
"""Mean absolute advantage below which a step has none."""
_CONVENTION = 0.02
"""Difference from the configured formula, over the size of the advantages, that another convention of its deviation makes."""
_FAMILIES = {
    "grpo_group": "grpo",
    "grpo_batch": "grpo with the standard deviation of the batch",
    "dr_grpo": "dr_grpo",
    "rloo": "rloo",
}


@rule(
    "RLD410", "advantage-mismatch",
    severity="error",
    optional=("advantage.", "adv.abs_mean", "adv.varying_frac", "group.size_min", "group.size_max"),
    limits={
        "match": 0.01, "off": 0.05, "tokens": 500, "exact": 1e-3, "share": 0.9, "steps": 3, "rows": 48, "least": 3, "few": 200,
        "some": 12, "part": 0.9, "alike": 0.95,
    },
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

    Where the formula gives most rows and not all, and `alike` of at least `some` others (at most `part` of all) have the same in
    its place, that is told, also where they are too few for `off`: the opposite sign, the advantage of another response of the
    group, a multiple; an advantage of 0 only above `off`, as filters set it on purpose. Rows that have anything else are told
    above `off`, where no group of these steps lacks rows.

    Where the advantages follow the configured formula (or, if none is named, the same one at `share` of the steps) until some
    step and are above `off` from it from then on, over at least `least` steps with `few` tokens, those steps are judged for
    themselves.
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
    if (changed := _since(view, fits, scale, limits)) is not None:
        family, found = changed
        steps = found.series.steps[found.marked]
        inside = {name: part for name, series in fits.items() if (part := at(series, steps)) is not None}
        if (kept := at(scale, steps)) is not None:
            yield from _judge_fit(view, inside, kept, limits, family, f" {found.when}")
        return
    yield from _judge_fit(view, fits, scale, limits, _asked(view))


def _relative(fit: Series, scale: Series) -> float | None:
    """Median over steps of the mean difference over the mean absolute advantage."""
    shares = _shares(fit, scale)
    known = shares[np.isfinite(shares)]
    return float(np.median(known)) if known.size else None


def _shares(fit: Series, scale: Series) -> Floats:
    """Mean difference over mean absolute advantage at each step of ``scale``; NaN where either is unknown or there is none."""
    found = np.full(len(scale), np.nan)
    _, here, there = np.intersect1d(fit.steps, scale.steps, return_indices=True)
    sizes = scale.values[there]
    found[there] = np.where(sizes > _NOTHING, fit.values[here] / np.maximum(sizes, _NOTHING), np.nan)
    return found


def _family(name: str) -> str:
    return next((words for stem, words in _FAMILIES.items() if name.startswith(stem)), name)


def _asked(view: View) -> str | None:
    """The family that the configuration names, or None."""
    declared, norm = view.config.adv_estimator, view.config.adv_norm
    if declared == "grpo" and norm in ("batch", "none"):
        return _FAMILIES["grpo_batch"] if norm == "batch" else "dr_grpo"
    return declared


def _since(view: View, fits: dict[str, Series], scale: Series, limits: Limits) -> tuple[str | None, Breach] | None:
    """Steps from which on the formula that gave the advantages before does not; and that formula's family."""
    shares = {name: _shares(found, scale) for name, found in fits.items()}
    if "configured" in shares and np.isfinite(shares["configured"]).any():
        usual, family = shares["configured"], _asked(view)
    else:
        matching = {name: float(np.mean(found <= limits["match"])) for name, found in shares.items()}
        best = max(matching, key=matching.__getitem__)
        usual, family = shares[best], _family(best)
    known = np.isfinite(usual)
    if not known.any() or (told := at(scale, scale.steps[known])) is None:
        return None
    usual = usual[known]
    found = stretch(told, usual > limits["off"], limits["off"], steps=int(limits["least"]), items=int(limits["few"]))
    if found is None or found.marked.all():
        return None
    before = usual[told.steps < found.first]
    if before.size < limits["least"] or float(np.mean(before <= limits["match"])) < limits["share"]:
        return None
    return family, found


def _judge_fit(
    view: View, fits: dict[str, Series], scale: Series, limits: Limits, asked: str | None, since: str = ""
) -> Iterator[Hit | Skip]:
    """Findings about the steps of ``scale``; ``asked`` is the family that should give the advantages, where that is known."""
    residuals = {name: value for name, found in fits.items() if (value := _relative(found, scale)) is not None}
    configured = residuals.pop("configured", None)
    if not residuals:
        yield Skip("data", "every recorded advantage is 0")
        return
    best = min(residuals, key=residuals.__getitem__)
    value, size = residuals[best], float(np.median(scale.values))
    small = value < limits["off"]
    some = in_some_rows(view, scale.steps, asked or _family(best), limits, asked=asked is not None, small=small, since=since)
    if configured is not None and configured <= limits["match"]:
        yield from (some,) if some is not None else ()
        return
    shown = (evidence(fits[best], 0, -1, value=value * size, limit=limits["match"] * size),)
    if value <= limits["match"] and (another := tuple(_as_another(asked, _family(best), best, value, configured, shown, since))):
        yield from another
        return
    if some is not None:
        yield some
        return
    if small:
        return
    if (misplaced := _misplaced(view, scale, limits, since)) is not None:
        yield misplaced
        return
    yield Hit(
        f"No known formula reproduces the recorded advantages from rewards and groups{since}; the nearest, {_family(best)}, "
        f"is {value:.0%} off",
        "info" if asked is None else "error",
        shown,
        ruled_out=("conventions of ddof and epsilon: all common ones were tried",),
        unchecked=("the formula that is meant: config.adv_estimator",) if asked is None else (),
    )


def _as_another(
    asked: str | None, family: str, best: str, value: float, configured: float | None, shown: tuple[Evidence, ...], since: str
) -> Iterator[Hit]:
    """What is told where a known formula gives the advantages, and it is not as configured."""
    if asked is None or (configured is None and not since):
        return
    if family == asked:
        if configured is not None and configured > _CONVENTION:
            told = best.removeprefix("grpo_").replace("_", " ")
            yield Hit(
                f"Recorded advantages are those of {family} with {told} ({value:.1%} off); as configured, {configured:.1%} off",
                "info",
                shown,
                cause="The standard deviation follows another convention (ddof, epsilon) than is configured: a constant factor.",
                suspect="advantage-convention-differs",
            )
        return
    scales = {asked, family} == {_FAMILIES["grpo_group"], _FAMILIES["grpo_batch"]}
    off = "" if configured is None else f", and {asked} as configured is {configured:.0%} off"
    yield Hit(
        f"Recorded advantages are those of {family} ({value:.1%} off){since}{off}",
        "error",
        shown,
        cause=f"The advantages follow {family}, not the {asked} that the configuration declares."
        if configured is not None
        else f"The advantages follow {family}, and followed {asked} before.",
        ruled_out=("conventions of ddof and epsilon: all common ones were tried",),
        suspect="standard-deviation-swapped" if scales else "advantage-of-another-estimator",
    )


def _misplaced(view: View, scale: Series, limits: Limits, since: str) -> Hit | None:
    """Advantages that a known formula gives with the other sign, or for other rows."""
    for name, suspect, text, cause in (
        (
            "advantage.negated_mean",
            "advantage-sign-turned",
            "Recorded advantages have the opposite sign of what rewards and groups give",
            "The advantage has the opposite sign: the policy is trained towards what is rewarded least.",
        ),
        (
            "advantage.reordered_mean",
            "advantages-of-other-rows",
            "Recorded advantages are those that rewards and groups give, in another order",
            (
                "The advantages of a batch stand in other rows than their rewards: a shuffle, filter or balance step "
                "between reward and advantage moved one of the two."
            ),
        ),
    ):
        found = at(view.get(name), scale.steps)
        if found is None:
            continue
        _, here, there = np.intersect1d(found.steps, scale.steps, return_indices=True)
        usable = scale.values[there] > _NOTHING
        ratio = found.values[here][usable] / scale.values[there][usable]
        enough = ratio.size >= limits["steps"] and int(found.counts[here][usable].sum()) >= limits["rows"]
        if not enough or float(np.mean(ratio <= limits["exact"])) < limits["share"]:
            continue
        size = float(np.median(scale.values))
        return Hit(
            f"{text}{since} (off by {float(np.median(ratio)):.1g} of their size, at {np.mean(ratio <= limits['exact']):.0%} of "
            f"{ratio.size} steps)",
            "error",
            (evidence(found, 0, -1, value=float(np.median(found.values)), limit=limits["exact"] * size),),
            cause=cause,
            ruled_out=("another formula: as they stand, no known one reproduces them",),
            unchecked=("a reward of which less is better",) if name == "advantage.negated_mean" else (),
            suspect=suspect,
        )
    return None
