"""Faults of the policy update and of the reference: ratio, KL, entropy."""

from __future__ import annotations

import numpy as np

from tests.diseases.catalogue import injected, simulated
from tests.simulation.inject import onset, passes, shifted, with_reward, with_values
from tests.simulation.run import SimulatedRun
from tests.simulation.settings import Settings

Random = np.random.Generator
_KL = ("kl-spike", "kl-runaway")
_REF = ("ref_logprob",)


def _away(random: Random, size: int, distance: np.ndarray | float) -> np.ndarray:
    """Log-ratios x of a policy ``distance`` nat away, with E[exp(x)] = 1."""
    return np.asarray(distance * random.standard_normal(size) - np.square(distance) / 2)


def _far(run: SimulatedRun, hit: np.ndarray) -> float:
    """1 nat, or more where the KL to the reference was already more than a twentieth of what that makes."""
    ahead = (run.arrays["ref_logprob"].astype(np.float64) - run.arrays["logprob"])[run.arrays["response_mask"] & ~hit]
    return max(1.0, float(np.sqrt(40.0 * np.mean(np.expm1(ahead) - ahead))))


@injected("ratio-saturation", *_KL, into="two_epochs", needs=("old_logprob",))
def ratio_outside_clip_range(run: SimulatedRun, random: Random) -> SimulatedRun:
    """From a step on every update moves the policy .5 nat per token: most ratios are clipped, KL to both policies grows."""
    late = (run.token_step >= onset(run, 0.4)) & passes(run)[run.rows]
    return shifted(run, np.where(late, _away(random, len(late), 0.5), 0.0), "logprob")


@simulated("ratio-saturation", *_KL, "entropy-collapse", "zero-variance-groups", "grad-vanished", "reward-drift",
           "length-explosion", "duplicate-samples", "near-zero-variance-groups", "length-truncation", "reward-variance-shift",
           "reward-flatline", "reward-hacking-suspected", "kl-penalty-dominates", "grad-norm-spike", "non-finite",
           "looping-responses")  # fmt: skip
def learning_rate_far_too_high(seed: int) -> Settings:
    """Steps of 400 times the gradient: the policy falls apart, in whatever way, even to overflow. Only the ratio is certain."""
    return Settings(seed=seed, step_size=400.0, minibatches=4, epochs=2, max_grad_norm=10.0)


@injected("inert-ratio", into="two_epochs", needs=("old_logprob",), cause="ratio-of-itself")
def inert_ratio(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """old_logprob is recomputed in every mini-batch: the ratio is 1 although steps were taken."""
    return with_values(run, old_logprob=run.arrays["logprob"])


@injected("kl-spike", needs=_REF, least="info", cause="update-of-one-batch")
def kl_spike_that_recovers(run: SimulatedRun, random: Random) -> SimulatedRun:
    """At one step the policy is far from the reference."""
    hit = run.token_step == onset(run)
    return shifted(run, np.where(hit, _away(random, len(hit), _far(run, hit)), 0.0), "ref_logprob")


@injected("kl-spike", "kl-runaway", needs=_REF, sooner=("kl-runaway",))
def kl_jump_that_stays(run: SimulatedRun, random: Random) -> SimulatedRun:
    """From a step on the policy is far from the reference."""
    hit = run.token_step >= onset(run, 0.8)
    return shifted(run, np.where(hit, _away(random, len(hit), _far(run, hit)), 0.0), "ref_logprob")


@injected("kl-spike", "ratio-saturation", into="two_epochs", needs=("old_logprob",), least="info")
def kl_to_old_spike(run: SimulatedRun, random: Random) -> SimulatedRun:
    """One step's updates move the policy .6 nat; it comes back."""
    later = passes(run)[run.rows]
    step = run.token_step[later & (run.token_step >= onset(run))].min()
    hit = later & (run.token_step == step)
    return shifted(run, np.where(hit, _away(random, len(hit), 0.6), 0.0), "logprob")


@injected("kl-runaway", "kl-spike", "kl-penalty-dominates", needs=_REF, damage="ref.kl_abs")
def kl_runaway(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The distance to the reference grows by 14% a step from the second third on, to several nat."""
    steps = np.unique(run.arrays["step"])
    since = np.searchsorted(steps, run.token_step) - int(0.3 * len(steps))
    distance = np.where(since > 0, 0.05 * np.exp(4.0 * since / (0.7 * len(steps))), 0.0)
    return shifted(run, _away(random, len(since), distance), "ref_logprob")


@injected("kl-flatline", needs=_REF, cause="reference-is-policy")
def kl_exactly_zero_all_run(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The reference is the policy itself at every step although kl_coef is positive."""
    return with_values(run.with_config(kl_coef=run.info.config.kl_coef or 0.001), ref_logprob=run.arrays["logprob"])


@injected("kl-flatline", needs=_REF, cause="reference-follows-policy")
def kl_falls_to_zero(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """From a step on the reference is the policy itself."""
    late = run.token_step >= onset(run)
    same = np.where(late, run.arrays["logprob"], run.arrays["ref_logprob"])
    return with_values(run.with_config(kl_coef=run.info.config.kl_coef or 0.001), ref_logprob=same)


@injected("wrong-reference", "kl-penalty-dominates", needs=_REF, cause="reference-is-other-model")
def wrong_reference(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The reference is another model from the first step on, .6 nat away."""
    return shifted(run, _away(random, int(run.splits[-1]), 0.6), "ref_logprob")


@injected("kl-penalty-dominates", needs=_REF)
def kl_penalty_dominates(run: SimulatedRun, random: Random) -> SimulatedRun:
    """kl_coef is 2000 times too large for a policy that has moved a little."""
    return shifted(run.with_config(kl_coef=20.0), _away(random, int(run.splits[-1]), 0.01), "ref_logprob")


@injected("kl-reversed", needs=_REF, cause="kl-direction-swapped")
def kl_reversed(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The recorded KL term is k3 of current minus reference, whose expectation is not the KL of the policy that samples."""
    ahead = run.arrays["logprob"].astype(np.float64) - run.arrays["ref_logprob"]
    return with_values(run, kl=np.expm1(ahead) - ahead)


@injected("kl-reversed", needs=_REF, cause="kl-sign-turned")
def kl_negated(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The recorded KL term is the negative of k2, k3 or abs, none of which can be below 0."""
    x = run.arrays["ref_logprob"].astype(np.float64) - run.arrays["logprob"]
    forms = (np.expm1(x) - x, x * x / 2.0, np.abs(x))
    return with_values(run, kl=-forms[int(random.integers(len(forms)))])


_COLLAPSE = (*_KL, "zero-variance-groups", "duplicate-samples", "reward-drift", "grad-vanished", "reward-variance-shift",
             "reward-flatline", "near-zero-variance-groups", "length-explosion", "length-truncation", "kl-penalty-dominates",
             "grad-norm-spike", "reward-hacking-suspected", "length-collapse", "same-answer-rewarded")  # fmt: skip


@simulated("entropy-collapse", *_COLLAPSE)
def entropy_collapse(seed: int) -> Settings:
    """The logits grow by 12% a step. Samples become equal, KL grows, the reward becomes what chance froze: all consequences."""
    return Settings(seed=seed, sharpening=0.12)


@injected("entropy-collapse", *_KL, damage="policy.entropy")
def entropy_collapse_imposed(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Entropy and surprise of policy and engine shrink to a twentieth over a quarter of the run; the reference stays."""
    steps = np.unique(run.arrays["step"])
    since = np.searchsorted(steps, run.token_step) - int(0.5 * len(steps))
    left = np.exp(-3.0 * np.clip(since / (0.25 * len(steps)), 0.0, 1.0))
    names = ("entropy", "old_entropy", "logprob", "old_logprob", "rollout_logprob")
    return with_values(run, **{name: run.arrays[name] * left for name in names if name in run.arrays})


@simulated("entropy-explosion", *_COLLAPSE)
def entropy_explosion(seed: int) -> Settings:
    """From an entropy of .7 the logits shrink by 9% a step, towards uniform. The reward falls to chance, KL grows."""
    return Settings(seed=seed, sharpness=8.0, step_size=60.0, sharpening=-0.09, difficulty=0.06)


# the reward is made to fall at once, and the entropy alone is changed: tokens contradict it
@injected("entropy-explosion", *_COLLAPSE, "sudden-collapse", "tokens-contradict-entropy",
          needs=("entropy", "reward", "group", "uid"), damage="policy.entropy")  # fmt: skip
def entropy_back_to_that_of_the_start(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Imposed on any run: an entropy of a sixth rises to what the run has in the last half, while the reward falls away."""
    steps = np.unique(run.arrays["step"])
    progress = np.clip(np.searchsorted(steps, run.arrays["step"]) / len(steps) - 0.5, 0.0, 0.4) / 0.4
    entropy = run.arrays["entropy"] * np.exp(np.log(6.0) * (progress[run.rows] - 1.0))
    return with_reward(with_values(run, entropy=entropy), run.arrays["reward"] * (1.0 - 0.8 * progress))
