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


@rule(
    "RLD205", "kl-flatline",
    severity="error",
    optional=(*KL_REFERENCE, "optim.learning_rate", "optim.grad_norm", "policy.kl_old_k3"),
    limits={"steps": 10, "zero": 1e-9, "fall": 1e-4, "share": 0.03, "tiny_rate": 1e-8},
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

    It fires if the largest value of the run is at most `zero` nat per token over at least `steps` steps, kl_coef is positive
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
    if skip := too_short(series, int(limits["steps"])):
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
    return Hit(
        f"KL to the reference is {series.values.max():.2g} or less at all {len(series)} steps although "
        + (f"kl_coef is {view.config.kl_coef:g}" if known else "the trainer logs one, which it does where a KL term is on"),
        "error" if known else "warning",
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
    limits={"large": 0.05, "first_step": 2, "constant": 0.4, "rows": 10},
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
    if value <= (2.0 * limits["large"] if unknown else limits["large"]) or not _beyond_noise(series):
        return
    if unknown and (skip := too_short(series, int(limits["rows"]))):
        yield skip
        return
    following = float(np.median(values[1:8])) if values.size > 1 else value
    there = value >= limits["constant"] * following
    peak = following <= limits["large"] < value
    several = (view.config.epochs or 1) * (view.config.minibatches or 1) > 1 and series.metric != "ref.kl_first_k3"
    yield Hit(
        f"KL to the reference is {value:.3g} nat per token at the first step ({series.steps[0]}), {following:.3g} in "
        "the steps after it",
        "info" if peak else "error" if there and not unknown and not (several and value < 4 * limits["large"]) else "warning",
        (evidence(series, 0, 0, limit=limits["large"]),),
        ruled_out=("a resumed run: the record starts with the training",),
        unchecked=(
            *(("what this KL is: per token or per response, and by which estimator",) if unknown else ()),
            *(("updates within the first step (in a recording: minibatch)",) if series.metric != "ref.kl_first_k3" else ()),
        ),
    )


def _beyond_noise(series: Series) -> bool:
    """Whether the first values of an estimate that may be negative lie clearly on one side of 0; True for all others."""
    if series.metric not in _SIGNED:
        return True
    first = series.values[:8]
    return bool(np.all(first > 0.0)) and float(np.median(first)) > 2.0 * trend.spread(first)
