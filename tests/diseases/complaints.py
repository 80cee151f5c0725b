"""Healthy runs and logs that look like a complaint: what was taken for a fault and is none. No rule may warn of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

import numpy as np

from tests.simulation.inject import by_group, shifted, with_row_advantages, with_values
from tests.simulation.logged import Floats, LoggedRun
from tests.simulation.logs import relogged
from tests.simulation.run import SimulatedRun, is_token
from tests.simulation.settings import END, Settings, Source
from tests.simulation.world import simulate

Random = np.random.Generator
Made = SimulatedRun | LoggedRun

_COMPLAINTS: Final[dict[str, Complaint]] = {}


@dataclass(frozen=True, slots=True)
class Complaint:
    """One case.

    Attributes:
        name: kebab-case.
        make: seed -> the run.
        faulty: it is a fault that tools have passed: here silence is the complaint.
        doc: what it looks like, and why it is none.
    """

    name: str
    make: Callable[[int], Made]
    faulty: bool
    doc: str


def _complaint(function: Callable[[Random], Made]) -> Callable[[Random], Made]:
    return _register(function, faulty=False)


def _register(function: Callable[[Random], Made], *, faulty: bool) -> Callable[[Random], Made]:
    name = function.__name__.strip("_").replace("_", "-")
    _COMPLAINTS[name] = Complaint(
        name, lambda seed: function(np.random.default_rng([seed, len(name)])), faulty, (function.__doc__ or "").strip()
    )
    return function


def complaints() -> Mapping[str, Complaint]:
    """Every case by name."""
    return MappingProxyType(_COMPLAINTS)


def _seed(random: Random) -> int:
    return int(random.integers(2**31))


def _wander(random: Random, n: int, size: float, memory: float = 0.5) -> Floats:
    """Noise of a standard deviation, each value remembering a share of the one before."""
    shocks = random.standard_normal(n + 50)
    kernel = memory ** np.arange(50)
    return np.asarray(size * np.sqrt(1 - memory**2) * np.convolve(shocks, kernel)[50 : n + 50], np.float64)


def _trl(random: Random, n: int = 200, **other: Floats) -> LoggedRun:
    """The log of a GRPO training with TRL that learns; ``other`` replaces, with two underscores for a slash."""
    learned = 1 - np.exp(-np.arange(n) / (0.4 * n))
    values = {
        "loss": _wander(random, n, 0.004) + 2e-4 * learned,
        "grad_norm": 0.5 * np.exp(_wander(random, n, 0.2)),
        "learning_rate": 1e-6 * np.linspace(1.0, 0.05, n),
        "reward": 0.3 + 0.35 * learned + _wander(random, n, 0.03),
        "reward_std": 0.3 * np.exp(_wander(random, n, 0.06)),
        "frac_reward_zero_std": np.clip(0.2 + _wander(random, n, 0.06), 0.0, 1.0),
        "kl": 0.02 * learned * np.exp(_wander(random, n, 0.15)) + 1e-5,
        "entropy": (0.6 - 0.2 * learned) * np.exp(_wander(random, n, 0.05)),
        "completions/mean_length": 180.0 * np.exp(_wander(random, n, 0.06)),
        "completions/clipped_ratio": np.clip(0.03 + _wander(random, n, 0.01), 0.0, 1.0),
    }
    named = {name.replace("__", "/"): part for name, part in other.items()}
    return LoggedRun.of("trl", values | named, "grpo", clip_low=0.2, clip_high=0.2, kl_coef=0.01, group_size=8)


def _verl(random: Random, n: int = 150, **other: Floats) -> LoggedRun:
    """The same with verl, ``actor__`` for ``actor/``."""
    learned = 1 - np.exp(-np.arange(n) / (0.4 * n))
    reward = np.clip(0.3 + 0.35 * learned + _wander(random, n, 0.03), 0.0, 1.0)
    values = {
        "actor/pg_loss": _wander(random, n, 0.004), "actor/grad_norm": 0.3 * np.exp(_wander(random, n, 0.2)),
        "actor/lr": np.full(n, 1e-6), "actor/entropy": (0.6 - 0.2 * learned) * np.exp(_wander(random, n, 0.05)),
        "actor/pg_clipfrac": 0.002 * np.exp(_wander(random, n, 0.3)), "actor/ppo_kl": _wander(random, n, 2e-4, 0.0),
        "critic/score/mean": reward, "critic/rewards/mean": reward,
        "critic/score/max": np.ones(n), "critic/score/min": np.zeros(n), "critic/rewards/max": np.ones(n),
        "critic/rewards/min": np.zeros(n), "critic/advantages/mean": _wander(random, n, 0.01),
        "critic/advantages/max": np.full(n, 2.4748), "critic/advantages/min": np.full(n, -2.4748),
        "response_length/mean": 500.0 * np.exp(_wander(random, n, 0.05)),
        "response_length/clip_ratio": np.clip(0.03 + _wander(random, n, 0.01), 0.0, 1.0),
    }  # fmt: skip
    named = {name.replace("__", "/"): part for name, part in other.items()}
    return LoggedRun.of("verl", values | named, "grpo", clip_low=0.2, clip_high=0.2, group_size=8)


@_complaint
def loss_around_zero(random: Random) -> Made:
    """The loss of GRPO starts at 0, is negative as often as not, and rises with the KL: its value is no measure of learning."""
    n = 200
    loss = _wander(random, n, 0.002, 0.0) + np.linspace(0.0, 0.02, n)
    loss[:3] = 0.0
    return _trl(random, n, loss=loss, kl=np.linspace(0.0, 0.5, n) * np.exp(_wander(random, n, 0.1)))


@_complaint
def clip_ratio_zero_on_policy(random: Random) -> Made:
    """One update per batch: nothing can be clipped, every clip ratio is exactly 0."""
    n = 150
    zero = np.zeros(n)
    names = ("low_mean", "low_min", "high_mean", "high_max", "region_mean")
    return _trl(random, n, **{f"clip_ratio__{name}": zero for name in names})


@_complaint
def clip_fraction_zero_in_a_recording(random: Random) -> Made:
    """The same with rows: the ratio is exactly 1 on all tokens, and the reward is learned."""
    return simulate(Settings(seed=_seed(random), steps=24, kl_coef=0.0))


@_complaint
def gradient_norm_above_its_clip(random: Random) -> Made:
    """The norm is logged before it is clipped, so that most steps lie above max_grad_norm."""
    run = simulate(Settings(seed=_seed(random), steps=30, max_grad_norm=0.02, step_size=60.0))
    assert float(np.median(run.arrays["grad_norm"])) > 0.02
    return run


@_complaint
def advantages_of_tokens_below_zero(random: Random) -> Made:
    """Longer responses earn less, so that the mean advantage over tokens is negative although that over sequences is 0."""
    return _of_length(random, -1.0)


@_complaint
def advantages_of_tokens_above_zero(random: Random) -> Made:
    """The other way round."""
    return _of_length(random, 1.0)


def _of_length(random: Random, sign: float) -> SimulatedRun:
    run = simulate(Settings(seed=_seed(random), steps=24, reward="sparse"))
    length = run.arrays["response_length"].astype(np.float64)
    longer = length > by_group(run, length, lambda part: float(np.median(part)))
    return _rewarded(run, np.where(longer == (sign > 0), 1.0, 0.0))


def _rewarded(run: SimulatedRun, reward: Floats) -> SimulatedRun:
    """The run with a reward of one component, and the advantages and the log that follow."""
    changed = with_values(run, **{"reward": reward, "score": reward, "reward/success": reward})
    mean, deviation = (by_group(run, reward, function) for function in (np.mean, lambda part: float(np.std(part, ddof=1))))
    return relogged(with_row_advantages(changed, (reward - mean) / (deviation + 1e-6)))


@_complaint
def advantages_of_mean_zero(random: Random) -> Made:
    """The logged mean advantage is 0 at every step: it is centred by construction."""
    return _verl(random, critic__advantages__mean=_wander(random, 150, 1e-8, 0.0))


@_complaint
def ratio_not_exactly_one_in_half_precision(random: Random) -> Made:
    """Other batch shapes choose other kernels: a fifth of the rows is off by a few thousandths before any update."""
    return simulate(
        Settings(
            seed=_seed(random), steps=24, bfloat16=True, trainer_noise=0.01, engine_noise=0.03, minibatches=2, step_size=10.0
        )
    )


@_complaint
def kl_slightly_negative(random: Random) -> Made:
    """The mean log-ratio to the reference falls below 0 by chance where the policy has hardly moved."""
    n = 120
    return LoggedRun.of(
        "trl",
        {
            "objective/kl": _wander(random, n, 0.02, 0.0) + np.linspace(0.0, 0.01, n),
            "objective/entropy": 40 + _wander(random, n, 1),
            "objective/scores": 0.2 + np.linspace(0, 0.3, n) + _wander(random, n, 0.1), "policy/approxkl_avg": np.full(n, 1e-3),
            "policy/clipfrac_avg": np.full(n, 0.01), "loss/policy_avg": _wander(random, n, 0.01),
            "loss/value_avg": 0.3 * np.exp(_wander(random, n, 0.1)), "val/ratio": 1 + _wander(random, n, 1e-3, 0.0),
            "lr": np.linspace(1e-6, 1e-7, n),
        },
        "ppo",
    )  # fmt: skip


@_complaint
def kl_negative_in_a_recording(random: Random) -> Made:
    """The same with rows: a policy that moves next to nothing, whose k1 is as often below 0 as above."""
    return simulate(Settings(seed=_seed(random), steps=24, step_size=0.5, learning_rate=1e-5))


@_complaint
def learning_rate_printed_as_zero(random: Random) -> Made:
    """A console that prints three decimals shows 1e-6 as 0.000."""
    n = 150
    return _verl(random, n, actor__lr=np.zeros(n))


@_complaint
def learning_rate_zero_at_the_first_step(random: Random) -> Made:
    """A warm-up begins at 0."""
    return simulate(Settings(seed=_seed(random), steps=24, warm_up=8))


@_complaint
def rows_in_any_order(random: Random) -> Made:
    """The rows of a step were shuffled after sampling: groups go by their ids, not by place."""
    run = simulate(Settings(seed=_seed(random), steps=24))
    order = np.lexsort((random.random(len(run.splits) - 1), run.arrays["step"]))
    return run.take(order)


def _standardised(random: Random, ddof: int, eps: float) -> SimulatedRun:
    run = simulate(Settings(seed=_seed(random), steps=24))
    reward = run.arrays["reward"]
    mean, deviation = (by_group(run, reward, function) for function in (np.mean, lambda part: float(np.std(part, ddof=ddof))))
    made = with_row_advantages(run, (reward - mean) / (deviation + eps)).with_config(adv_ddof=None, adv_eps=None)
    return relogged(replace(made, info=replace(made.info, trainer=None, trainer_version=None)))


@_complaint
def standard_deviation_over_n(random: Random) -> Made:
    """The advantages divide by the standard deviation with ddof 0, and nothing says which is meant."""
    return _standardised(random, 0, 1e-8)


@_complaint
def larger_epsilon(random: Random) -> Made:
    """The same with ddof 1 and an epsilon of 1e-4."""
    return _standardised(random, 1, 1e-4)


@_complaint
def entropy_rises_below_one(random: Random) -> Made:
    """A higher upper clip bound lets the entropy rise from .3 to .8 while the reward grows."""
    n = 150
    rising = (0.3 + 0.5 * np.arange(n) / n) * np.exp(_wander(random, n, 0.04))
    return _verl(random, n, actor__entropy=rising)


@_complaint
def many_clipped_with_a_narrow_range(random: Random) -> Made:
    """GSPO clips whole sequences at 3e-4: two sequences of five are outside by design."""
    return simulate(
        Settings(seed=_seed(random), steps=24, algorithm="gspo", clip_low=3e-4, clip_high=4e-4, minibatches=4, step_size=8.0)
    )


@_complaint
def many_clipped_in_a_log(random: Random) -> Made:
    """The same as verl logs it."""
    n = 150
    made = _verl(random, n, actor__pg_clipfrac=0.4 * np.exp(_wander(random, n, 0.08)))
    info = replace(made.info, algorithm="gspo", config=replace(made.info.config, clip_low=3e-4, clip_high=4e-4))
    return replace(made, info=info)


@_complaint
def sampled_and_trained_at_the_same_temperature(random: Random) -> Made:
    """Sampled at .6, and both sides divide the logits by it: no column is a stretched copy of another."""
    return simulate(Settings(seed=_seed(random), steps=24, temperature=0.6, engine_noise=0.03))


@_complaint
def importance_weight_of_long_sequences(random: Random) -> Made:
    """The product of 300 honest ratios is far from 1 although no token is: the logged mean weight is .6."""
    n = 150
    return _trl(
        random, n,
        sampling__sampling_logp_difference__mean=0.012 * np.exp(_wander(random, n, 0.05)),
        sampling__sampling_logp_difference__max=0.4 * np.exp(_wander(random, n, 0.1)),
        sampling__importance_sampling_ratio__mean=0.6 + _wander(random, n, 0.05),
        sampling__importance_sampling_ratio__min=0.02 * np.exp(_wander(random, n, 0.2)),
        sampling__importance_sampling_ratio__max=np.full(n, 3.0),
    )  # fmt: skip


@_complaint
def weights_of_sequences_in_a_recording(random: Random) -> Made:
    """The same with rows: unbiased numeric noise of .05 nat per token, and one truncated weight per sequence."""
    run = simulate(Settings(seed=_seed(random), steps=24, max_length=40, ending_offset=-2.0))
    mask, noise = run.arrays["response_mask"], 0.05 * random.standard_normal(run.splits[-1]) + 0.05**2 / 2
    noisy = shifted(run, np.where(mask, noise, 0.0), "rollout_logprob")
    difference = np.where(mask, noisy.arrays["old_logprob"].astype(np.float64) - noisy.arrays["rollout_logprob"], 0.0)
    weight = np.minimum(np.exp(np.bincount(run.rows, difference)), 2.0)[run.rows]
    return with_values(noisy.with_config(is_correction="sequence"), is_weight=np.where(mask, weight, 1.0))


@_complaint
def eight_sequences_a_step(random: Random) -> Made:
    """Two groups of four: every mean jumps about, and no single step tells anything."""
    return simulate(Settings(seed=_seed(random), steps=40, prompts=2, group_size=4, reward="sparse", step_size=6.0))


@_complaint
def ended_by_stop_strings(random: Random) -> Made:
    """Responses end at a string, not at the end token: there is none to train on."""
    run = simulate(Settings(seed=_seed(random), steps=24))
    return relogged(_without_tokens(run, run.arrays["token_id"] == END))


def _without_tokens(run: SimulatedRun, gone: np.ndarray) -> SimulatedRun:
    """The run without some tokens; rows that would be empty go too."""
    left = np.bincount(run.rows, ~gone, minlength=len(run.splits) - 1).astype(np.int64)
    splits = np.concatenate([[0], np.cumsum(left)]).astype(np.int64)
    arrays = {name: values[~gone] if is_token(name) else values.copy() for name, values in run.arrays.items()}
    arrays |= {name: left.astype(np.int32) for name in ("response_length", "stored_length")}
    shorter = replace(run, arrays=arrays, splits=splits)
    return shorter.take(np.flatnonzero(left > 0))


@_complaint
def turns_that_end_with_tool_calls(random: Random) -> Made:
    """Most turns end with a call, whose output is not trained on."""
    return simulate(Settings(seed=_seed(random), steps=24, tools=True))


@_complaint
def longer_and_better(random: Random) -> Made:
    """Reasoning grows to five times its length while the reward doubles."""
    n = 200
    grown = 1 - np.exp(-np.arange(n) / 80)
    return _verl(
        random, n,
        response_length__mean=300 * (1 + 4 * grown) * np.exp(_wander(random, n, 0.05)),
        critic__score__mean=np.clip(0.3 + 0.4 * grown + _wander(random, n, 0.02), 0, 1),
        critic__rewards__mean=np.clip(0.3 + 0.4 * grown + _wander(random, n, 0.02), 0, 1),
    )  # fmt: skip


@_complaint
def harder_prompts_from_a_step_on(random: Random) -> Made:
    """The second data set of a curriculum begins, and with it another level of reward and another length."""
    run = simulate(
        Settings(
            seed=_seed(random), steps=40, prompts=16, reward="sparse", step_size=8.0, max_length=40,
            sources=(Source("easy", difficulty=-0.1, ending=0.5), Source("hard", difficulty=0.06, ending=-1.0)),
        )
    )  # fmt: skip
    late = run.arrays["step"] >= 20
    return relogged(run.take(np.flatnonzero((run.arrays["data_source"] == "hard") == late)))


@_complaint
def filtered_from_a_step_on(random: Random) -> Made:
    """Dynamic sampling is switched on: groups without variance vanish from the batch, and the mean reward moves with them."""
    run = simulate(Settings(seed=_seed(random), steps=40, prompts=16, reward="sparse", difficulty=0.06, step_size=8.0))
    differs = by_group(run, run.arrays["reward"], np.ptp) > 0
    return relogged(run.take(np.flatnonzero(differs | (run.arrays["step"] < 20))))


@_complaint
def paused_and_aborted_by_design(random: Random) -> Made:
    """The engine is interrupted for every update: responses go on under new weights or are given up, and weights correct it."""
    return simulate(Settings(seed=_seed(random), steps=24, partial=0.4, aborted=0.06, correction=True, step_size=10.0))


@_complaint
def ratio_one_and_no_mini_batch_known(random: Random) -> Made:
    """One update per batch, and the recording does not number mini-batches: a ratio of 1 says nothing."""
    run = simulate(Settings(seed=_seed(random), steps=24))
    gone = ("epoch", "minibatch", "microbatch", "rollout_step")
    known = run.with_config(epochs=None, minibatches=None)
    return replace(known, arrays={name: values for name, values in known.arrays.items() if name not in gone})


def _forward_pass_of_another_model(random: Random) -> Made:
    """No number is NaN, the ratio is 1, the reward rises; but the trainer gives the sampled tokens next to no probability."""
    run = simulate(Settings(seed=_seed(random), steps=24))
    guess = -12.0 + 2.0 * random.standard_normal(run.splits[-1])
    lost = np.minimum(guess - run.arrays["old_logprob"], -0.5 - run.arrays["old_logprob"])
    return relogged(shifted(run, lost, "logprob", "old_logprob", "ref_logprob"))


_register(_forward_pass_of_another_model, faulty=True)
