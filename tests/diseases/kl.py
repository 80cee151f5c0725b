"""Faults of the KL to the reference: its samples, its penalty, and the reference it is taken to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rl_doctor.store.metric_log import MetricLog
from tests.diseases.catalogue import graded, injected
from tests.diseases.collapse import with_entropy
from tests.simulation.inject import onset, rolled, shifted, with_reward, with_values
from tests.simulation.logs import relogged
from tests.simulation.run import SimulatedRun

Random = np.random.Generator
_REF = ("ref_logprob",)
_DOMINATES = "kl-penalty-dominates"


def _late(run: SimulatedRun, share: float = 0.6) -> np.ndarray:
    """Tokens from the step on by which ``share`` of the run has passed."""
    return run.token_step >= onset(run, share)


def _unlogged(run: SimulatedRun) -> SimulatedRun:
    """The run without a log, which would be of other logprobs than those that a fault writes."""
    return replace(run, log=MetricLog())


def _since(run: SimulatedRun, share: float) -> np.ndarray:
    """Of each token, the share of the rest of the run that has passed since ``share`` of it had; 0 before, 1 at the end."""
    steps = np.unique(run.arrays["step"])
    place = np.searchsorted(steps, run.token_step) / max(len(steps) - 1, 1)
    return np.asarray(np.clip((place - share) / (1.0 - share), 0.0, 1.0))


def _away(random: Random, size: int, distance: np.ndarray | float) -> np.ndarray:
    """Log-ratios x of a policy ``distance`` nat away, with E[exp(x)] = 1."""
    return np.asarray(distance * random.standard_normal(size) - np.square(distance) / 2)


def _grown(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The distance to the reference grows exponentially over the last two thirds of the run, to several nat."""
    steps = np.unique(run.arrays["step"])
    since = np.searchsorted(steps, run.token_step) - int(0.3 * len(steps))
    distance = np.where(since > 0, 0.05 * np.exp(4.0 * since / (0.7 * len(steps))), 0.0)
    return shifted(run, _away(random, len(since), distance), "ref_logprob")


def _with_outcome(run: SimulatedRun, reward: np.ndarray) -> np.ndarray:
    """Rewards of tokens with the reward of each response added at its last trained token."""
    last = np.maximum.accumulate(np.where(run.arrays["response_mask"], np.arange(len(reward)), -1))[run.splits[1:] - 1]
    made = np.asarray(reward, np.float64).copy()
    made[last] += run.arrays["reward"]
    return made


def _steady(run: SimulatedRun) -> SimulatedRun:
    """The run with a KL to the old policy of nothing: every batch is used once."""
    return with_values(run, old_logprob=run.arrays["logprob"])


@graded("kl-below-zero", "kl-spike", "kl-runaway", "kl-reversed", _DOMINATES, sizes=(0.25, 0.5, 1.0, 2.0, 4.0), least_size=1.0,
        unit="nat", cause="sampled-from-other-law", needs=_REF)  # fmt: skip
def truncated_sampling_scored_in_full(run: SimulatedRun, random: Random, size: float, first: int) -> SimulatedRun:
    """Top-k sampling: a fifth of the tokens is less probable under the policy than under the reference. KL rules may see it."""
    late = run.token_step >= first
    hit = late & (random.random(len(late)) < 0.2)
    ahead = (run.arrays["logprob"].astype(np.float64) - run.arrays["ref_logprob"])[late & run.arrays["response_mask"]]
    size += 5.0 * max(float(np.mean(ahead)), 0.0)  # what the policy has honestly gained would hide it
    return shifted(_unlogged(run.with_config(top_p=0.9)), np.where(hit, size, 0.0), "ref_logprob")


@injected("kl-below-zero", "kl-spike", "kl-runaway", "kl-reversed", _DOMINATES, cause="end-of-response-forced", anywhere=False)
def end_token_forbidden(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """A minimum length bans the end token: where it comes, the policy has learned to want it less than the reference."""
    ends = np.isin(run.arrays["token_id"], run.info.eos_token_ids or ())
    return shifted(run, np.where(ends & _late(run, 0.3), 2.5, 0.0), "ref_logprob")


@graded("kl-grows-with-padding", "wrong-reference", "kl-spike", "kl-runaway", _DOMINATES, "kl-below-zero",
        sizes=(0.003, 0.01, 0.03, 0.1), least_size=0.03, unit="nat per padding token", cause="padding-taken-for-text",
        needs=_REF)  # fmt: skip
def left_padding_moves_the_reference(run: SimulatedRun, random: Random, size: float, first: int) -> SimulatedRun:
    """Each padding token to the left moves the reference's logprobs of its row; from the first step on, a wrong reference."""
    padding = random.integers(0, 33, len(run.arrays["step"])) * (random.random(len(run.arrays["step"])) < 0.7)
    there = np.where(run.token_step >= first, padding[run.rows], 0)
    ahead = (run.arrays["logprob"].astype(np.float64) - run.arrays["ref_logprob"])[run.arrays["response_mask"]]
    size *= max(1.0, 10.0 * float(np.mean(np.abs(ahead))))  # a policy that has moved far hides more
    run = with_values(_unlogged(run), left_padding=padding)
    return shifted(run, size * there * random.standard_normal(len(there)), "ref_logprob")


@injected("kl-counted-twice", _DOMINATES, cause="kl-penalised-twice", needs=(*_REF, "old_logprob", "reward"))
def kl_in_reward_and_loss(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The KL is in the loss by the settings, and token_reward has it as well."""
    penalty = 0.05 * (run.arrays["old_logprob"].astype(np.float64) - run.arrays["ref_logprob"])
    reward = _with_outcome(run, np.where(run.arrays["response_mask"], -penalty, 0.0))
    return with_values(run.with_config(kl_coef=0.05, kl_in_reward=False), token_reward=reward)


@injected("kl-counted-twice", cause="kl-penalised-twice", anywhere=False)
def kl_twice_in_the_settings(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Both switches are on; nothing more is recorded of it."""
    native = {
        "algorithm": {"use_kl_in_reward": True, "kl_ctrl": {"kl_coef": 0.001}},
        "actor_rollout_ref": {"actor": {"use_kl_loss": True, "kl_loss_coef": 0.001}},
    }
    return run.with_config(native=native)


@injected("kl-penalty-outside-mask", "observations-in-returns", _DOMINATES, into="agentic", cause="kl-summed-without-mask",
          anywhere=False)  # fmt: skip
def observations_penalised(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The penalty in the reward is taken at what the tools wrote too, which is far from the reference."""
    outside = ~run.arrays["response_mask"]
    run = shifted(run, np.where(outside, _away(random, len(outside), 1.0), 0.0), "ref_logprob")
    penalty = 0.05 * (run.arrays["old_logprob"].astype(np.float64) - run.arrays["ref_logprob"])
    return with_values(run.with_config(kl_coef=0.05, kl_in_reward=True), token_reward=_with_outcome(run, -penalty))


@injected("observations-in-kl", "logged-metric-mismatch", into="agentic", log=False, anywhere=False, cause="kl-over-observations")
def logged_kl_of_all_tokens(run: SimulatedRun, random: Random) -> SimulatedRun:
    """What the tools wrote is far from the reference, and the KL is averaged over it too."""
    outside = ~run.arrays["response_mask"]
    run = relogged(shifted(run, np.where(outside, _away(random, len(outside), 1.0), 0.0), "ref_logprob"))
    ahead = run.arrays["ref_logprob"].astype(np.float64) - run.arrays["logprob"]
    k3 = np.expm1(ahead) - ahead
    steps = np.unique(run.arrays["step"])
    return run.relog("actor/kl_loss", lambda *_: np.array([k3[run.token_step == step].mean() for step in steps]))


@injected("kl-penalty-outside-mask", _DOMINATES, "reward-component-imbalance", "advantage-mismatch", "kl-spike", "kl-runaway",
          into="agentic", cause="kl-summed-without-mask", anywhere=False)  # fmt: skip
def penalty_summed_over_all_tokens(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The same of a reward per response: score less the sum over all stored tokens. The advantage follows the reward."""
    outside = ~run.arrays["response_mask"]
    run = shifted(run, np.where(outside, _away(random, len(outside), 1.0), 0.0), "ref_logprob")
    gap = run.arrays["old_logprob"].astype(np.float64) - run.arrays["ref_logprob"]
    total = np.bincount(run.rows, gap, len(run.splits) - 1)
    score = run.arrays["score"]
    return with_values(with_reward(run.with_config(kl_coef=0.05, kl_in_reward=True), score - 0.05 * total), score=score)


@injected("wrong-reference", _DOMINATES, "kl-spike", "kl-runaway", "kl-below-zero", needs=_REF,
          cause="reference-at-other-temperature")  # fmt: skip
def reference_at_another_temperature(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The reference's logits are not divided by the temperature, the policy's are; a little noise beside it."""
    tempered = 1.6 * run.arrays["logprob"].astype(np.float64) + 0.02 * random.standard_normal(int(run.splits[-1]))
    return with_values(run, ref_logprob=np.minimum(tempered, -1e-4))


@injected("wrong-reference", _DOMINATES, "kl-spike", "kl-runaway", "kl-below-zero", "kl-reversed", cause="reference-shifted",
          anywhere=False)  # fmt: skip
def reference_one_token_late(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The reference's logprobs belong to the token before."""
    return rolled(run, "ref_logprob", np.ones(len(run.splits) - 1, np.int64))


@injected("wrong-reference", _DOMINATES, "kl-spike", "kl-runaway", "kl-below-zero", "kl-reversed", needs=_REF,
          cause="reference-pass-broken")  # fmt: skip
def reference_of_other_rows(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The reference scored other rows in another order: nothing of it fits."""
    return with_values(run, ref_logprob=random.permutation(run.arrays["ref_logprob"]))


@injected("kl-runaway", "kl-spike", _DOMINATES, "entropy-collapse", "reward-drift", "reward-variance-shift",
          "reward-hacking-suspected", needs=_REF, cause="reward-over-optimised", anywhere=False)  # fmt: skip
def reward_over_optimised(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The KL runs away while the reward rises and the entropy falls. Rules about these may say so."""
    run = _grown(_steady(run), random)
    run = with_entropy(run, 1.0 - 0.6 * _since(run, 0.3))
    row = np.clip((run.arrays["step"] / run.arrays["step"].max() - 0.3) / 0.7, 0.0, 1.0)
    return with_reward(run, run.arrays["reward"] * 0.5 + 1.5 * row)


def _flat_reward(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The run with rewards that stay where they are."""
    return with_reward(run, (random.random(len(run.arrays["reward"])) < 0.5).astype(np.float64))


@injected("kl-runaway", "kl-spike", "reward-flatline", needs=_REF, cause="kl-coef-too-small", anywhere=False)
def kl_coefficient_too_small(run: SimulatedRun, random: Random) -> SimulatedRun:
    """kl_coef is a thousandth: the policy drifts in small steps, and gains nothing. A flat reward may be told."""
    return _grown(_steady(_flat_reward(run.with_config(kl_coef=1e-4), random)), random)


@injected("kl-runaway", "kl-spike", "reward-flatline", _DOMINATES, needs=_REF, cause="kl-term-without-gradient", anywhere=False)
def kl_term_without_gradient(run: SimulatedRun, random: Random) -> SimulatedRun:
    """kl_coef is large enough to be felt, and the policy drifts as if it were not there."""
    return _grown(_steady(_flat_reward(run.with_config(kl_coef=0.2), random)), random)


@injected("kl-runaway", "kl-spike", "reward-flatline", needs=_REF, cause="kl-not-penalised", anywhere=False)
def drift_without_a_kl_term(run: SimulatedRun, random: Random) -> SimulatedRun:
    """There is no KL term, and the policy drifts far from the reference, which is recorded all the same."""
    return _grown(_steady(_flat_reward(run.with_config(kl_coef=0.0), random)), random)


@injected("kl-runaway", "ratio-saturation", "kl-spike", _DOMINATES, "reward-flatline", into="two_epochs",
          cause="updates-overshoot", anywhere=False)  # fmt: skip
def updates_overshoot(run: SimulatedRun, random: Random) -> SimulatedRun:
    """Passes move the policy further and further from the one that sampled, and from the reference."""
    since = _since(run, 0.3)
    later = (run.arrays["epoch"] + run.arrays["minibatch"] > 0)[run.rows]
    run = shifted(_flat_reward(run, random), np.where(later, _away(random, len(since), 0.8 * since), 0.0), "logprob")
    return _grown(run, random)


@injected("kl-runaway", "kl-spike", _DOMINATES, needs=_REF, cause="reference-replaced", anywhere=False, sooner=("kl-spike",))
def reference_replaced(run: SimulatedRun, random: Random) -> SimulatedRun:
    """From a step on the reference is another model; the policy goes on as before."""
    hit = _late(run, 0.55)
    return shifted(run, np.where(hit, _away(random, len(hit), 1.0), 0.0), "ref_logprob")


@injected("kl-runaway", "kl-spike", _DOMINATES, "grad-norm-spike", "entropy-explosion", "entropy-collapse", needs=_REF,
          cause="policy-thrown", anywhere=False, sooner=("kl-spike",))  # fmt: skip
def policy_thrown(run: SimulatedRun, random: Random) -> SimulatedRun:
    """At one step the policy lands elsewhere and stays: gradient, entropy and KL jump."""
    hit = _late(run, 0.55)
    run = shifted(run, np.where(hit, _away(random, len(hit), 1.0), 0.0), "ref_logprob")
    grown = np.where(run.arrays["step"] >= onset(run, 0.55), 6.0, 1.0)
    run = with_entropy(run, np.where(hit, 0.7, 1.0))
    return with_values(run, grad_norm=run.arrays["grad_norm"] * grown)


@injected("reference-reset", into="on_policy", needs=_REF, log=False, cause="reference-reset-to-policy")
def reference_replaced_by_the_policy(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The policy leaves its reference by .1 nat, is taken for the reference in mid-run, and leaves that."""
    steps = np.unique(run.arrays["step"])
    place, again = np.searchsorted(steps, run.token_step), np.searchsorted(steps, onset(run))
    since = np.where(place < again, place, place - again)
    distance = np.clip(0.02 * since, 1e-4, 0.1)
    policy = run.arrays["logprob"].astype(np.float64)
    return _unlogged(with_values(run, ref_logprob=np.minimum(policy + _away(random, len(policy), distance), -1e-6)))


@injected(
    "wrong-reference", into="two_epochs", needs=(*_REF, "rollout_logprob"), cause="reference-is-other-model", anywhere=False
)
def reference_of_a_later_checkpoint(run: SimulatedRun, random: Random) -> SimulatedRun:
    """Another checkpoint of the same model: .013 nat per token before any update, where engine and trainer agree to .001.

    A first mini-batch of fewer than 200 tokens, as in small recorded runs, does not tell.
    """
    return shifted(run, _away(random, int(run.splits[-1]), 0.16), "ref_logprob")
