"""Numbers that are possible each by itself, but not together in one row: what one of them says the other cannot be."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import reduce
from typing import Any, Final

import numpy as np

from rl_doctor.analyzer.rounding import log_rounding
from rl_doctor.analyzer.series import Series
from rl_doctor.frozen import frozen
from rl_doctor.report.model import Hit, Severity
from rl_doctor.rules.loss_terms import ENTROPY, KL, told_by_terms
from rl_doctor.rules.reading import KL_REFERENCE, logged
from rl_doctor.rules.registry import Limits
from rl_doctor.rules.shares import impossible
from rl_doctor.rules.spans import among, at
from rl_doctor.rules.trend import Floats
from rl_doctor.rules.view import View

_COMPONENT: Final = "reward.component."
CLIPPED: Final = ("policy.clip_frac", "policy.outside_frac")
"""Shares of tokens outside the clip range: those whose advantage makes clipping bind, and all."""
_CLAMPED: Final = ("policy.ratio_clamped_mean", "policy.ratio_clamped_min", "policy.ratio_clamped_max")
_CONVEX: Final[Mapping[str, Callable[[Floats], Floats]]] = {
    "policy.kl_old_k2": lambda x: x**2 / 2,
    "policy.kl_old_k3": lambda x: np.expm1(x) - x,
    "policy.kl_old_abs": np.abs,
    "policy.ratio_mean": np.exp,
    "mismatch.k3": lambda x: np.expm1(x) - x,
    "mismatch.abs": np.abs,
}
"""Means of convex functions of a log-ratio x: none is below the function of the mean of x, which is minus k1."""
_SPREAD: Final = {
    "reward.std": ("reward.min", "reward.mean", "reward.max"),
    "reward.score_std": ("reward.score_min", "reward.score_mean", "reward.score_max"),
    "adv.std": ("adv.min", "adv.mean", "adv.max"),
}
READ: Final = (
    "policy.kl_old_k1", "mismatch.k1", *_CONVEX, *(f"{name}{side}" for name in CLIPPED for side in ("", "_low", "_high")),
    *_CLAMPED, "policy.ratio_min", "policy.ratio_max",
    *_SPREAD, *(name for names in _SPREAD.values() for name in names), "mismatch.is_weight_mean",
    "group.all_max_frac", "group.all_min_frac", "group.size_max", "pref.margin", "pref.chosen_reward", "pref.rejected_reward",
    "policy.loss_total", "policy.loss_pg", "policy.entropy", *KL_REFERENCE, _COMPONENT,
)  # fmt: skip
"""What ``contradictions`` looks at."""


@frozen(eq=False)
class _Rows:
    """Several series at the steps that all of them have: the first of them, and of each its values and what rounding hides."""

    first: Series
    values: tuple[Floats, ...]
    rounding: tuple[Floats, ...]


def contradictions(view: View, limits: Limits) -> Iterator[Hit]:
    """Each contradiction between metrics of the same rows."""
    yield from _jensen(view, limits)
    yield from _sides(view, limits)
    yield from _never_outside(view, limits)
    yield from _clamp(view, limits)
    yield from _cap(view, limits)
    yield from _advantage(view, limits)
    yield from _deviation(view, limits)
    yield from _equal_groups(view, limits)
    yield from _margin(view, limits)
    yield from _total_loss(view, limits)
    yield from _components(view, limits)


def _rows(view: View, *names: str) -> _Rows | None:
    """The series of these metrics; None where one is lacking or is a share above 1, or where they may differ by their making.

    Several are held against each other only if the trainer logged all of them: what is recomputed from tokens agrees with itself
    by construction, and may be of another mask, mean or estimator than what is logged.
    """
    known = [found for name in names if (found := view.get(name)) is not None and not _above_one(view, name)]
    sampled = 0 < len(view.estimated.intersection(names)) < len(names)
    if sampled or len(known) < len(names) or (len(known) > 1 and not all(map(logged, known))):
        return None
    steps = reduce(np.intersect1d, [one.steps for one in known])
    kept = [found for one in known if (found := at(one, steps)) is not None]
    if len(kept) < len(known):
        return None
    hidden = [log_rounding(one.values) for one in kept]
    # Nothing but zeros tells no digits: such a series is taken for as coarse as the coarsest beside it.
    coarsest = np.max(hidden, axis=0)
    hidden = [own if one.values.any() else coarsest for own, one in zip(hidden, kept, strict=True)]
    return _Rows(kept[0], tuple(one.values for one in kept), tuple(hidden))


def _above_one(view: View, name: str) -> bool:
    """Whether it is a share that was logged above 1, which no rule can read with others."""
    found = view.raw(name)
    return found is not None and impossible(found.measured())


def _hit(
    rows: _Rows, short: Floats, bound: Floats, words: str, cause: str, limits: Limits, *, share: float = 0.0,
    severity: Severity = "error",
) -> Iterator[Hit]:  # fmt: skip
    """A contradiction, if it is there in enough rows.

    Args:
        rows: the series; the first is what is told.
        short: how far the value of each row is beyond what is possible, rounding included ``[n]``; above 0 it cannot be.
        bound: what it is held against ``[n]``.
        words: what the value is said to be, with a place for the bound.
        cause: why that may be so.
        limits: those of the rule.
        share: of the rows that must show it.
        severity: of the finding.
    """
    wrong = np.isfinite(short) & (short > 0.0)
    found = among(rows.first, wrong, float(bound[int(np.nanargmax(short))])) if wrong.any() else None
    number = int(np.count_nonzero(wrong))
    if found is None or number < min(limits["contradicting"], len(wrong)) or number < share * len(wrong):
        return
    worst = int(np.nanargmax(short))
    value = float(rows.values[0][worst])
    told = words.format(f"{bound[worst]:.4g}")
    yield Hit(
        f"{rows.first.metric} is {value:.4g}, {told}, {found.when} ({number} of {len(wrong)} rows)",
        severity,
        (found.evidence(value=value),),
        cause=cause,
        ruled_out=("rounding: the log has more digits",),
    )


def _jensen(view: View, limits: Limits) -> Iterator[Hit]:
    """The mean of a convex function is not below the function of the mean."""
    for name, function in _CONVEX.items():
        signed = "mismatch.k1" if name.startswith("mismatch.") else "policy.kl_old_k1"
        rows = _rows(view, name, signed)
        if rows is None:
            continue
        (value, mean), (own, other) = rows.values, rows.rounding
        at_zero = float(function(np.zeros(1))[0])
        least = function(-mean)
        # Where the two are averaged in other stages they differ by less than this.
        allowed = own + np.abs(function(-mean - other) - function(-mean + other)) + limits["slack"] * np.abs(least - at_zero)
        words = f"while {signed} is {mean[int(np.argmax(least - value - allowed))]:.4g}: then it is at least {{}}"
        cause = "The two are not of the same tokens, or one of them has another sign or unit than its name says."
        yield from _hit(rows, least - value - allowed - limits["kl"], least, words, cause, limits, share=limits["half"])


def _sides(view: View, limits: Limits) -> Iterator[Hit]:
    """Clipped below and clipped above are all that is clipped."""
    for name in CLIPPED:
        rows = _rows(view, name, f"{name}_low", f"{name}_high")
        if rows is not None:
            both = rows.values[1] + rows.values[2]
            allowed = sum(rows.rounding) + limits["rounding"] + limits["clearly"] * both
            cause = "The shares are not of the same tokens, or one of them counts what the other leaves out."
            words = f"while {name}_low and {name}_high add up to {{}}"
            yield from _hit(rows, np.abs(rows.values[0] - both) - allowed, both, words, cause, limits)


def _never_outside(view: View, limits: Limits) -> Iterator[Hit]:
    """No token is clipped whose ratio is inside the range."""
    low, high = view.config.clip_low, view.config.clip_high
    if low is None or high is None or by_sequence(view):
        return
    for name in CLIPPED:
        rows = _rows(view, name, "policy.ratio_min", "policy.ratio_max")
        if rows is None:
            continue
        share, smallest, largest = rows.values
        inside = (smallest > 1.0 - low + rows.rounding[1]) & (largest < 1.0 + high - rows.rounding[2])
        short = np.where(inside, share - rows.rounding[0] - limits["rounding"], -1.0)
        words = "although all ratios are inside the clip range: then it is {}"
        cause = "The share counts other tokens than the ratios do, or is not what its name says."
        yield from _hit(rows, short, np.zeros_like(share), words, cause, limits)


def by_sequence(view: View) -> bool:
    """Whether a sequence has one ratio, whose clip range is far narrower."""
    algorithm, native = (view.info.algorithm or "").lower(), view.config.native or {}
    mode = native.get("loss_mode") or setting(native, "actor_rollout_ref.actor.policy_loss.loss_mode")
    return "gspo" in algorithm or mode in {"gspo", "geo_mean"} or native.get("importance_sampling_level") == "sequence"


def _clamp(view: View, limits: Limits) -> Iterator[Hit]:
    """A clamped ratio is inside the clip range."""
    low, high = view.config.clip_low, view.config.clip_high
    if low is None or high is None or (view.config.native or {}).get("disable_ppo_ratio"):
        return
    for name in _CLAMPED:
        rows = _rows(view, name)
        if rows is None:
            continue
        value = rows.values[0]
        bound = np.where(value < 1.0, 1.0 - low, 1.0 + high)
        beyond = np.where(value < 1.0, bound - value, value - bound) - rows.rounding[0] - limits["rounding"]
        cause = "The ratio is logged before it is clamped, or is clamped to another range than the configuration says."
        yield from _hit(rows, beyond, bound, "beyond the clip range, which ends at {}", cause, limits)


def _cap(view: View, limits: Limits) -> Iterator[Hit]:
    """A truncated importance weight is not above what it is truncated at."""
    known = view.trainer
    for name, settings in ({} if known is None else known.caps).items():
        caps = [cap for path in settings if (cap := _number(setting(view.config.native, path))) is not None]
        rows = _rows(view, name)
        if caps and rows is not None:
            bound = np.full(len(rows.first), max(caps))
            cause = "The weight is logged before it is truncated, or another setting is in force than the configuration says."
            beyond = rows.values[0] - bound - rows.rounding[0] - limits["rounding"] * bound
            yield from _hit(rows, beyond, bound, "although each weight is truncated at {}", cause, limits)


def setting(native: Mapping[str, Any] | None, path: str) -> Any:
    """A setting of the native configuration, by names with dots between them; None where it is not there."""
    value: Any = native
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _number(value: Any) -> float | None:
    """A setting as a number; the upper one of a range such as ``0.5_2.0``."""
    try:
        return None if value is None or isinstance(value, bool) else float(str(value).rpartition("_")[2])
    except ValueError:
        return None


def _advantage(view: View, limits: Limits) -> Iterator[Hit]:
    """A deviation from the group's mean is bounded in units of the group's standard deviation."""
    config, known = view.config, view.trainer
    size = max(config.group_size or 0, *(int(one.values.max()) for one in (view.get("group.size_max"),) if one is not None), 0)
    others = (config.native or {}).get("multi_objective_aggregation") == "normalize_then_sum"
    if config.adv_norm != "group" or config.adv_estimator not in {None, "grpo"} or size < 2 or others:
        return
    if known is not None and known.leaves_one_out:
        return
    most = math.sqrt(size - 1) if config.adv_ddof != 1 else (size - 1) / math.sqrt(size)
    for name in ("adv.max", "adv.min"):
        rows = _rows(view, name)
        if rows is None:
            continue
        bound = np.full(len(rows.first), most if name == "adv.max" else -most)
        beyond = np.abs(rows.values[0]) - most - rows.rounding[0] - limits["kl"] * most
        words = f"beyond {{}}, the largest that a group of {size} gives over its standard deviation"
        cause = "The advantage is scaled or whitened once more, the deviation is not the group's own, or groups are larger."
        yield from _hit(rows, beyond, bound, words, cause, limits)


def _deviation(view: View, limits: Limits) -> Iterator[Hit]:
    """A variance is at most (largest - mean) (mean - smallest), twice that with ddof 1 of two values."""
    for name, of in _SPREAD.items():
        rows = _rows(view, name, *of)
        if rows is None:
            continue
        std, low, mean, high = rows.values
        own, *rest = rows.rounding
        slack = np.asarray(sum(rest))
        within = (mean >= low - slack) & (mean <= high + slack)  # else that is told
        most = np.sqrt(2.0 * np.maximum(high - mean + slack, 0.0) * np.maximum(mean - low + slack, 0.0))
        cause = "The deviation and the ends are not over the same values."
        words = f"while {of[0]}, {of[1]} and {of[2]} allow {{}} at most"
        short = np.where(within, std - most * (1 + limits["rounding"]) - own, -1.0)
        yield from _hit(rows, short, most, words, cause, limits, severity="warning")


def _equal_groups(view: View, limits: Limits) -> Iterator[Hit]:
    """A group is not all right and all wrong at once."""
    rows = _rows(view, "group.all_max_frac", "group.all_min_frac")
    if rows is not None:
        left = 1.0 - rows.values[1]
        words = "while group.all_min_frac leaves {}"
        cause = "The two are not shares of the same groups."
        yield from _hit(rows, rows.values[0] - left - sum(rows.rounding) - limits["rounding"], left, words, cause, limits)


def _margin(view: View, limits: Limits) -> Iterator[Hit]:
    """The margin is the reward of the chosen minus that of the rejected."""
    rows = _rows(view, "pref.margin", "pref.chosen_reward", "pref.rejected_reward")
    if rows is not None:
        margin, chosen, rejected = rows.values
        size = np.abs(chosen) + np.abs(rejected)
        short = np.abs(margin - (chosen - rejected)) - sum(rows.rounding) - limits["clearly"] * size
        words = "although chosen - rejected is {}"
        cause = "The three are not of the same pairs, or the sides are swapped in one of them."
        yield from _hit(rows, short, chosen - rejected, words, cause, limits)


def _total_loss(view: View, limits: Limits) -> Iterator[Hit]:
    """The loss is the policy loss minus the entropy bonus plus the KL term, where the trainer defines it so."""
    config, known = view.config, view.trainer
    if (known is not None and not known.loss_adds_up) or config.loss_agg not in {None, "token-mean"}:
        return
    penalty = next((name for name in KL_REFERENCE if view.get(name) is not None), KL_REFERENCE[-1])
    terms = (("policy.entropy", config.entropy_coef, -1.0), (penalty, 0.0 if config.kl_in_reward else config.kl_coef, 1.0))
    used = [(name, sign * factor) for name, factor, sign in terms if factor]
    rows = _rows(view, "policy.loss_total", "policy.loss_pg", *(name for name, _ in used))
    if rows is None or not used or any(factor is None for _, factor, _ in terms):
        return
    added = [factor * values for (_, factor), values in zip(used, rows.values[2:], strict=True)]
    whole = np.asarray(rows.values[1] + sum(added))
    hidden = sum(abs(factor) * part for (_, factor), part in zip(used, rows.rounding[2:], strict=True))
    size = limits["half"] * sum(np.abs(part) for part in added) + limits["clearly"] * np.abs(rows.values[1])
    short = np.abs(rows.values[0] - whole) - size - rows.rounding[0] - rows.rounding[1] - hidden
    cause = "A term has the wrong sign or is left out of the loss, or a coefficient is another than the configuration says."
    words = "although policy loss - entropy bonus + KL term is {}"
    named = {ENTROPY if name == "policy.entropy" else KL: (factor, values)
             for (name, factor), values in zip(used, rows.values[2:], strict=True)}  # fmt: skip
    told = told_by_terms(rows.values[0], rows.values[1], named, rows.rounding[0] + rows.rounding[1] + hidden)
    if told is None and known is None:
        return  # another loss than this, as far as is known
    for one in _hit(rows, short, whole, words, cause, limits, share=limits["half"]):
        yield one if told is None else replace(one, suspect=told[0], cause=told[1])


def _components(view: View, limits: Limits) -> Iterator[Hit]:
    """The reward is the weighted sum of its components, where the weights of all are known."""
    weights = view.config.reward_weights or {}
    stems = [name.removeprefix(_COMPONENT) for name in view.named(_COMPONENT)]
    found = [stem.removesuffix(".mean") for stem in stems if stem.endswith(".mean")]
    if not found or {*found} != {name for name, weight in weights.items() if weight or name in found}:
        return
    names = [f"{_COMPONENT}{name}.mean" for name in found]
    told: list[tuple[Hit, ...]] = []
    for whole in ("reward.mean", "reward.score_mean"):
        rows = _rows(view, whole, *names)
        if rows is not None:
            parts = [weights[name] * values for name, values in zip(found, rows.values[1:], strict=True)]
            hidden = sum(abs(weights[name]) * part for name, part in zip(found, rows.rounding[1:], strict=True))
            total = np.asarray(sum(parts))
            allowed = rows.rounding[0] + hidden + limits["off"] * sum(np.abs(part) for part in parts)
            short = np.abs(rows.values[0] - total) - allowed
            words = "although its components with their weights add up to {}"
            cause = "The reward is shaped after its components are added (by length, by a KL), has a part that is not logged, or "
            cause += "the weights are not those that the configuration says."
            told.append(tuple(_hit(rows, short, total, words, cause, limits, share=limits["half"], severity="warning")))
    if told and all(told):
        yield from told[0]
