"""Policies that break: what breaks first, by how many steps, and what follows."""

from __future__ import annotations

import numpy as np

from tests.diseases.catalogue import graded, injected
from tests.simulation.inject import Floats, onset, scaled, shifted, with_reward, with_values
from tests.simulation.run import SimulatedRun

Random = np.random.Generator
_COMPANY = (
    "reward-drift", "reward-variance-shift", "reward-flatline", "entropy-explosion", "entropy-collapse", "kl-spike",
    "kl-runaway", "grad-norm-spike", "grad-norm-growth", "rollout-trainer-mismatch", "zero-variance-groups", "broken-groups",
    "near-zero-variance-groups", "ratio-saturation", "reward-component-imbalance", "logged-metric-mismatch",
    "reward-component-idle", "impossible-values", "reward-hacking-suspected",
)  # fmt: skip
"""What a broken policy shows beside; most of it is folded under the cause."""


def ramp(run: SimulatedRun, first: int, length: int = 6) -> Floats:
    """Per row: 0 before a step, then 1/length more each step, to 1."""
    return np.clip((run.arrays["step"] - first + 1.0) / length, 0.0, 1.0)


def collapsed(run: SimulatedRun, random: Random, first: int, left: float = 0.05) -> SimulatedRun:
    """From a step on next to no response earns its reward."""
    lost = (run.arrays["step"] >= first) & (random.random(len(run.arrays["step"])) > left)
    if "uid" in run.arrays:
        _, place = np.unique(run.arrays["uid"], return_inverse=True)
        lost = (run.arrays["step"] >= first) & (random.random(place.max() + 1) > left)[place]
    lowest = float(np.nanmin(run.arrays["reward"]))
    return with_reward(run, np.where(lost, lowest, run.arrays["reward"]))


def with_entropy(run: SimulatedRun, left: Floats | float) -> SimulatedRun:
    """The run of a policy of which each token has ``left`` times its entropy, and costs as many times as much.

    All who score the tokens see that alike: their differences stay as they are.
    """
    change = (np.asarray(left) - 1.0) * run.arrays["logprob"]
    made = shifted(run, change, "logprob", "old_logprob", "rollout_logprob", "ref_logprob")
    return with_values(made, **{name: left * run.arrays[name] for name in ("entropy", "old_entropy") if name in run.arrays})


def dissolved(run: SimulatedRun, first: int, factor: float = 4.0, length: int = 4, cap: float = 0.97) -> SimulatedRun:
    """From a step on the entropy grows to a multiple, as far as there are tokens for it."""
    grown = np.exp(np.log(factor) * ramp(run, first, length))[run.rows]
    most = cap * np.log(run.info.vocab_size or 50) / np.maximum(run.arrays["entropy"], 1e-9)
    return with_entropy(run, np.where(grown > 1.0, np.minimum(grown, np.maximum(most, 1.0)), grown))


def parted(run: SimulatedRun, random: Random, first: int, size: float = 0.4) -> SimulatedRun:
    """From a step on engine and trainer differ more and more."""
    noise = size * random.standard_normal(int(run.splits[-1])) * ramp(run, first, 8)[run.rows]
    return shifted(run, noise, "rollout_logprob")


@injected(
    "sudden-collapse",
    *_COMPANY,
    "stale-old-logprob",
    "mismatch-before-explosion",
    into="low_entropy",
    anywhere=False,
    cause="mismatch-feeds-collapse",
    damage="reward.mean",
    sooner=("mismatch-before-explosion", "rollout-trainer-mismatch"),
)
def mismatch_then_collapse(run: SimulatedRun, random: Random) -> SimulatedRun:
    """Engine and trainer part, ten steps later the gradient grows and the entropy with it, and then the reward falls."""
    first = onset(run, 0.35)
    last = onset(run, 0.7)
    found = dissolved(parted(run, random, first), last - 1)
    found = scaled(found, "grad_norm", lambda step: np.where(step >= last - 1, 8.0, 1.0))
    return collapsed(found, random, last)


@injected("sudden-collapse", *_COMPANY, into="low_entropy", anywhere=False, cause="collapse-from-large-updates",
          damage="reward.mean", sooner=("grad-norm-spike", "grad-norm-growth"))  # fmt: skip
def gradient_then_collapse(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The gradient grows to ten times over six steps; eight steps after it began the reward falls and the entropy grows."""
    first, last = onset(run, 0.5), onset(run, 0.7)
    found = scaled(run, "grad_norm", lambda step: np.exp(np.log(12.0) * np.clip((step - first + 1.0) / 4.0, 0.0, 1.0)))
    return collapsed(dissolved(found, last), random, last)


@injected("sudden-collapse", *_COMPANY, into="low_entropy", anywhere=False, needs=("entropy",), cause="collapse-from-entropy",
          damage="reward.mean", sooner=("entropy-explosion",))  # fmt: skip
def entropy_then_collapse(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The entropy grows for eight steps, and then the reward falls."""
    return collapsed(dissolved(run, onset(run, 0.5), 5.0), random, onset(run, 0.72))


@injected(
    "sudden-collapse", *_COMPANY, into="low_entropy", anywhere=False, needs=("entropy",), cause="collapse-without-precursor"
)
def everything_breaks_at_once(run: SimulatedRun, random: Random) -> SimulatedRun:
    """Reward, entropy and gradient break at the same step."""
    last = onset(run, 0.6)
    found = scaled(dissolved(run, last, 4.0, 1), "grad_norm", lambda step: np.where(step >= last, 6.0, 1.0))
    return collapsed(found, random, last)


@graded("entropy-explosion", "impossible-values", "duplicate-samples", sizes=(2.0, 3.0, 4.0, 8.0), least_size=4.0,
        unit="times", into="low_entropy",
        needs=("entropy",))  # fmt: skip
def entropy_rises_at_once(run: SimulatedRun, random: Random, size: float, first: int) -> SimulatedRun:  # noqa: ARG001
    """From a step on the entropy is a multiple of what it was, and the reward falls by a fifth with it.

    Texts stay as they are: recorded ones that were equal when they were probable still are.
    """
    found = dissolved(run, first, size, 1, 10.0)
    return with_reward(found, np.where(run.arrays["step"] >= first, 0.8, 1.0) * run.arrays["reward"])


@graded(
    "entropy-collapse",
    sizes=(0.5, 0.25, 0.1, 0.05),
    least_size=0.1,
    unit="of the entropy left",
    needs=("entropy",),
)
def entropy_falls_at_once(run: SimulatedRun, random: Random, size: float, first: int) -> SimulatedRun:  # noqa: ARG001
    """From a step on a small share of the entropy is left."""
    return dissolved(run, first, size, 1)
