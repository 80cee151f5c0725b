"""Faults of length, termination, optimiser and log."""

from __future__ import annotations

import numpy as np

from tests.diseases.catalogue import injected, simulated
from tests.simulation.inject import onset, scaled, with_values
from tests.simulation.run import SimulatedRun
from tests.simulation.settings import Settings

Random = np.random.Generator


@simulated("length-truncation", cause="limit-cuts-some")
def length_truncation(seed: int) -> Settings:
    """The limit of 40 tokens is reached by most responses, which would be twice as long."""
    return Settings(seed=seed, ending_offset=-3.5)


@simulated("length-truncation", "zero-variance-groups", "reward-flatline", cause="length-limit-too-short")
def truncated_and_never_rewarded(seed: int) -> Settings:
    """The same, and only finished responses can succeed: most groups have no variance because of the limit."""
    return Settings(seed=seed, ending_offset=-4.5, reward="finished")


@simulated("length-explosion", "length-truncation", "kl-spike", "kl-runaway", "reward-drift", "reward-variance-shift",
           "reward-hacking-suspected", "entropy-explosion", cause="policy-rambles")  # fmt: skip
def length_explosion(seed: int) -> Settings:
    """From the middle on the end token becomes less likely every step, and the reward does not rise with it."""
    return Settings(seed=seed, lengthening=0.4, max_length=120, step_size=2.0)


@simulated("aborted-responses", "mask-misses-eos", "length-truncation", cause="engine-aborts-responses")
def aborted_responses(seed: int) -> Settings:
    """The engine cuts off half of the responses. A warning about how they end is allowed."""
    return Settings(seed=seed, aborted=0.8)


@injected(
    "aborted-responses", "mask-misses-eos", "length-truncation", needs=("finish_reason", "uid"), cause="engine-aborts-responses"
)
def aborted_half_way(run: SimulatedRun, random: Random) -> SimulatedRun:
    """Imposed on any run: from the middle on the engine reports half of the responses as aborted."""
    _, sampled = np.unique(run.arrays["uid"], return_inverse=True)
    aborted = (random.random(sampled.max() + 1) < 0.5)[sampled] & (run.arrays["step"] >= onset(run, 0.5))
    return with_values(run, finish_reason=np.where(aborted, "abort", run.arrays["finish_reason"]).astype(np.object_))


@injected("update-cut-short", into="two_epochs", anywhere=False, cause="updates-end-early")
def update_cut_short(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """From a step on the update stops after the first of two passes, since the KL passed its limit."""
    return run.take(np.flatnonzero((run.arrays["step"] < onset(run, 0.2)) | (run.arrays["epoch"] == 0)))


@injected("grad-norm-spike", least="info")
def gradient_spike(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """One step has a gradient 100 times as large."""
    return scaled(run, "grad_norm", lambda step: np.where(step == onset(run), 100.0, 1.0))


@injected("grad-norm-spike", cause="spike-not-recovered")
def gradient_spike_that_stays(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """From a step on, late in the run, the gradient is 50 times as large."""
    return scaled(run, "grad_norm", lambda step: np.where(step >= onset(run, 0.85), 50.0, 1.0))


@injected("grad-vanished", cause="loss-detached")
def gradient_vanished(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """From a step on the gradient is a millionth of what it was, while groups still differ."""
    return scaled(run, "grad_norm", lambda step: np.where(step >= onset(run, 0.5), 1e-6, 1.0))


@injected("grad-zero", "grad-vanished", cause="loss-detached")
def gradient_exactly_zero(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """From a third of the run on the gradient is exactly 0."""
    return scaled(run, "grad_norm", lambda step: np.where(step >= onset(run, 0.33), 0.0, 1.0))


@injected("learning-rate-zero", cause="learning-rate-ran-out")
def learning_rate_runs_out(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The schedule ends half-way."""
    return scaled(run, "learning_rate", lambda step: np.where(step >= onset(run, 0.5), 0.0, 1.0))


@simulated("learning-rate-zero", "kl-flatline", "reward-flatline", "inert-ratio", cause="learning-rate-never-set")
def learning_rate_always_zero(seed: int) -> Settings:
    """The learning rate is 0: the policy never moves."""
    return Settings(seed=seed, learning_rate=0.0, step_size=0.0)


@injected("logged-metric-mismatch", log=False, anywhere=False)
def logged_kl_divided_by_four(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The KL loss is divided once more by a number of mini-batches that the settings do not name: no cause is told."""
    return run.relog("actor/kl_loss", lambda _, values: values / 4.0)


@injected("logged-metric-mismatch", log=False, anywhere=False, into="two_epochs")
def logged_kl_is_minus_the_ratio(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The KL to the old policy is logged as about minus the mean ratio, which nothing gives exactly."""
    return run.relog("actor/ppo_kl", lambda _, values: -1.0 - values)


@injected("logged-metric-mismatch", log=False, anywhere=False)
def logged_reward_without_weights(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The logged reward leaves out the weights of its components."""
    return run.relog("critic/rewards/mean", lambda _, values: 1.3 * values + 0.1)
