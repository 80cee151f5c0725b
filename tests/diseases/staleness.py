"""Weights of different ages: behind old_logprob, in the engine and its caches, in stamps of samples; what the ratio hides."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.diseases.catalogue import graded, injected, simulated
from tests.diseases.sampling import of_other_rows
from tests.simulation.inject import Floats, on_four_ranks, onset, passes, scaled, shifted, with_values
from tests.simulation.policy import as_bfloat16
from tests.simulation.run import SimulatedRun
from tests.simulation.settings import Settings

Random = np.random.Generator
_RULE = "stale-old-logprob"
_MISMATCH = "rollout-trainer-mismatch"
_PAIR = (_MISMATCH, "mismatch-in-some-rows", "unlawful-rollout-logprob", "coarse-logprob", "truncated-sampling-mismatch")
"""What a wrong number on one side shows where the two sides are compared; folded under the cause."""
_LAG = "stale-samples-uncorrected"
_ALIGNED = ("rollout_logprob",)
_OLD = ("old_logprob",)
_SOME = ("mismatch-within-response", "ratio-saturation", "kl-spike", "logged-metric-mismatch")


def _noise(random: Random, size: int, distance: Floats | float) -> Floats:
    """Log-ratios x of policies ``distance`` nat away from the sampler's, with E[exp(x)] = 1."""
    return np.asarray(distance * random.standard_normal(size) - np.square(distance) / 2)


def _progress(run: SimulatedRun, first: int = 0) -> Floats:
    """Per token: 0 up to a step, then evenly up to 1 at the last."""
    steps = np.unique(run.arrays["step"])
    start = int(np.searchsorted(steps, first))
    place = np.searchsorted(steps, run.token_step)
    return np.asarray(np.clip((place - start) / max(len(steps) - 1 - start, 1), 0.0, 1.0))


def _engine_away(run: SimulatedRun, random: Random, distance: Floats | float) -> SimulatedRun:
    """The run whose engine sampled from a policy ``distance`` nat away from the trainer's, per token."""
    return shifted(
        run, np.where(run.arrays["response_mask"], -_noise(random, int(run.splits[-1]), distance), 0.0), "rollout_logprob"
    )


# old_logprob


@simulated(_RULE, cause="old-logprob-outdated")
def old_logprob_of_earlier_weights(seed: int) -> Settings:
    """old_logprob was computed with the weights of four steps before: the ratio is not 1 before any update."""
    return Settings(seed=seed, old_lag=4)


@graded(
    _RULE, *_PAIR, "ratio-saturation", "logged-metric-mismatch", sizes=(0.02, 0.05, 0.1, 0.2), least_size=0.1,
    unit="nat at the end", needs=_OLD, cause="old-logprob-outdated", damage="mismatch.abs",
)  # fmt: skip
def old_logprob_falls_behind(run: SimulatedRun, random: Random, size: float, first: int) -> SimulatedRun:
    """old_logprob is that of a policy which stays where it was: it is further away with each step, up to ``size``."""
    return shifted(run, _noise(random, int(run.splits[-1]), size * _progress(run, first)), "old_logprob")


@injected(_RULE, *_PAIR, "ratio-saturation", "logged-metric-mismatch", needs=_OLD, cause="dropout-in-a-pass")
def old_logprob_of_another_policy(run: SimulatedRun, random: Random) -> SimulatedRun:
    """old_logprob is .15 nat away from the first step on, when there are no older weights yet; E[exp(old - new)] = 1 holds."""
    return shifted(run, _noise(random, int(run.splits[-1]), 0.15), "old_logprob")


@graded(_RULE, *_PAIR, *_SOME, needs=_ALIGNED, cause="old-logprobs-of-other-rows", sizes=(0.05, 0.1, 0.2, 0.5), least_size=0.2,
        unit="of the rows")  # fmt: skip
def old_logprobs_of_other_rows(run: SimulatedRun, random: Random, size: float, first: int) -> SimulatedRun:
    """Some rows were moved after they were scored, and their old_logprob was not."""
    return of_other_rows(run, (random.random(len(run.splits) - 1) < size) & (run.arrays["step"] >= first), "old_logprob")


@injected(_RULE, *_PAIR, *_SOME, needs=_OLD, cause="old-logprob-off-in-some-rows")
def old_logprob_of_another_pass_in_some_rows(run: SimulatedRun, random: Random) -> SimulatedRun:
    """Three rows of ten take their old_logprob from a cache: it is .5 nat away."""
    rows = random.random(len(run.splits) - 1) < 0.3
    return shifted(run, np.where(rows[run.rows], _noise(random, int(run.splits[-1]), 0.6), 0.0), "old_logprob")


@injected(_RULE, *_PAIR, *_SOME, needs=_OLD, cause="old-logprobs-of-other-rows")  # fmt: skip
def old_logprobs_in_another_order(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The batch is sorted by length, and all columns move but old_logprob."""
    return of_other_rows(run, np.ones(len(run.splits) - 1, np.bool_), "old_logprob")


@injected(_RULE, "ratio-saturation", "kl-flatline", "logged-metric-mismatch", anywhere=False, needs=("ref_logprob",),
          cause="old-logprob-repeats-reference")  # fmt: skip
def old_logprob_repeats_the_reference(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The pass for old_logprob runs with the adapters off: it is the reference's."""
    return with_values(run, old_logprob=run.arrays["ref_logprob"])


def _halved(run: SimulatedRun, bias: float) -> SimulatedRun:
    """The run whose old_logprob is rounded to bfloat16, and higher at every token, as far as a logprob can be."""
    return with_values(run, old_logprob=as_bfloat16(np.minimum(run.arrays["old_logprob"].astype(np.float64) + bias, -1e-4)))


@graded(
    _RULE, *_PAIR, "logged-metric-mismatch", sizes=(0.003, 0.01, 0.03), least_size=0.01,
    unit="nat of bias", needs=_OLD,
)  # fmt: skip
def one_pass_in_half_precision(run: SimulatedRun, random: Random, size: float, first: int) -> SimulatedRun:  # noqa: ARG001
    """old_logprob is rounded to bfloat16, and higher by ``size`` at every token from the first step on."""
    return _halved(run, size)


@injected(_RULE, *_PAIR, "logged-metric-mismatch", needs=_OLD, cause="passes-differ-in-precision")
def old_pass_outside_autocast(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The same with a bias of .06 nat, at which it is an error."""
    return _halved(run, 0.06)


@graded(_RULE, *_PAIR, "ratio-saturation", "logged-metric-mismatch", sizes=(0.03, 0.05, 0.1, 0.2), least_size=0.06, unit="nat",
        needs=_OLD, cause="dropout-in-a-pass")  # fmt: skip
def dropout_in_the_old_pass(run: SimulatedRun, random: Random, size: float, first: int) -> SimulatedRun:  # noqa: ARG001
    """Unbiased noise at every token, from the first step on and the same at all steps."""
    return shifted(run, size * random.standard_normal(run.splits[-1]), "old_logprob")


@injected(_RULE, *_PAIR, "ratio-saturation", "logged-metric-mismatch", "kl-below-zero", needs=(*_OLD, "logprob"), anywhere=False,
          cause="dropout-in-a-pass")  # fmt: skip
def dropout_in_the_update(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The pass of the update has dropout: old_logprob is still that of the samples, and at first that of the reference."""
    return shifted(run, _noise(random, int(run.splits[-1]), 0.15), "logprob")


@graded(_RULE, *_PAIR, "logged-metric-mismatch", sizes=(0.03, 0.06, 0.15, 0.3), least_size=0.15, unit="nat", needs=_OLD,
        cause="kernels-depend-on-batch")  # fmt: skip
def kernels_depend_on_the_batch(run: SimulatedRun, random: Random, size: float, first: int) -> SimulatedRun:  # noqa: ARG001
    """A sixth of the rows has unbiased noise, the others none: a note while it is small, a warning at .15 nat."""
    rows = random.random(len(run.splits) - 1) < 1 / 6
    return shifted(run, np.where(rows[run.rows], size * random.standard_normal(run.splits[-1]), 0.0), "old_logprob")


# the engine


@simulated(_RULE, *_PAIR, "inert-ratio", "kl-below-zero", cause="engine-never-synchronised")
def engine_never_synchronised(seed: int) -> Settings:
    """The engine samples with the first weights for ever, and stamps the samples with the newest version.

    The mismatch grows from nothing, and the ratio is 1 although the samples are not of the policy.
    """
    return Settings(seed=seed, frozen_engine=True, step_size=30.0)


@graded(_RULE, *_PAIR, "inert-ratio", sizes=(0.05, 0.1, 0.2, 0.4), least_size=0.2, unit="nat at the end", needs=_ALIGNED,
        cause="engine-outdated", damage="mismatch.abs")  # fmt: skip
def engine_falls_behind(run: SimulatedRun, random: Random, size: float, first: int) -> SimulatedRun:
    """The gap creeps up from a step on to ``size``, for whatever reason."""
    return _engine_away(run, random, size * _progress(run, first))


@injected(_RULE, *_PAIR, "inert-ratio", needs=_ALIGNED, anywhere=False, cause="engine-outdated", damage="mismatch.abs")
def engine_falls_behind_by_little(run: SimulatedRun, random: Random) -> SimulatedRun:
    """No update reaches the engine after the first third: the gap grows to some hundredths of a nat, several times the floor."""
    return _engine_away(run, random, 0.08 * _progress(run, onset(run, 0.35)))


@injected(_RULE, *_PAIR, "inert-ratio", needs=_ALIGNED, anywhere=False, cause="engine-outdated", damage="mismatch.abs")
def bypassed_engine_falls_behind(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The same where old_logprob is the engine's: the ratio is off before any update, and no learning rate is to blame."""
    away = _engine_away(run, random, 0.08 * _progress(run, onset(run, 0.35)))
    return with_values(away, old_logprob=away.arrays["rollout_logprob"])


@injected(_RULE, *_PAIR, "inert-ratio", into="warm_up_and_decay", anywhere=False, needs=_ALIGNED, cause="engine-lost-weights")
def engine_sleeps_and_loses_its_weights(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The gap is at its floor in the warm-up, then jumps and grows with the summed learning rate."""
    steps, first = np.unique(run.arrays["step"], return_index=True)
    rate = run.arrays["learning_rate"][first]
    moved = np.cumsum(rate) / rate.sum()
    away = np.where(rate < 0.5 * rate.max(), 0.0, 0.1 + 0.3 * moved)
    away[np.argmax(rate) :] = 0.1 + 0.3 * moved[np.argmax(rate) :]
    return _engine_away(run, random, away[np.searchsorted(steps, run.token_step)])


@injected(_RULE, *_PAIR, "inert-ratio", "kl-spike", anywhere=False, needs=("rollout_logprob", "ref_logprob"),
          cause="reference-pushed-to-engine")  # fmt: skip
def reference_pushed_after_a_resume(run: SimulatedRun, random: Random) -> SimulatedRun:
    """For three steps the engine has the reference's weights."""
    first = onset(run, 0.7)
    hit = (run.token_step >= first) & (run.token_step < first + 3) & run.arrays["response_mask"]
    reference = run.arrays["ref_logprob"] + 0.007 * random.standard_normal(run.splits[-1])
    return with_values(run, rollout_logprob=np.where(hit, np.minimum(reference, -1e-6), run.arrays["rollout_logprob"]))


@graded(_MISMATCH, _RULE, "inert-ratio", "temperature-mismatch", sizes=(0.1, 0.2, 0.35, 0.5, 1.0), least_size=0.5, unit="nat",
        needs=_ALIGNED, cause="engine-weights-corrupted", sooner=(_RULE,))  # fmt: skip
def engine_weights_corrupted(run: SimulatedRun, random: Random, size: float, first: int) -> SimulatedRun:
    """From a step on the engine's logprobs are ``size`` nat away, with E[exp(train - rollout)] = 1, and the ratio hides it."""
    return _engine_away(run, random, np.where(run.token_step >= first, size, 0.0))


@injected("recurring-prompts-worse", _RULE, *_PAIR, "inert-ratio", "broken-groups", anywhere=False,
          needs=("rollout_logprob", "group"), cause="stale-prefix-cache")  # fmt: skip
def stale_prefix_cache(run: SimulatedRun, random: Random) -> SimulatedRun:
    """Half of the prompts come back at every step; their gap grows, at early tokens most. New prompts are at the floor."""
    names = run.arrays["group"]
    slot = np.array([int(str(name).rpartition(".")[2]) for name in names])
    group = np.where(slot < 4, [f"again.{part}" for part in slot], names).astype(np.object_)
    place = np.arange(run.splits[-1]) - run.splits[:-1][run.rows]
    away = np.where((slot < 4)[run.rows], 0.6 * _progress(run) * np.exp(-place / 6.0), 0.0)
    return with_values(_engine_away(run, random, away), group=group)


@injected(_RULE, *_PAIR, "inert-ratio", "learning-rate-zero", "kl-flatline", "reward-flatline", "grad-zero", into="on_policy",
          needs=("rollout_logprob", "learning_rate"), anywhere=False)  # fmt: skip
def engine_drifts_at_learning_rate_zero(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The learning rate is 0 throughout and the gap grows: nothing that is sent can be at fault."""
    still = scaled(run, "learning_rate", lambda step: np.zeros(len(step)))
    return _engine_away(still, random, 0.3 * _progress(run))


# samples


@simulated(_LAG, *_PAIR, "inert-ratio", _RULE, cause="staleness-hidden-by-recomputation")
def samples_of_old_weights_uncorrected(seed: int) -> Settings:
    """Samples are up to eight versions old, old_logprob is recomputed with the newest weights, nothing corrects for it.

    The versions are recorded. The difference to the engine's logprobs is a mismatch in its own
    right, and the ratio is 1 although the samples are not of the policy.
    """
    return Settings(seed=seed, lag=8, step_size=40.0)


@simulated(_LAG, _RULE, *_PAIR, "inert-ratio", least="info")
def samples_one_or_two_versions_old(seed: int) -> Settings:
    """Samples are up to two versions old and nothing corrects for it: what a version costs is measured, and told."""
    return Settings(seed=seed, lag=2)


@graded("version-stamps-wrong", _LAG, sizes=(0.002, 0.01, 0.05), least_size=0.01, unit="share of rows",
        needs=("weight_version", "policy_version"), cause="version-stamps-ahead")  # fmt: skip
def stamps_of_a_sample_counter_in_some_rows(run: SimulatedRun, random: Random, size: float, first: int) -> SimulatedRun:
    """Some samples (those of a validation) are stamped with a number that the trainer has not reached."""
    version = run.arrays["weight_version"].astype(np.int64)
    hit = (random.random(len(version)) < size) & (run.arrays["step"] >= first)
    hit[-1] = True
    return with_values(run, weight_version=np.where(hit, version + 200, version))


@injected("version-stamps-wrong", _LAG, _RULE, *_PAIR, needs=("weight_version", "policy_version"), anywhere=False,
          cause="version-stamps-count-samples")  # fmt: skip
def stamps_count_samples(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Every sample is stamped with its own number."""
    return with_values(run, weight_version=np.arange(len(run.splits) - 1))


@injected("version-stamps-wrong", needs=("weight_version", "policy_version"), anywhere=False, cause="version-stamps-missing")
def stamps_missing(run: SimulatedRun, random: Random) -> SimulatedRun:
    """A twentieth of the samples has no stamp."""
    version = run.arrays["weight_version"].astype(np.int64)
    return with_values(run, weight_version=np.where(random.random(len(version)) < 0.05, np.iinfo(np.int64).min, version))


@injected("version-stamps-wrong", _LAG, _RULE, *_PAIR, needs=("weight_version", "policy_version"), anywhere=False,
          cause="version-stamps-go-back")  # fmt: skip
def stamps_of_a_rank_go_back(run: SimulatedRun, random: Random) -> SimulatedRun:
    """One of four ranks counts its versions anew from a step on, and says that it has the first weights again."""
    first, rank = onset(run), random.integers(0, 4, len(run.splits) - 1).astype(np.int32)
    version = run.arrays["weight_version"].astype(np.int64)
    back = (rank == 2) & (run.arrays["step"] >= first)
    info = replace(run.info, world_size=4, writing_ranks=(0, 1, 2, 3))
    return with_values(replace(run, info=info, arrays=run.arrays | {"rank": rank}),
                       weight_version=np.where(back, version - first, version))  # fmt: skip


# the ratio


@injected("inert-ratio", into="two_epochs", needs=_OLD, anywhere=False, cause="later-slices-without-old-logprobs")
def later_slices_without_old_logprobs(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The first pass over the second slice takes the current logprobs for the old ones; the second pass has the right ones."""
    slices = (run.arrays["epoch"] == 0) & (run.arrays["minibatch"] > 0)
    return with_values(run, old_logprob=np.where(slices[run.rows], run.arrays["logprob"], run.arrays["old_logprob"]))


_STILL = ("kl-flatline", "reward-flatline", "grad-norm-spike", "update-without-effect")


@simulated("inert-ratio", *_STILL, cause="optimizer-not-stepping")
def optimizer_does_not_step(seed: int) -> Settings:
    """The gradient is there, and the weights stay where they are."""
    return Settings(seed=seed, epochs=2, minibatches=2, step_size=0.0, learning_rate=1e-4)


@simulated("inert-ratio", *_STILL, cause="steps-vanish-in-bfloat16")
def steps_vanish_in_bfloat16(seed: int) -> Settings:
    """The same at a learning rate of 1e-7, at which no weight in bfloat16 moves."""
    return Settings(seed=seed, epochs=2, minibatches=2, step_size=0.0, learning_rate=1e-7)


_KL = ("kl-spike", "kl-runaway")


@injected("ratio-saturation", *_KL, into="two_epochs", needs=_OLD, anywhere=False, cause="batch-updated-too-often")
def updates_of_a_batch_add_up(run: SimulatedRun, random: Random) -> SimulatedRun:
    """Each of the three later updates of a batch moves the policy a little further: .12, .5 and 1 nat."""
    place = 2 * run.arrays["epoch"] + run.arrays["minibatch"]
    distance = np.array([0.0, 0.12, 0.5, 1.0])[place][run.rows]
    return shifted(run, np.where(passes(run)[run.rows], _noise(random, len(distance), distance), 0.0), "logprob")


# what comes of it


@injected("mismatch-before-explosion", _RULE, *_PAIR, "inert-ratio", "grad-norm-spike", "grad-norm-growth", into="on_policy",
          needs=("rollout_logprob", "grad_norm"), cause="mismatch-feeds-collapse", damage="mismatch.abs",
          sooner=(_RULE,))  # fmt: skip
def mismatch_grows_before_the_gradient_explodes(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The gap at improbable tokens grows from the middle on, the gradient norm explodes when nine tenths are over."""
    unlikely = np.minimum(-run.arrays["old_logprob"].astype(np.float64) / 3.0, 2.0)
    away = _engine_away(run, random, 0.25 * _progress(run, onset(run, 0.5)) * unlikely)
    steps = np.unique(run.arrays["step"])
    late = steps[int(0.85 * len(steps))]
    return scaled(away, "grad_norm", lambda step: np.where(step >= late, 10.0, 1.0))


# an engine that catches up


def _behind(run: SimulatedRun, random: Random, size: float, first: int, rows: Floats | bool = True) -> SimulatedRun:
    """The run whose engine keeps its weights from a step on, and gets the newest ones 6 steps later."""
    late = np.clip(run.token_step - first, 0, 6) * (run.token_step < first + 6)
    return _engine_away(run, random, np.where(rows, size * late, 0.0))


@graded(
    "missed-synchronisation", *_PAIR, _RULE, "logged-metric-mismatch", sizes=(0.005, 0.01, 0.03), least_size=0.03,
    unit="nat per step", needs=_ALIGNED, cause="synchronisations-missed", damage="mismatch.abs",
)  # fmt: skip
def engine_misses_some_synchronisations(run: SimulatedRun, random: Random, size: float, first: int) -> SimulatedRun:
    """The engine is further from the trainer by as much at each of five steps, and back from one step to the next."""
    return _behind(run, random, size, first)


@injected(
    "missed-synchronisation", *_PAIR, _RULE, "mismatch-by-part", "logged-metric-mismatch", needs=_ALIGNED, anywhere=False,
    cause="synchronisations-missed",
)  # fmt: skip
def one_rank_misses_some_synchronisations(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The same on one rank of four."""
    ranked = on_four_ranks(run)
    return _behind(ranked, random, 0.05, onset(run), (ranked.arrays["rank"] == 2)[run.rows])


@injected(
    "missed-synchronisation", *_PAIR, _RULE, "mismatch-by-part", "logged-metric-mismatch", needs=_ALIGNED, anywhere=False,
    cause="synchronisations-missed",
)  # fmt: skip
def one_rank_is_never_synchronised_again(run: SimulatedRun, random: Random) -> SimulatedRun:
    """One rank of four keeps its weights from some step on: its engine is further away with each step."""
    ranked = on_four_ranks(run)
    late = np.maximum(run.token_step - onset(run), 0)
    return _engine_away(ranked, random, np.where((ranked.arrays["rank"] == 2)[run.rows], 0.01 * late, 0.0))


@injected("missed-synchronisation", _LAG, needs=(), anywhere=False, into="async_corrected", cause="synchronisations-missed")
def stamps_stay_for_some_steps(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Only the versions tell: the stamps stay where they are for six steps."""
    first, stamp = onset(run), run.arrays["weight_version"].copy()
    step = run.arrays["step"]
    inside = (step >= first) & (step < first + 6)
    stamp[inside] = stamp[step == first - 1].max()
    return with_values(run, weight_version=stamp)


# a column that nobody filled


_OF_ZEROS = (_RULE, *_PAIR, "ratio-saturation", "kl-spike", "kl-runaway", "logged-metric-mismatch", "logprob-misaligned",
             "kl-below-zero", "kl-reversed", "wrong-reference", "temperature-mismatch")  # fmt: skip
"""What ratios and KL show where one of the policies is certain of everything; folded under the cause."""


def _zeros(run: SimulatedRun, name: str, first: int) -> SimulatedRun:
    return with_values(run, **{name: np.where(run.token_step >= first, 0.0, run.arrays[name])})


@injected("unfilled-logprob", *_OF_ZEROS, needs=("old_logprob", "logprob"), cause="logprob-never-filled")
def old_logprob_never_filled(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The buffer of old_logprob is made with zeros, and no pass writes to it."""
    return _zeros(run, "old_logprob", 0)


@injected("unfilled-logprob", *_OF_ZEROS, needs=("old_logprob", "logprob"), cause="logprob-never-filled", log=False)
def logprob_not_filled_from_a_step_on(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The logprobs of the update are no longer copied into what is recorded from some step on."""
    return _zeros(run, "logprob", onset(run))


@injected("unfilled-logprob", *_OF_ZEROS, "kl-penalty-dominates", needs=("ref_logprob", "logprob"),
          cause="logprob-never-filled")  # fmt: skip
def ref_logprob_never_filled(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The reference's pass is skipped, and its buffer stays 0."""
    return _zeros(run, "ref_logprob", 0)
