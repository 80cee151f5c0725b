"""The reference policy: a KL that is absent, and a reference that is another model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Hit
from rl_doctor.rules import trend
from rl_doctor.rules.kl import magnitude
from rl_doctor.rules.reading import KL_REFERENCE, evidence, first_of, lacking, logged, rounding, too_short
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.view import View

_SIGNED = ("ref.kl_k1", "ref.kl")
_UNSIGNED = ("ref.kl_k3", "ref.kl_k2", "ref.kl_abs")


@rule(
    "RLD205", "kl-flatline",
    severity="error",
    optional=(*KL_REFERENCE, "optim.learning_rate", "optim.grad_norm", "policy.kl_old_k3"),
    limits={"steps": 10, "exact": 5, "few": 2, "zero": 1e-9, "fall": 1e-4, "share": 0.03, "tiny_rate": 1e-8},
    cause="The reference logprobs are those of the policy itself (same object, same adapter, or detached copies), so "
    "the KL term does "
    "nothing.",
    advice=(
        "Compute the reference logprobs of one batch with frozen initial weights, and compare with what the trainer uses.",
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

    It fires if the largest value of the run is at most `zero` nat per token over at least `steps` steps (where recorded logprobs
    give exactly 0: `exact`, if each had a learning rate; `few`, if an update moved the policy against the one that sampled),
    kl_coef is positive
    (or not known, but a KL was logged: a warning)
    and neither the learning rate (below `tiny_rate`) nor the gradient norm says that nothing moves; or if the run ends with
    at least `share` of its steps below `fall` times its earlier median.
    """
    series = magnitude(first_of(view, *KL_REFERENCE))
    if series is None:
        yield lacking(view, KL_REFERENCE[0])
        return
    coefficient = view.config.kl_coef
    if coefficient == 0:
        yield Skip("config", "kl_coef is 0: a KL of 0 is harmless")
        return
    exact = not logged(series) and float(series.values.max()) == 0.0
    needed = "few" if exact and _moves(view) else "exact" if exact and _has_rate(view, limits["tiny_rate"]) else "steps"
    if skip := too_short(series, int(limits[needed])):
        yield skip
        return
    if float(np.median(series.values[: len(series) // 2])) < 20.0 * rounding(series):
        yield Skip("data", f"the log rounds {series.metric} to {rounding(series):g}, which is too coarse to tell 0 from small")
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
            suspect="reference-follows-policy",
            ruled_out=("a reference that is reset at times: the KL does not grow again",),
            unchecked=() if coefficient else ("a schedule that turns the KL term off: config.kl_coef",),
        )


def _flat_all_run(view: View, series: Series, limits: Limits) -> Hit | Skip:
    if view.config.kl_coef is None and not logged(series):
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
    known = view.config.kl_coef is not None
    if not known:
        unchecked.append("a KL term that is off although it is logged: config.kl_coef")
    largest = float(series.values.max())
    level = f"{largest:.2g} or less" if largest else "exactly 0"
    return Hit(
        f"KL to the reference is {level} at all {len(series)} steps although "
        + (f"kl_coef is {view.config.kl_coef:g}" if known else "the trainer logs one, which it does where a KL term is on"),
        "error" if known else "warning",
        (evidence(series, 0, -1, value=float(series.values.max()), limit=limits["zero"]),),
        suspect="reference-is-policy",
        ruled_out=tuple(ruled_out),
        unchecked=tuple(unchecked),
    )


def _moves(view: View) -> bool:
    """Whether the policy demonstrably moves within a batch, so that a learning rate logged as 0 is rounding."""
    moved = view.get("policy.kl_old_k3")
    return moved is not None and float(moved.values.max()) > 0.0


def _has_rate(view: View, least: float) -> bool:
    """Whether the learning rate is known to have been above ``least`` at every step."""
    rate = view.get("optim.learning_rate")
    return rate is not None and float(rate.values.min()) > least


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
    optional=("ref.kl_first_k3", *KL_REFERENCE, "mismatch.k3", "mismatch.first_k3"),
    limits={"large": 0.05, "first_step": 2, "constant": 0.4, "rows": 10, "noise": 0.005, "times": 10.0, "tokens": 200},
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

    The first recorded step, or the first mini-batch where mini-batches are known, is held against `large` nat per token. Of a
    first mini-batch with `tokens` tokens, before any update, the limit is `noise`, or `times` the k3 of engine against trainer,
    or between the passes of the trainer, if that is larger: what two passes over the same weights differ by. The
    run must start within `first_step` steps of zero: a resumed run has every reason for a KL. Where the KL at the start is
    less than `constant` of the level right after it, the first updates may have made it, and it is a warning. A first value
    that the next steps fall back from is a peak, and info. An estimate that may be negative counts only if its first values
    are all above 0 and their median is twice their spread. A KL of unknown kind, by a trainer that is not known, is a warning
    at most, from `rows` rows and twice `large` on.
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
    unknown = series.metric == "ref.kl" and view.info.trainer is None
    large = _limit(view, series, limits)
    if value <= (2.0 * large if unknown else large) or not _beyond_noise(series):
        return
    if unknown and (skip := too_short(series, int(limits["rows"]))):
        yield skip
        return
    following = float(np.median(values[1:8])) if values.size > 1 else value
    there = value >= limits["constant"] * following
    peak = following <= large < value
    several = (view.config.epochs or 1) * (view.config.minibatches or 1) > 1 and series.metric != "ref.kl_first_k3"
    yield Hit(
        f"KL to the reference is {value:.3g} nat per token at the first step ({series.steps[0]}), {following:.3g} in "
        "the steps after it",
        "info" if peak else "error" if there and not unknown and not (several and value < 4 * limits["large"]) else "warning",
        (evidence(series, 0, 0, limit=large),),
        ruled_out=("a resumed run: the record starts with the training",),
        unchecked=(
            *(("what this KL is: per token or per response, and by which estimator",) if unknown else ()),
            *(("updates within the first step (in a recording: minibatch)",) if series.metric != "ref.kl_first_k3" else ()),
        ),
    )


def _limit(view: View, series: Series, limits: Limits) -> float:
    """What a first KL may be: less where nothing was updated before, and the run's own noise is known."""
    noise = view.get("mismatch.k3")
    first = series.metric == "ref.kl_first_k3" and int(series.steps[0]) <= 1 and int(series.counts[0]) >= limits["tokens"]
    if not first or noise is None or len(series) < 2 or int(noise.steps[0]) != int(series.steps[0]):
        return limits["large"]
    passes = view.get("mismatch.first_k3")  # a pass with dropout is as far from the reference as from the policy that sampled
    between = 0.0 if passes is None else float(passes.values[0])
    return min(limits["large"], max(limits["noise"], limits["times"] * max(float(noise.values[0]), between)))


def _beyond_noise(series: Series) -> bool:
    """Whether the first values of an estimate that may be negative lie clearly on one side of 0; True for all others."""
    if series.metric not in _SIGNED:
        return True
    first = series.values[:8]
    return bool(np.all(first > 0.0)) and float(np.median(first)) > 2.0 * trend.spread(first)


@rule(
    "RLD215", "reference-reset",
    severity="warning", since="0.2.0",
    optional=_UNSIGNED,
    limits={"fall": 0.05, "before": 5, "steady": 0.3, "most": 5.0, "after": 0.6, "least": 1e-4},
    cause="The reference was replaced by the policy of that step: a resume that loads it from the newest checkpoint, or a "
    "synchronisation.",
    advice=(
        "Look for what happens at that step: a resume, a schedule, a synchronisation of the reference.",
        "If the reset is meant, the KL counts from there: ignore the rule with that reason.",
    ),
    avoids=("Resets that recur: a schedule.", "Settings that synchronise the reference.", "A KL that falls over many steps.",
           "Estimates that may be negative: they cross 0."),
    source="Reproduced by replacing the reference with the policy in mid-run",
)  # fmt: skip
def reference_reset(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The KL to the reference falls to almost nothing from one step to the next, and grows again.

    A policy does not come back to where it began in one step: the reference came to the policy. What the penalty held it near is
    gone, and the KL that is logged from then on says nothing of the distance to the start.

    It fires where the KL falls to at most `fall` times the median of the `before` steps before it, all of which were between
    `steady` and `most` times that median and the median `least` nat, and is above `after` times it at none of the next two steps.
    It must also be below `steady` times what was usual before those steps, or else it is a spike that ends. More than one such
    fall, or settings that synchronise the reference, are by design.
    """
    series = first_of(view, *_UNSIGNED)
    if series is None:
        yield lacking(view, _UNSIGNED[0])
        return
    before = int(limits["before"])
    if skip := too_short(series, before + 2):
        yield skip
        return
    if _synchronised(view.config.native):
        yield Skip("config", "the settings synchronise the reference with the policy")
        return
    if not series.values[-1]:
        return  # a KL that stays 0 is that of kl-flatline
    usual_before = trend.sliding_medians(series.values, before)  # of the points before each, from `before` on
    low = before + np.flatnonzero(series.values[before:-1] <= limits["fall"] * usual_before[:-2])
    falls = [at for at in low.tolist() if _fell(series.values, at, before, limits)]
    if len(falls) != 1:
        return
    at, usual = falls[0], float(np.median(series.values[falls[0] - before : falls[0]]))
    yield Hit(
        f"KL to the reference fell at once from {usual:.3g} to {series.values[at]:.2g} nat per token at step {series.steps[at]}, "
        f"and is {series.values[-1]:.3g} at the end",
        "warning",
        (evidence(series, at, at, baseline=usual, limit=limits["fall"] * usual),),
        ruled_out=("a policy that comes back: that takes many steps",),
        unchecked=() if view.config.native else ("a synchronisation that is meant: config.native",),
    )


def _fell(values: trend.Floats, at: int, before: int, limits: Limits) -> bool:
    """Whether the low value at a point is a fall from a steady level, and no end of a spike."""
    earlier = values[at - before : at]
    usual = float(np.median(earlier))
    low = values[at + 1 : at + 3].max() <= limits["after"] * usual
    sooner = values[max(0, at - 3 * before) : at - before]
    if sooner.size and values[at] > limits["steady"] * float(np.median(sooner)):
        return False  # a spike that is over
    level = earlier.min() >= limits["steady"] * usual and earlier.max() <= limits["most"] * usual
    return bool(low and usual >= limits["least"] and level)


def _synchronised(native: object) -> bool:
    """Whether the trainer's settings name a reference that follows the policy."""
    if not isinstance(native, dict):
        return False
    names = ("sync_ref_model", "ref_update_interval", "reset_ref")  # TRL's ref_model_sync_steps is set whether or not it is used
    return any(_synchronised(value) or (bool(value) and any(name in str(key) for name in names)) for key, value in native.items())
