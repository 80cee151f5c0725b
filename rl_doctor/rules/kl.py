"""KL divergence to the sampling policy and to the reference: spikes, runaway growth, absence, direction, start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Hit, Severity
from rl_doctor.rules import trend
from rl_doctor.rules.reading import (
    KL_OLD,
    KL_REFERENCE,
    PROGRESS,
    Progress,
    evidence,
    first_of,
    lacking,
    progress,
    span,
    times,
    too_short,
)
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.view import View

_OPTIONAL = (*KL_REFERENCE, *KL_OLD)
_FACTOR: Final = 5.0
_SIGMAS: Final = 6.0
_NEGLIGIBLE: Final = 1e-3
"""Nat per token; numeric noise of logprobs produces as much."""
_SHORTEST_FOR_SPIKES: Final = 12
_SHORTEST_STAY: Final = 3
"""Points that an excursion must have lasted to be a level that stays."""


def _magnitude(series: Series | None) -> Series | None:
    """A KL series without sign: k1 is a difference that may be negative by chance."""
    if series is None:
        return None
    return Series(series.metric, series.unit, series.steps, np.abs(series.values), series.counts)


def _measured(view: View) -> list[tuple[str, Series]]:
    """(words for it, series) of the KL to the reference and of the KL to the sampling policy, where measured."""
    found = (("reference", first_of(view, *KL_REFERENCE)), ("sampling policy", first_of(view, *KL_OLD)))
    return [(words, _moved(part)) for words, series in found if (part := _magnitude(series)) is not None]


def _moved(series: Series) -> Series:
    """The series without exact zeros, which are passes before any update; as it is where little else is left."""
    keep = series.values > 0.0
    if np.count_nonzero(keep) < _SHORTEST_FOR_SPIKES:
        return series
    return Series(series.metric, series.unit, series.steps[keep], series.values[keep], series.counts[keep])


def _excursions(series: Series) -> list[trend.Excursion]:
    """Spikes of a series without sign; values below what noise produces count as that."""
    values = np.maximum(series.values, _NEGLIGIBLE)
    return [item for item in trend.excursions(values, _FACTOR, _SIGMAS) if item.value > _NEGLIGIBLE and item.first > 0]


@rule(
    "RLD203", "kl-spike",
    severity="error",
    optional=(*_OPTIONAL, "optim.grad_norm"),
    limits={
        "factor": _FACTOR, "sigmas": _SIGMAS, "large": 20.0, "recent": 0.1, "lasting": 0.1, "negligible": _NEGLIGIBLE,
    },
    cause="A single update moved the policy far: an outlier batch, a learning rate that is too high for it, or weights that were "
    "reloaded wrongly.",
    advice=(
        "Look at the batch of the first step of the spike: extreme advantages, very long or repeated responses.",
        "Compare the gradient norm and the learning rate at that step; lower the learning rate or max_grad_norm if both jumped.",
        "If the run was resumed there, check that optimizer state and weights were restored.",
    ),
    avoids=("A recovered spike is info.", "Noise with heavy tails, steady growth, and values rounded to 0.000 and 0.001."),
    source="Public GRPO logs in which single steps reach 15 times their neighbours and recover",
)  # fmt: skip
def kl_spike(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The KL divergence stands a multiple above its own level for a few steps.

    A spike says that one update moved the policy much further than its neighbours did. Most recover, and then it is worth
    knowing, no more. One that is large and recent, or that has not come back, needs a look before the run goes on.

    The level is a running median of the run itself; a point is part of a spike if it exceeds the level `factor` times and by
    `sigmas` robust standard deviations of the logarithm. Recovered is info; `large` times within the last `recent` share of
    the run, or not recovered, is a warning; longer than `lasting` of the run and not recovered is an error. Values below
    `negligible` nat per token are within what numeric noise of logprobs produces. Passes with a KL of exactly 0, which come
    before any update, are left out.
    """
    measured = _measured(view)
    if not measured:
        yield lacking(view, KL_REFERENCE[0], *KL_OLD[:1])
        return
    judged = False
    for words, series in measured:
        if too_short(series, _SHORTEST_FOR_SPIKES):
            continue
        judged = True
        if found := _excursions(series):
            yield _spike(view, words, series, found, limits)
    if not judged:
        yield too_short(measured[0][1], _SHORTEST_FOR_SPIKES) or Skip("length", "inconclusive")


def _spike(view: View, words: str, series: Series, found: list[trend.Excursion], limits: Limits) -> Hit:
    n = len(series)
    worst = max(found, key=lambda item: (not item.recovered and item.n > 1, item.factor))
    recent = worst.last >= n - max(round(limits["recent"] * n), 3)
    severity: Severity
    if not worst.recovered and worst.n > limits["lasting"] * n:
        severity = "error"
    elif (not worst.recovered and worst.n >= _SHORTEST_STAY) or (worst.factor >= limits["large"] and recent):
        severity = "warning"
    else:
        severity = "info"
    state = "and recovered" if worst.recovered else "and has not recovered"
    more = f" (the largest of {len(found)})" if len(found) > 1 else ""
    ruled_out, unchecked = _spike_company(view, series, worst)
    usual = f"{times(worst.factor)} its level of {worst.level:.3g}"
    if worst.level <= limits["negligible"]:
        usual = f"where its median is {np.median(series.values):.2g}"
    return Hit(
        f"KL to the {words} reached {worst.value:.3g}, {usual}, at "
        f"{span(series, worst.first, worst.last)} {state}{more}",
        severity,
        tuple(
            evidence(series, item.first, item.last, value=item.value, baseline=item.level, limit=limits["factor"] * item.level)
            for item in sorted(found, key=lambda item: -item.factor)[:3]
        ),
        ruled_out=ruled_out,
        unchecked=unchecked,
    )


def _spike_company(view: View, series: Series, worst: trend.Excursion) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Whether the gradient norm jumped at the same steps."""
    norm = view.get("optim.grad_norm")
    if norm is None:
        return (), ("an outlier gradient: grad_norm",)
    first, last = series.steps[max(worst.first - 1, 0)], series.steps[worst.last]
    inside = norm.values[(norm.steps >= first) & (norm.steps <= last)]
    usual = float(np.median(norm.values))
    if inside.size and inside.max() < 2.0 * usual:
        return (f"outlier gradient: grad_norm stays below twice its median ({inside.max():.3g} of {usual:.3g})",), ()
    return (), ()


@rule(
    "RLD204", "kl-runaway",
    severity="error",
    optional=(*_OPTIONAL, "reward.mean", "reward.max", "reward.min", "val.mean_at_n", "policy.entropy"),
    limits={
        "growth": 8.0, "severe": 20.0, "z": 6.0, "negligible": _NEGLIGIBLE, "speed": 4.0, "large": 0.2, "destroyed": 10.0,
        "jump": 3.0, "material": 0.02,
    },
    cause="The policy drifts away without bound: the learning rate is too high, or the KL term does not hold it (coefficient too "
    "small, wrong sign, or no gradient through it).",
    advice=(
        "Lower the learning rate or raise kl_coef, and go back to a checkpoint from before the onset.",
        "Check the sign of the KL term in the loss, and that it carries a gradient: doubling kl_coef must change the KL.",
        "Read a few responses from after the onset for repetition or garbage.",
    ),
    avoids=("KL that settles at a new level.", "Growth from zero at the start, which slows down.", "Spikes that recover."),
    source="Public issue threads on KL that grows without bound; arXiv:1909.08593, section 2.2",
)  # fmt: skip
def kl_runaway(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The KL divergence grows by a multiple late in the run, faster than it did before, or jumps and stays there.

    KL to the reference grows from zero in every run that learns, and then slows down or settles. Growth that speeds up means
    that nothing holds the policy.

    The end of the run is compared with its middle (40% to 55%) and the middle with the early window. It fires if the end is
    `growth` times the middle by `z` standard errors, and growth speeds up: the logarithm grew faster in the second half than
    in the first or, where the KL starts near 0 and ends at `large` nat per token or more, the KL itself grew `speed` times
    faster. It fires as well if the end is `destroyed` nat and `growth` times the early window, however it got there, and at
    a sudden lasting jump by `jump` times and `material` nat. The last points must still be there. An error if it is `severe`
    times or the reward falls, and from `destroyed` nat on; else a warning, as while the reward rises. Levels below
    `negligible` nat per token are left alone, and a jump that kl-spike reports as not recovered is left to it.
    """
    measured = _measured(view)
    if not measured:
        yield lacking(view, KL_REFERENCE[0], *KL_OLD[:1])
        return
    short = [skip for _, series in measured if (skip := too_short(series))]
    for words, series in measured:
        if not too_short(series):
            hit = _runaway(view, words, series, limits)
            if hit is not None:
                yield hit
    if len(short) == len(measured):
        yield short[0]


def _runaway(view: View, words: str, series: Series, limits: Limits) -> Hit | None:
    found = _grown(series.values, limits) or _jumped(series, limits)
    if found is None:
        return None
    how, begin, before, level = found
    if level < limits["negligible"] or float(np.median(series.values[-3:])) < level / limits["growth"]:
        return None
    reward = progress(view, int(series.steps[begin]))
    severe = reward.course == "falling" or (level / before >= limits["severe"] and not reward.good)
    start = int(series.steps[begin])
    multiple, levels = times(level / before), f"from {before:.3g} to {level:.3g} nat per token"
    ruled_out: tuple[str, ...] = ("a spike: the last points are still there",)
    if how == "jump":
        told = f"rose at once {multiple}, {levels}, at step {start} and stays there"
    elif how == "faster":
        told = f"grew {multiple}, {levels}, since step {start}, and faster than before"
        ruled_out = ("growth from zero that slows down: the second half of the run grew faster than the first", *ruled_out)
    else:
        told = f"grew {levels}, since step {start}"
    return Hit(
        f"KL to the {words} {told}; {reward.words()}",
        "error" if severe or level >= limits["destroyed"] else "warning",
        (evidence(series, begin, -1, value=level, baseline=before, limit=limits["jump" if how == "jump" else "growth"] * before),),
        cause="The policy moved far at one step and stayed there: an outlier update, weights that were reloaded wrongly, or a "
        "reference that was replaced."
        if how == "jump"
        else None,
        ruled_out=ruled_out,
        unchecked=_unknown_reward(reward),
    )


def _grown(values: trend.Floats, limits: Limits) -> tuple[str, int, float, float] | None:
    """How it grew, the point at which that began, the level before and the level at the end; None if it did not run away."""
    logs = np.log(np.maximum(values, limits["negligible"] / limits["growth"]))
    n = values.size
    middle, first, last = trend.window(logs, round(0.4 * n), round(0.55 * n)), trend.early(logs), trend.late(logs, 0.1)
    start, half, end = (float(np.exp(part.center)) for part in (first, middle, last))
    sigma, rho = trend.noise(logs)
    error = sigma * (min(2 * trend.inflation(rho) / last.n, 1.0) + min(2 * trend.inflation(rho) / middle.n, 1.0)) ** 0.5
    growth = last.center - middle.center
    if growth >= np.log(limits["growth"]) and growth > limits["z"] * error:
        from_zero = end >= limits["large"] and end - half >= limits["speed"] * (half - start)
        if growth > middle.center - first.center or from_zero:
            return "faster", trend.onset(logs, middle, rising=True, share=0.2), half, end
    if end >= limits["destroyed"] and end >= limits["growth"] * start:
        return "far", trend.onset(logs, first, rising=True, share=0.2), start, end
    return None


def _jumped(series: Series, limits: Limits) -> tuple[str, int, float, float] | None:
    """As ``_grown``, for a sudden and lasting jump, on the scale of the logarithm or of the KL itself."""
    logs = np.log(np.maximum(series.values, limits["negligible"] / limits["growth"]))
    for shift, before, after in (
        *((found, float(np.exp(found.before)), float(np.exp(found.after))) for found in (trend.jump(logs),) if found),
        *((found, found.before, found.after) for found in (trend.jump(series.values),) if found),
    ):
        level = float(np.median(series.values[trend.late(series.values, 0.1).first :]))
        if shift.recovered or min(after, level) < limits["jump"] * before or after - before < limits["material"] or before <= 0.0:
            continue
        ongoing = [item for item in _excursions(series) if not item.recovered and item.n >= _SHORTEST_STAY]
        if any(abs(item.first - shift.index) <= _SHORTEST_STAY for item in ongoing):
            return None
        return "jump", shift.index, before, after
    return None


def _unknown_reward(reward: Progress) -> tuple[str, ...]:
    return ("whether the reward falls at the same time: reward",) if reward.series is None else ()


@rule(
    "RLD205", "kl-flatline",
    severity="error",
    optional=(*KL_REFERENCE, "optim.learning_rate", "optim.grad_norm", "policy.kl_old_k3"),
    limits={"steps": 10, "zero": 1e-9, "fall": 1e-4, "share": 0.03, "tiny_rate": 1e-8},
    cause="The reference logprobs are those of the policy itself (same object, same adapter, or detached copies), so "
    "the KL term does "
    "nothing.",
    advice=(
        "Compute the reference logprobs of one batch with frozen initial weights and compare with the recorded ref_logprob.",
        "With adapters, check that the reference pass disables the policy's adapter.",
        "If the KL became 0 in mid-run, look for a reference that is synchronised with the policy, or a coefficient schedule.",
    ),
    avoids=(
        "kl_coef = 0 or no reference.",
        "The first steps, and learning rates so small that nothing moves.",
        "A reference that is reset at times: the KL grows again.",
    ),
    source="Failure reproduced by setting the reference to the policy; no peer tool reports it",
)  # fmt: skip
def kl_flatline(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The KL to the reference is zero although the policy is trained and a KL term is on.

    A policy that takes steps leaves its reference; a KL that stays exactly 0, or falls to 0 in mid-run, is not a
    well-behaved policy but a reference that follows it. The KL term then holds nothing.

    It fires if the largest value of the run is at most `zero` nat per token over at least `steps` steps, kl_coef is positive
    and neither the learning rate (below `tiny_rate`) nor the gradient norm says that nothing moves; or if the run ends with
    at least `share` of its steps below `fall` times its earlier median.
    """
    series = _magnitude(first_of(view, *KL_REFERENCE))
    if series is None:
        yield lacking(view, KL_REFERENCE[0])
        return
    coefficient = view.config.kl_coef
    if coefficient == 0:
        yield Skip("config", "kl_coef is 0: a KL of 0 is harmless")
        return
    if skip := too_short(series, int(limits["steps"])):
        yield skip
        return
    if series.values.max() <= limits["zero"]:
        yield _flat_all_run(view, series, limits)
        return
    end = _zero_tail(series.values, limits)
    if end is not None:
        usual = float(np.median(series.values[:end]))
        yield Hit(
            f"KL to the reference fell from {usual:.3g} to {np.median(series.values[end:]):.2g} at step "
            f"{series.steps[end]} and stays there",
            "error",
            (evidence(series, end, -1, baseline=usual, limit=limits["fall"] * usual),),
            cause="From that step on the reference logprobs are those of the policy: the reference was replaced or "
            "synchronised, or the "
            "KL is no longer computed.",
            ruled_out=("a reference that is reset at times: the KL does not grow again",),
            unchecked=() if coefficient else ("a schedule that turns the KL term off: config.kl_coef",),
        )


def _flat_all_run(view: View, series: Series, limits: Limits) -> Hit | Skip:
    if view.config.kl_coef is None:
        return Skip("config", "the KL is 0 at every step, which is by design without a KL term", ("config.kl_coef",))
    ruled_out, unchecked = [], []
    for name, words, column in (
        ("optim.learning_rate", "a learning rate of 0", "learning_rate"),
        ("optim.grad_norm", "a gradient of 0", "grad_norm"),
    ):
        found = view.get(name)
        least = limits["tiny_rate"] if name == "optim.learning_rate" else 0.0
        if found is None:
            unchecked.append(f"{words}: {column}")
        elif float(np.median(found.values)) <= least and not (name == "optim.learning_rate" and _moves(view)):
            return Skip(
                "data", f"{name} has the median {np.median(found.values):.2g}: the policy does not move, so a KL of 0 is expected"
            )
        else:
            ruled_out.append(f"{words}: {name} has the median {np.median(found.values):.2g}")
    return Hit(
        f"KL to the reference is {series.values.max():.2g} or less at all {len(series)} steps although kl_coef is "
        f"{view.config.kl_coef:g}",
        "error",
        (evidence(series, 0, -1, value=float(series.values.max()), limit=limits["zero"]),),
        ruled_out=tuple(ruled_out),
        unchecked=tuple(unchecked),
    )


def _moves(view: View) -> bool:
    """Whether the policy demonstrably moves within a batch, so that a learning rate logged as 0 is rounding."""
    moved = view.get("policy.kl_old_k3")
    return moved is not None and float(moved.values.max()) > 0.0


def _zero_tail(values: trend.Floats, limits: Limits) -> int | None:
    """First point of a final stretch near zero, after a run that was not."""
    n = values.size
    for end in (
        trend.run_lengths(values <= limits["zero"]),
        trend.run_lengths(values <= limits["fall"] * np.median(values[: max(n // 2, 1)])),
    ):
        if end and end[-1][1] == n - 1:
            first = end[-1][0]
            enough = n - first >= max(5, round(limits["share"] * n))
            if enough and first >= 5 and float(np.median(values[:first])) > max(limits["zero"], 0.0):
                return first
    return None


@rule(
    "RLD207", "wrong-reference",
    severity="error",
    optional=("ref.kl_first_k3", *KL_REFERENCE),
    limits={"large": 0.05, "first_step": 2, "constant": 0.4},
    cause="The reference is not the model that training starts from: base weights instead of the fine-tuned start "
    "(adapters disabled), "
    "another checkpoint, or another chat template, temperature or precision in the reference pass.",
    advice=(
        "Compute policy and reference logprobs of one batch before the first update: they must agree to numeric noise.",
        "With adapters, merge the start adapter into the reference or keep a frozen copy of it.",
        "If another reference is intended, ignore this rule in the project's configuration and say why.",
    ),
    avoids=("A resumed run.", "A first step that averages several updates.", "Numeric noise of half precision."),
    source="Public issue threads on adapters whose reference is the base model",
)  # fmt: skip
def wrong_reference(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The KL to the reference is large before the policy had time to move.

    Training usually starts from the reference, so that the first batch shows a KL of numeric noise (below 0.001 nat per
    token in half precision). A larger one means that the penalty pulls towards another model from the first step on.

    The first recorded step, or the first mini-batch where mini-batches are known, is held against `large` nat per token. The
    run must start within `first_step` steps of zero: a resumed run has every reason for a KL. Where the KL at the start is
    less than `constant` of the level right after it, the first updates may have made it, and it is a warning.
    """
    series = first_of(view, "ref.kl_first_k3", *KL_REFERENCE)
    if series is None:
        yield lacking(view, "ref.kl_k3")
        return
    if int(series.steps[0]) > limits["first_step"]:
        yield Skip("data", f"the first recorded step is {series.steps[0]}: the start of the training was not seen")
        return
    values = np.abs(series.values)
    value = float(values[0])
    if value <= limits["large"]:
        return
    following = float(np.median(values[1:8])) if values.size > 1 else value
    there = value >= limits["constant"] * following
    several = (view.config.epochs or 1) * (view.config.minibatches or 1) > 1 and series.metric != "ref.kl_first_k3"
    yield Hit(
        f"KL to the reference is {value:.3g} nat per token at the first step ({series.steps[0]}), {following:.3g} in "
        "the steps after it",
        "error" if there and not (several and value < 4 * limits["large"]) else "warning",
        (evidence(series, 0, 0, limit=limits["large"]),),
        ruled_out=("a resumed run: the record starts with the training",),
        unchecked=("updates within the first step: minibatch",) if series.metric != "ref.kl_first_k3" else (),
    )
