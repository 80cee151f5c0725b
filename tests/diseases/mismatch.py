"""Logprobs that are not those of the policy that they are said to be of."""

from __future__ import annotations

import math

import numpy as np

from tests.diseases.catalogue import graded, injected, simulated
from tests.simulation.inject import onset, rolled, shifted, with_values
from tests.simulation.run import SimulatedRun
from tests.simulation.settings import Settings
from tests.simulation.world import simulate

Random = np.random.Generator
_PAIR = "rollout-trainer-mismatch"
_ALIGNED = ("rollout_logprob",)


@injected("logprob-misaligned", _PAIR, "missing-rollout-logprob", needs=_ALIGNED, cause="logprobs-shifted")
def rollout_logprob_late_by_one(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Every rollout logprob stands one token too late."""
    return rolled(run, "rollout_logprob", np.ones(len(run.splits) - 1, np.int64))


@injected("logprob-misaligned", _PAIR, "missing-rollout-logprob", needs=_ALIGNED, cause="logprobs-shifted")
def rollout_logprob_early_by_one(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Every rollout logprob stands one token too early."""
    return rolled(run, "rollout_logprob", np.full(len(run.splits) - 1, -1))


@injected("logprob-misaligned", _PAIR, "missing-rollout-logprob", needs=(*_ALIGNED, "prompt_length"), cause="columns-cut-by-row",
          asks=(3, 16))  # fmt: skip
def rollout_logprob_shifted_by_row(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The shift depends on the prompt's length, from none to three tokens."""
    return rolled(run, "rollout_logprob", run.arrays["prompt_length"].astype(np.int64) % 4)


@graded(
    "logprob-misaligned", _PAIR, "missing-rollout-logprob", "mismatch-in-some-rows", needs=_ALIGNED, cause="some-rows-shifted",
    sizes=(0.01, 0.02, 0.05, 0.33), least_size=0.05, unit="of the rows", asks=(3, 16),
)  # fmt: skip
def rollout_logprob_shifted_in_some_rows(run: SimulatedRun, random: Random, size: float, first: int) -> SimulatedRun:
    """Some rows, as those with a tool call, are late by one token."""
    late = (random.random(len(run.splits) - 1) < size) & (run.arrays["step"] >= first)
    return rolled(run, "rollout_logprob", late.astype(np.int64))


@injected("logprob-misaligned", _PAIR, "missing-rollout-logprob", "ratio-saturation", "stale-old-logprob",
          needs=("old_logprob",), cause="trainer-passes-shifted")  # fmt: skip
def old_logprob_late_by_one(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Every old logprob stands one token too late: the trainer's two passes shift differently."""
    return rolled(run, "old_logprob", np.ones(len(run.splits) - 1, np.int64))


@simulated("temperature-mismatch", _PAIR, cause="trainer-lacks-temperature")
def temperature_off_by_a_twentieth(seed: int) -> Settings:
    """Sampled at .95, trained at 1."""
    return Settings(seed=seed, temperature=0.95, trainer_temperature=1.0)


@simulated("temperature-mismatch", _PAIR, cause="trainer-lacks-temperature")
def trainer_forgets_temperature_below_one(seed: int) -> Settings:
    """Sampled at .7, trained at 1."""
    return Settings(seed=seed, temperature=0.7, trainer_temperature=1.0)


@simulated("temperature-mismatch", _PAIR, cause="trainer-lacks-temperature")
def trainer_forgets_temperature_above_one(seed: int) -> Settings:
    """Sampled at 1.3, trained at 1."""
    return Settings(seed=seed, temperature=1.3, trainer_temperature=1.0)


@injected("temperature-mismatch", _PAIR, anywhere=False, cause="engine-at-other-temperature")
def engine_samples_below_the_configured_temperature(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Sampled at .7, though 1 is configured, at which the trainer computes."""
    settings = Settings(seed=int(random.integers(1 << 16)), temperature=0.7, trainer_temperature=1.0)
    return simulate(settings).with_config(temperature=1.0)


@injected("temperature-mismatch", _PAIR, anywhere=False, cause="engine-at-other-temperature")
def engine_leaves_the_temperature_out(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Sampled at 1, though .7 is configured, at which the trainer computes."""
    settings = Settings(seed=int(random.integers(1 << 16)), temperature=1.0, trainer_temperature=0.7)
    return simulate(settings).with_config(temperature=0.7)


@simulated("temperature-mismatch", _PAIR, cause="engine-reports-raw-logprobs")
def engine_reports_raw_logprobs_below_one(seed: int) -> Settings:
    """Sampled and trained at .7, the engine reports logprobs at 1."""
    return Settings(seed=seed, temperature=0.7, reported_temperature=1.0)


@simulated("temperature-mismatch", _PAIR, cause="engine-reports-raw-logprobs")
def engine_reports_raw_logprobs_above_one(seed: int) -> Settings:
    """Sampled and trained at 1.3, the engine reports logprobs at 1."""
    return Settings(seed=seed, temperature=1.3, reported_temperature=1.0)


@simulated("temperature-mismatch", cause="trainer-lacks-temperature")
def trainer_temperature_off_by_little(seed: int) -> Settings:
    """Sampled at .95, trained at 1."""
    return Settings(seed=seed, temperature=0.95, trainer_temperature=1.0)


@simulated("temperature-mismatch", cause="engine-reports-raw-logprobs")
def engine_temperature_off_by_little(seed: int) -> Settings:
    """Sampled and trained at 1.05, the engine reports logprobs at 1."""
    return Settings(seed=seed, temperature=1.05, reported_temperature=1.0)


def _tempered(run: SimulatedRun, size: float, first: int, last: int) -> SimulatedRun:
    """The run whose rollout logprobs are steeper by ``size`` from one step to another; E[exp(train - rollout)] = 1 holds.

    The configured temperature is the one that makes them so.
    """
    rollout = (1.0 + size) * run.arrays["rollout_logprob"].astype(np.float64)
    late = run.arrays["response_mask"] & (run.token_step >= first) & (run.token_step <= last)
    ratio = np.exp(run.arrays["old_logprob"].astype(np.float64) - rollout)[late]
    shift = np.log(np.mean(ratio[np.isfinite(ratio)]))
    made = with_values(run, rollout_logprob=np.where(late, rollout + shift, run.arrays["rollout_logprob"]))
    return made.with_config(temperature=1.0 / (1.0 + size))


@graded(
    "temperature-mismatch", _PAIR, "stale-old-logprob", needs=_ALIGNED, cause="trainer-lacks-temperature",
    sizes=(0.02, 0.05, 0.1, 0.4),
    least_size=0.05, unit="of the temperature",
)  # fmt: skip
def rollout_logprob_tempered(run: SimulatedRun, random: Random, size: float, first: int) -> SimulatedRun:  # noqa: ARG001
    """Rollout logprobs are steeper by ``size`` from one step on, which looks like an engine that falls behind as well."""
    return _tempered(run, size, first, int(run.arrays["step"].max()))


@injected("temperature-mismatch", _PAIR, "stale-old-logprob", needs=_ALIGNED, cause="trainer-lacks-temperature")
def rollout_logprob_tempered_for_a_while(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The same for a quarter of the run, in its midst."""
    return _tempered(run, 0.2, onset(run, 0.4), onset(run, 0.65))


@simulated("truncated-sampling-mismatch", _PAIR, cause="truncated-sampling-renormalised")
def nucleus_sampling_renormalised(seed: int) -> Settings:
    """Sampled with top_p .9; the engine's logprobs are renormalised over the nucleus, the trainer's are not."""
    return Settings(seed=seed, top_p=0.9)


@injected("truncated-sampling-mismatch", _PAIR, needs=_ALIGNED, cause="truncated-sampling-renormalised")
def rollout_logprob_renormalised(run: SimulatedRun, random: Random) -> SimulatedRun:
    """Imposed on any run: each rollout logprob is higher by minus the logarithm of a kept mass between .8 and .95."""
    mask, rollout = run.arrays["response_mask"], run.arrays["rollout_logprob"].astype(np.float64)
    kept = random.uniform(0.8, 0.95, len(rollout))
    likely = run.with_config(top_p=0.8)
    return with_values(likely, rollout_logprob=np.where(mask, np.minimum(rollout - np.log(kept), 0.0), rollout))


@simulated("truncated-sampling-mismatch", _PAIR, cause="truncated-sampling-renormalised")
def nucleus_sampling_mild(seed: int) -> Settings:
    """The same with top_p .97."""
    return Settings(seed=seed, top_p=0.97)


@injected("missing-rollout-logprob", _PAIR, needs=_ALIGNED, cause="missing-logprobs-zero-filled")
def rollout_logprob_filled_with_zero(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The last three tokens of every row have the rollout logprob 0, since the engine gave none."""
    behind = run.splits[1:][run.rows] - np.arange(run.splits[-1])
    return with_values(run, rollout_logprob=np.where(behind <= 3, 0.0, run.arrays["rollout_logprob"]))


@injected("missing-rollout-logprob", needs=_ALIGNED, cause="engine-logprobs-null")
def rollout_logprob_null(run: SimulatedRun, random: Random) -> SimulatedRun:
    """A third of the rows has no rollout logprob at all."""
    gone = (random.random(len(run.splits) - 1) < 0.33)[run.rows]
    return with_values(run, rollout_logprob=np.where(gone, np.nan, run.arrays["rollout_logprob"]))


@injected(_PAIR, "tokens-contradict-entropy", needs=_ALIGNED, cause="trainer-forward-broken")
def trainer_forward_broken(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The trainer's forward pass is not the engine's model: its logprobs are those of noise, and old and new agree on them."""
    noise = -9.0 + 3.0 * random.standard_normal(run.splits[-1]) - run.arrays["old_logprob"]
    change = np.minimum(noise, -0.5 - run.arrays["old_logprob"])
    broken = shifted(run, change, "logprob", "old_logprob", "ref_logprob")
    names = [name for name in ("entropy", "old_entropy") if name in run.arrays]
    most = math.log(run.info.vocab_size) if run.info.vocab_size else math.inf
    return with_values(broken, **{name: np.minimum(run.arrays[name] + 0.8, most) for name in names})


# a constant that is added


_BESIDE = ("stale-old-logprob", "ratio-saturation", "unlawful-rollout-logprob", "logged-metric-mismatch", "kl-below-zero",
           "mismatch-in-some-rows", "kl-reversed", "kl-spike", "kl-runaway")  # fmt: skip
"""Every ratio of the column carries the factor; folded under the cause."""


def _offset(run: SimulatedRun, name: str, size: float) -> SimulatedRun:
    return with_values(run, **{name: run.arrays[name].astype(np.float64) - size})


@graded(_PAIR, *_BESIDE, sizes=(0.2, 0.5, 1.0), least_size=0.5, unit="nat", needs=(*_ALIGNED, "old_logprob"),
        cause="constant-in-rollout-logprob")  # fmt: skip
def constant_in_the_engine(run: SimulatedRun, random: Random, size: float, first: int) -> SimulatedRun:  # noqa: ARG001
    """The engine's logprobs are of an array that is not normalised: ``size`` is missing at every token."""
    return _offset(run, "rollout_logprob", size)


@graded("stale-old-logprob", _PAIR, *_BESIDE, sizes=(0.1, 0.5, 1.0), least_size=0.5, unit="nat",
        needs=(*_ALIGNED, "old_logprob", "logprob"), cause="constant-in-old-logprob")  # fmt: skip
def constant_in_old_logprob(run: SimulatedRun, random: Random, size: float, first: int) -> SimulatedRun:  # noqa: ARG001
    """A term is taken from old_logprob after the softmax: ``size`` is missing everywhere, and the engine agrees with logprob."""
    return _offset(run, "old_logprob", size)


@injected("stale-old-logprob", _PAIR, *_BESIDE, needs=(*_ALIGNED, "old_logprob", "logprob"), cause="constant-in-logprob")
def constant_in_logprob(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The same in the update: the engine agrees with old_logprob."""
    return _offset(run, "logprob", 0.5)
