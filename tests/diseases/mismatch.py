"""Logprobs that are not those of the policy that they are said to be of."""

from __future__ import annotations

import math

import numpy as np

from tests.diseases.catalogue import injected, simulated
from tests.simulation.inject import onset, rolled, shifted, with_values
from tests.simulation.run import SimulatedRun
from tests.simulation.settings import Settings

Random = np.random.Generator
_PAIR = "rollout-trainer-mismatch"
_ALIGNED = ("rollout_logprob",)


@simulated("stale-old-logprob")
def old_logprob_of_earlier_weights(seed: int) -> Settings:
    """old_logprob was computed with the weights of four steps before: the ratio is not 1 before any update."""
    return Settings(seed=seed, old_lag=4)


@injected("stale-old-logprob", _PAIR, "ratio-saturation", "logged-metric-mismatch", needs=("old_logprob",))
def old_logprob_of_another_policy(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The same, imposed: old_logprob, also against the rollout, is that of a policy .15 nat away; E[exp(old - new)] = 1 holds."""
    noise = 0.15 * random.standard_normal(run.splits[-1]) - 0.15**2 / 2
    return shifted(run, noise, "old_logprob")


@simulated("stale-old-logprob", _PAIR, "inert-ratio")
def samples_of_old_weights_uncorrected(seed: int) -> Settings:
    """Samples are up to eight versions old, old_logprob is recomputed with the newest weights, nothing corrects for it.

    The versions are recorded. The difference to the engine's logprobs is a mismatch in its own
    right, and the ratio is 1 although the samples are not of the policy.
    """
    return Settings(seed=seed, lag=8, step_size=40.0)


@simulated("stale-old-logprob", _PAIR, "inert-ratio")
def engine_never_synchronised(seed: int) -> Settings:
    """The engine samples with the first weights for ever, and stamps the samples with the newest version.

    The mismatch grows from nothing, and the ratio is 1 although the samples are not of the policy.
    """
    return Settings(seed=seed, frozen_engine=True, step_size=30.0)


@injected("logprob-misaligned", _PAIR, "missing-rollout-logprob", needs=_ALIGNED)
def rollout_logprob_late_by_one(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Every rollout logprob stands one token too late."""
    return rolled(run, "rollout_logprob", np.ones(len(run.splits) - 1, np.int64))


@injected("logprob-misaligned", _PAIR, "missing-rollout-logprob", needs=_ALIGNED)
def rollout_logprob_early_by_one(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Every rollout logprob stands one token too early."""
    return rolled(run, "rollout_logprob", np.full(len(run.splits) - 1, -1))


@injected("logprob-misaligned", _PAIR, "missing-rollout-logprob", needs=(*_ALIGNED, "prompt_length"))
def rollout_logprob_shifted_by_row(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The shift depends on the prompt's length, from none to three tokens."""
    return rolled(run, "rollout_logprob", run.arrays["prompt_length"].astype(np.int64) % 4)


@injected("logprob-misaligned", _PAIR, "missing-rollout-logprob", needs=_ALIGNED)
def rollout_logprob_shifted_in_some_rows(run: SimulatedRun, random: Random) -> SimulatedRun:
    """A third of the rows, as those with a tool call, is late by one token."""
    return rolled(run, "rollout_logprob", (random.random(len(run.splits) - 1) < 0.33).astype(np.int64))


@simulated("temperature-mismatch", _PAIR)
def trainer_forgets_temperature_below_one(seed: int) -> Settings:
    """Sampled at .7, trained at 1."""
    return Settings(seed=seed, temperature=0.7, trainer_temperature=1.0)


@simulated("temperature-mismatch", _PAIR)
def trainer_forgets_temperature_above_one(seed: int) -> Settings:
    """Sampled at 1.3, trained at 1."""
    return Settings(seed=seed, temperature=1.3, trainer_temperature=1.0)


@simulated("temperature-mismatch", _PAIR)
def engine_reports_raw_logprobs_below_one(seed: int) -> Settings:
    """Sampled and trained at .7, the engine reports logprobs at 1."""
    return Settings(seed=seed, temperature=0.7, reported_temperature=1.0)


@simulated("temperature-mismatch", _PAIR)
def engine_reports_raw_logprobs_above_one(seed: int) -> Settings:
    """Sampled and trained at 1.3, the engine reports logprobs at 1."""
    return Settings(seed=seed, temperature=1.3, reported_temperature=1.0)


@injected("temperature-mismatch", _PAIR, needs=_ALIGNED)
def rollout_logprob_tempered(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Imposed on any run: rollout logprobs are 1.4 times as steep, shifted so that E[exp(train - rollout)] = 1 holds."""
    mask, rollout = run.arrays["response_mask"], 1.4 * run.arrays["rollout_logprob"].astype(np.float64)
    ratio = np.exp(run.arrays["old_logprob"].astype(np.float64) - rollout)[mask]
    shift = np.log(np.mean(ratio[np.isfinite(ratio)]))
    return with_values(run, rollout_logprob=np.where(mask, np.minimum(rollout + shift, 0.0), run.arrays["rollout_logprob"]))


@simulated("truncated-sampling-mismatch", _PAIR)
def nucleus_sampling_renormalised(seed: int) -> Settings:
    """Sampled with top_p .9; the engine's logprobs are renormalised over the nucleus, the trainer's are not."""
    return Settings(seed=seed, top_p=0.9)


@injected("truncated-sampling-mismatch", _PAIR, needs=_ALIGNED)
def rollout_logprob_renormalised(run: SimulatedRun, random: Random) -> SimulatedRun:
    """Imposed on any run: each rollout logprob is higher by minus the logarithm of a kept mass between .8 and .95."""
    mask, rollout = run.arrays["response_mask"], run.arrays["rollout_logprob"].astype(np.float64)
    kept = random.uniform(0.8, 0.95, len(rollout))
    likely = run.with_config(top_p=0.8)
    return with_values(likely, rollout_logprob=np.where(mask, np.minimum(rollout - np.log(kept), 0.0), rollout))


@simulated("truncated-sampling-mismatch", _PAIR)
def nucleus_sampling_mild(seed: int) -> Settings:
    """The same with top_p .97."""
    return Settings(seed=seed, top_p=0.97)


@injected("missing-rollout-logprob", _PAIR, needs=_ALIGNED)
def rollout_logprob_filled_with_zero(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The last three tokens of every row have the rollout logprob 0, since the engine gave none."""
    behind = run.splits[1:][run.rows] - np.arange(run.splits[-1])
    return with_values(run, rollout_logprob=np.where(behind <= 3, 0.0, run.arrays["rollout_logprob"]))


@injected("missing-rollout-logprob", needs=_ALIGNED)
def rollout_logprob_null(run: SimulatedRun, random: Random) -> SimulatedRun:
    """A third of the rows has no rollout logprob at all."""
    gone = (random.random(len(run.splits) - 1) < 0.33)[run.rows]
    return with_values(run, rollout_logprob=np.where(gone, np.nan, run.arrays["rollout_logprob"]))


@injected(_PAIR, needs=_ALIGNED)
def trainer_forward_broken(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The trainer's forward pass is not the engine's model: its logprobs are those of noise, and old and new agree on them."""
    noise = -9.0 + 3.0 * random.standard_normal(run.splits[-1]) - run.arrays["old_logprob"]
    change = np.minimum(noise, -0.5 - run.arrays["old_logprob"])
    broken = shifted(run, change, "logprob", "old_logprob", "ref_logprob")
    names = [name for name in ("entropy", "old_entropy") if name in run.arrays]
    most = math.log(run.info.vocab_size) if run.info.vocab_size else math.inf
    return with_values(broken, **{name: np.minimum(run.arrays[name] + 0.8, most) for name in names})


@injected(_PAIR, "inert-ratio", needs=_ALIGNED)
def engine_weights_corrupted(run: SimulatedRun, random: Random) -> SimulatedRun:
    """From a step on the engine's logprobs are .5 nat away, with E[exp(train - rollout)] = 1, and the ratio hides it."""
    late = run.token_step >= onset(run)
    noise = 0.5 * random.standard_normal(run.splits[-1]) + 0.125
    return shifted(run, np.where(late & run.arrays["response_mask"], noise, 0.0), "rollout_logprob")
