"""Faults of gradients, schedules and numbers that are not finite, by cause.

Those that are told as information have none here: what is told so of a healthy run may begin earlier, and comes first then.
"""

from __future__ import annotations

import numpy as np

from tests.diseases.catalogue import graded, injected, simulated
from tests.simulation.inject import Floats, extended, onset, scaled, with_reward, with_values
from tests.simulation.logs import relogged
from tests.simulation.run import Array, SimulatedRun
from tests.simulation.settings import Settings

Random = np.random.Generator
_EVERYTHING = (
    "impossible-values", "kl-spike", "reward-drift", "reward-flatline", "zero-variance-groups", "duplicate-samples",
    "looping-responses", "entropy-collapse", "entropy-explosion", "ratio-saturation", "stale-old-logprob", "advantage-mismatch",
    "rollout-trainer-mismatch", "missing-rollout-logprob", "logprob-misaligned", "sudden-collapse", "mask-misses-eos",
    "same-answer-rewarded", "logged-metric-mismatch", "grad-vanished", "inert-ratio", "kl-flatline", "wrong-reference",
    "reward-variance-shift", "rewards-too-rare", "grad-zero", "near-zero-variance-groups",
)  # fmt: skip
"""What NaN in the weights shows next; it is folded under the cause."""


def _per_step(run: SimulatedRun, factor: Array) -> SimulatedRun:
    return scaled(run, "grad_norm", lambda step: factor[np.searchsorted(np.unique(run.arrays["step"]), step)])


@injected("non-finite", *_EVERYTHING, log=False, anywhere=False, cause="old-logprob-not-finite")
def nan_then_one_token_for_ever(run: SimulatedRun, random: Random) -> SimulatedRun:
    """At a step old_logprob is NaN on some rows, then the gradient is, and from the next step on every token is the same."""
    first = onset(run, 0.6)
    made = relogged(run)
    step = made.arrays["step"]
    rows = (step == first) & (random.random(len(step)) < 0.3) | (step > first)
    token = rows[made.rows]
    names = ("logprob", "entropy", "old_entropy")
    after = (step > first)[made.rows]
    values: dict[str, Array] = {name: np.where(after, np.nan, made.arrays[name]) for name in names}
    values |= {"old_logprob": np.where(token, np.nan, made.arrays["old_logprob"])}
    values |= {"token_id": np.where(after, 5, made.arrays["token_id"])}
    values |= {"grad_norm": np.where(step >= first, np.nan, made.arrays["grad_norm"])}
    return with_values(with_reward(made, np.where(step > first, 0.0, made.arrays["reward"])), **values)


@injected("non-finite", *_EVERYTHING, "reward-gap", "broken-groups", log=False, anywhere=False, cause="advantage-undefined")
def advantages_of_nothing(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """From a step on some advantages are 0/0, and the gradient with them."""
    step = run.arrays["step"]
    bad = (step >= onset(run, 0.6)) & (np.arange(len(step)) % 5 == 0)
    made = with_values(run, advantage=np.where(bad[run.rows], np.nan, run.arrays["advantage"]))
    return with_values(made, grad_norm=np.where(step >= onset(run, 0.6), np.nan, made.arrays["grad_norm"]))


@injected("non-finite", "logged-metric-mismatch", log=False, cause="column-without-numbers", needs=("grad_norm",))
def advantages_lost_by_the_recorder(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The training is sound, and the recorder was handed advantages that are NaN throughout."""
    return with_values(relogged(run), advantage=np.full_like(run.arrays["advantage"], np.nan))


@injected("non-finite", "advantage-mismatch", *_EVERYTHING, log=False, anywhere=False, cause="reward-missing")
def verifier_fails_at_times(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The recorded rewards of some responses are NaN; the advantages were computed with what they were."""
    reward = run.arrays["reward"]
    return with_values(relogged(run), reward=np.where(random.random(len(reward)) < 0.03, np.nan, reward))


@injected("non-finite", "missing-rollout-logprob", log=False, cause="rollout-logprobs-end", needs=("rollout_logprob",))
def engine_stops_returning_logprobs(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """From a step on every logprob of the engine is NaN."""
    late = (run.arrays["step"] >= onset(run, 0.6))[run.rows]
    return with_values(run, rollout_logprob=np.where(late, np.nan, run.arrays["rollout_logprob"]))


@graded("exponent-overflow", "non-finite", "advantage-outside-mask", sizes=(50.0, 70.0, 100.0, 200.0), least_size=100.0,
        unit="nat", cause="padding-overflows", least="info", needs=("grad_norm",))  # fmt: skip
def padding_overflows(run: SimulatedRun, random: Random, size: float, first: int) -> SimulatedRun:  # noqa: ARG001
    """Two positions of padding follow each response, with -size in old_logprob; the gradient is NaN from a step on."""
    longer = extended(run, np.full(len(run.splits) - 1, 2, np.int64), {"logprob": -1.0, "old_logprob": -size})
    step = longer.arrays["step"]
    return with_values(longer, grad_norm=np.where((step >= first) & (size > 88.0), np.nan, longer.arrays["grad_norm"]))


@injected("grad-norm-differs-by-rank", cause="gradient-clipped-by-shard", anywhere=False)
def each_rank_clips_its_shard(run: SimulatedRun, random: Random) -> SimulatedRun:
    """Two ranks report norms that differ by a tenth to a half."""
    rank = np.arange(len(run.arrays["step"])) % 2
    factor = 1.0 + rank * (0.1 + 0.4 * random.random(len(np.unique(run.arrays["step"]))))[run.arrays["step"]]
    return with_values(run, rank=rank, grad_norm=run.arrays["grad_norm"] * factor)


@injected("grad-norm-logged-clipped", least="info", needs=("grad_norm",))
def norm_after_clipping(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The norm is logged after it was clipped to .2, which most steps reach."""
    norm = run.arrays["grad_norm"]
    level = 0.2 / np.quantile(norm, 0.3)
    del random
    return with_values(run, grad_norm=np.minimum(norm * level, 0.2)).with_config(max_grad_norm=0.2)


@injected("grad-norm-growth", "reward-drift", "grad-norm-spike", "reward-variance-shift", least="info", needs=("grad_norm",),
          damage="optim.grad_norm")  # fmt: skip
def gradient_grows(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The gradient grows thirty-fold from a third of the run on."""
    steps = np.unique(run.arrays["step"])
    part = np.clip((np.arange(len(steps)) / len(steps) - 0.3) / 0.5, 0.0, 1.0)
    return _per_step(run, np.exp(np.log(40.0) * part))


@injected("warm-up-too-long", "warm-up-never-ends", cause="warm-up-takes-the-run", needs=("learning_rate",))
def warm_up_of_nearly_the_run(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """warmup_ratio is .95."""
    return run.with_config(native={"warmup_ratio": 0.95, "max_steps": 400})


@injected("grad-clipped-always", least="info", anywhere=False, needs=("grad_norm",))
def gradient_cut_at_every_step(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The bound is a fifth of the usual norm."""
    return run.with_config(max_grad_norm=0.2 * float(np.median(run.arrays["grad_norm"])))


@injected("adapter-rate-too-low", "kl-flatline", cause="adapter-learns-too-slowly", anywhere=False)
def adapter_that_stays(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """LoRA at 1e-6: the policy and the reference agree throughout."""
    near = np.float32(1e-4) * np.random.default_rng(0).standard_normal(int(run.splits[-1]))
    ahead: Floats = np.minimum(run.arrays["logprob"] + near, -1e-4)
    return with_values(run, ref_logprob=ahead).with_config(native={"peft_config": {"r": 16, "lora_alpha": 32}})


@injected("optimizer-state-lost", "kl-spike", "ratio-saturation", "grad-norm-spike", anywhere=False, into="two_epochs",
          cause="resumed-without-optimizer")  # fmt: skip
def resumed_without_its_optimizer(run: SimulatedRun, random: Random) -> SimulatedRun:
    """In mid-run the schedule warms up again over five steps, and the first updates are ten times as large."""
    first = onset(run, 0.5)
    since = run.arrays["step"] - first
    part = np.where(since < 0, 1.0, np.clip((since + 1.0) / 6.0, 0.0, 1.0))
    late = (since >= 0) & (since < 3) & (run.arrays["epoch"] > 0)
    noise = 0.15 * random.standard_normal(int(run.splits[-1])) * late[run.rows]
    moved = np.minimum(run.arrays["logprob"] + noise, -1e-4)
    rate = np.where(
        since < 0, run.arrays["learning_rate"], 0.1 * run.arrays["learning_rate"] + 0.9 * run.arrays["learning_rate"] * part
    )
    rate = np.where((since >= 0) & (since < 6), run.arrays["learning_rate"] * (0.05 + 0.15 * since), rate)
    return with_values(run, logprob=moved, learning_rate=rate)


@injected("grad-zero", "grad-vanished", cause="loss-detached")
def logprobs_are_detached(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """From a third of the run on the loss carries no gradient, while groups differ."""
    return scaled(run, "grad_norm", lambda step: np.where(step >= onset(run, 0.33), 0.0, 1.0))


@graded("grad-zero", "grad-vanished", sizes=(3.0, 4.0, 5.0, 10.0), least_size=5.0, unit="steps of zeros", cause="loss-detached")
def gradient_has_just_gone(run: SimulatedRun, random: Random, size: float, first: int) -> SimulatedRun:  # noqa: ARG001
    """The gradient is exactly 0 at the last few steps."""
    steps = np.unique(run.arrays["step"])
    return scaled(run, "grad_norm", lambda step: np.where(step >= steps[-int(size)], 0.0, 1.0))


@graded(
    "grad-norm-spike",
    "mismatch-before-explosion",
    sizes=(10.0, 20.0, 50.0, 200.0),
    least_size=50.0,
    unit="times",
    cause="loss-scale-changed",
)
def loss_scale_jumps(run: SimulatedRun, random: Random, size: float, first: int) -> SimulatedRun:  # noqa: ARG001
    """From a step on the gradient is a multiple of what it was."""
    return scaled(run, "grad_norm", lambda step: np.where(step >= first, size, 1.0))


@injected("learning-rate-zero", cause="learning-rate-ran-out")
def schedule_ends_early(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The schedule ends at seven tenths of the run."""
    return scaled(run, "learning_rate", lambda step: np.where(step >= onset(run, 0.7), 0.0, 1.0))


@simulated("learning-rate-zero", "kl-flatline", "reward-flatline", "inert-ratio", cause="learning-rate-never-set")
def learning_rate_was_never_set(seed: int) -> Settings:
    """The learning rate is 0: the policy never moves."""
    return Settings(seed=seed, learning_rate=0.0, step_size=0.0)
