"""Advantages that are the rewards themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from rl_doctor.report.model import Hit, Severity
from rl_doctor.rules.reading import counted, evidence, lacking, span
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.trend import Floats
from rl_doctor.rules.view import View

_NAMES: Final = ("adv.max", "adv.min", "reward.max", "reward.min")
_BASELINED: Final = frozenset({"grpo", "dr_grpo", "rloo", "gae", "remax", "reinforce_plus_plus"})
_OFFERS_NONE: Final = frozenset({"verl"})
"""Trainers none of whose estimators leaves the reward as it is."""


@rule(
    "RLD412", "no-baseline",
    severity="error",
    optional=(*_NAMES, "reward.mean", "group.singleton_frac"),
    limits={"rows": 5, "share": 0.9, "precision": 1e-4, "centred": 0.05, "range": 1e-3},
    cause="Nothing is subtracted from the reward: groups of one sample (an id per response), or an estimator without baseline.",
    advice=(
        "Check that all samples of a prompt carry the same group id where the advantages are computed.",
        "Subtract the group's mean, a moving average or a value function, so that easy prompts do not pull the hardest.",
        "If REINFORCE without a baseline is meant, record adv_estimator = reinforce.",
    ),
    avoids=(
        "A GRPO step whose largest advantage happens to be 1: both ends have to agree, row after row.",
        "Rewards that are normalised to a mean of 0 before.",
        "Rows in which all rewards are equal.",
    ),
    source="Public issue threads: with one sample per group verl takes 0 for the mean and 1 for the standard deviation",
)  # fmt: skip
def no_baseline(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The largest and the smallest advantage are the largest and the smallest reward, row after row.

    Without a baseline the gradient does not compare responses to one prompt: with rewards of 0 and 1 nothing is ever
    discouraged, and easy prompts pull as hard as hard ones. Training may still move, noisily, and often collapses later.

    Rows count in which the rewards differ by more than `range`. It fires if both ends agree within `precision` of the range of
    the rewards at `share` of at least `rows` rows. Rewards whose mean lies within `centred` of their range around 0 in most
    rows are left out: normalised rewards are their own advantages. An error where the configuration names an estimator with
    a baseline or the trainer has no other; info for REINFORCE; otherwise a warning.
    """
    found = [view.get(name) for name in _NAMES]
    high, low, top, floor = found
    if high is None or low is None or top is None or floor is None:
        missing = next(name for name, series in zip(_NAMES, found, strict=True) if series is None)
        yield lacking(view, missing)
        return
    steps = high.steps
    for series in (low, top, floor):
        steps = np.intersect1d(steps, series.steps)
    at = [series.values[np.isin(series.steps, steps)] for series in (high, low, top, floor)]
    size = at[2] - at[3]
    differs = size > limits["range"] * np.maximum(np.abs(at[2]), np.abs(at[3]))
    if np.count_nonzero(differs) < limits["rows"]:
        yield Skip(
            "length",
            f"inconclusive: rewards differ at {counted(int(np.count_nonzero(differs)), 'step')}, and "
            f"{limits['rows']:.0f} are needed",
        )
        return
    mean = view.get("reward.mean")
    if mean is not None and _centred(mean.values[np.isin(mean.steps, steps[differs])], size[differs], limits["centred"]):
        yield Skip("data", "rewards have a mean of about 0 as they are")
        return
    off = np.maximum(np.abs(at[0] - at[2]), np.abs(at[1] - at[3]))[differs] / size[differs]
    share = float(np.mean(off <= limits["precision"]))
    if share < limits["share"]:
        return
    estimator, severity = view.config.adv_estimator, _severity(view)
    single = view.get("group.singleton_frac")
    alone = single is not None and float(np.median(single.values)) > 0.5
    by_design = f"{estimator} has no baseline by design. " if severity == "info" else ""
    first = int(np.searchsorted(high.steps, steps[np.argmax(differs)]))
    yield Hit(
        f"Largest and smallest advantage equal largest and smallest reward ({np.median(at[2]):.3g}, {np.median(at[3]):.3g}) at "
        f"{share:.0%} of {np.count_nonzero(differs)} steps, {span(high, first)}: no baseline is subtracted",
        severity,
        (
            evidence(high, first, -1, limit=float(np.median(at[2]))),
            evidence(low, min(first, len(low) - 1), -1, limit=float(np.median(at[3]))),
        ),
        cause=f"{by_design}Every reinforced response is so by its raw reward."
        if by_design
        else "Every sample is a group of its own, so that there is nothing to compare it with."
        if alone
        else None,
        ruled_out=("a coincidence: both ends agree in rows in which rewards differ",),
        unchecked=("what the baseline should be: config.adv_estimator",) if estimator is None else (),
    )


def _severity(view: View) -> Severity:
    """How bad it is to have no baseline: by design it is not."""
    estimator = view.config.adv_estimator
    if estimator == "reinforce":
        return "info"
    meant = estimator in _BASELINED or (estimator is None and view.info.trainer in _OFFERS_NONE)
    return "error" if meant else "warning"


def _centred(means: Floats, sizes: Floats, share: float) -> bool:
    """Whether the rewards of most rows have a mean of about 0, against their range."""
    return means.size == sizes.size and float(np.median(np.abs(means) / sizes)) <= share
