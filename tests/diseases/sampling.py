"""Engine and trainer part for reasons other than old weights: precision, places, entropy, weights of whole responses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rl_doctor.store.codes import codes
from tests.diseases.catalogue import graded, injected
from tests.simulation.inject import onset, shifted, with_values
from tests.simulation.policy import as_bfloat16
from tests.simulation.run import SimulatedRun

Random = np.random.Generator
_PAIR = "rollout-trainer-mismatch"
_ROWS = "mismatch-in-some-rows"
_ALIGNED = ("rollout_logprob", "old_logprob")
_TRAINER = ("logprob", "old_logprob", "ref_logprob")


def _honest(random: Random, spread: np.ndarray) -> np.ndarray:
    """Noise of the trainer's logprobs whose exponential has the mean 1."""
    return spread * random.standard_normal(len(spread)) - spread**2 / 2


def _by_row(run: SimulatedRun, rows: np.ndarray, size: float, first: int) -> np.ndarray:
    """``size`` at the tokens of some rows from a step on, 0 elsewhere."""
    return np.where(rows[run.rows] & (run.token_step >= first), size, 0.0)


@injected("coarse-logprob", least="info", needs=_ALIGNED, anywhere=False, cause="trainer-half-precision-logits")
def trainer_logprobs_in_bfloat16(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The trainer's logprobs were rounded to bfloat16."""
    return with_values(run, **{name: as_bfloat16(run.arrays[name].astype(np.float64)) for name in _TRAINER if name in run.arrays})


@injected("coarse-logprob", least="info", needs=_ALIGNED, cause="engine-half-precision-logits")
def engine_logprobs_in_bfloat16(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The engine's logprobs were rounded to bfloat16."""
    return with_values(run, rollout_logprob=as_bfloat16(run.arrays["rollout_logprob"].astype(np.float64)))


@injected("impossible-logprob", "rollout-trainer-mismatch", needs=_ALIGNED, cause="placeholder-among-logprobs")
def rollout_logprob_one_where_missing(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The rollout logprob is 1 at 3% of the tokens, where the engine returned none."""
    gone = random.random(run.splits[-1]) < 0.03
    return with_values(run, rollout_logprob=np.where(gone, 1.0, run.arrays["rollout_logprob"]))


@graded(
    _PAIR, "inert-ratio", needs=_ALIGNED, cause="kernels-or-precision", sizes=(0.1, 0.2, 0.3, 0.5), least_size=0.3, unit="nat",
)  # fmt: skip
def engine_of_other_kernels(run: SimulatedRun, random: Random, size: float, first: int) -> SimulatedRun:  # noqa: ARG001
    """The trainer's logprobs scatter around the engine's from the first step on, more at improbable tokens."""
    sure = np.exp(np.nan_to_num(run.arrays["rollout_logprob"].astype(np.float64)))
    return shifted(run, _honest(random, size * (1.0 - sure)), *_TRAINER)


@graded(
    _PAIR, "inert-ratio", needs=_ALIGNED, cause="expert-routing-differs", sizes=(0.02, 0.05, 0.1), least_size=0.05,
    unit="of the tokens",
)  # fmt: skip
def engine_routes_to_other_experts(run: SimulatedRun, random: Random, size: float, first: int) -> SimulatedRun:  # noqa: ARG001
    """At some tokens the trainer's logprob is a nat away, from the first step on."""
    spread = np.where(random.random(run.splits[-1]) < size, 1.2, 0.0)
    return shifted(run, _honest(random, spread), *_TRAINER)


@graded(
    _ROWS, _PAIR, "inert-ratio", needs=_ALIGNED, cause="one-rank-differs", sizes=(0.1, 0.2, 0.3, 1.0), least_size=0.3, unit="nat",
    asks=(4, 8),
)  # fmt: skip
def one_rank_of_eight_differs(run: SimulatedRun, random: Random, size: float, first: int) -> SimulatedRun:
    """One rank of eight computes something else."""
    rank = np.arange(len(run.splits) - 1) % 8
    noise = _honest(random, _by_row(run, rank == 5, size, first))
    return with_values(shifted(run, noise, *_TRAINER), rank=rank)


@injected(_ROWS, _PAIR, "inert-ratio", needs=_ALIGNED, cause="one-microbatch-differs")
def first_microbatch_differs(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The first of six micro-batches is packed wrongly."""
    number = np.arange(len(run.splits) - 1) % 6
    noise = _honest(random, _by_row(run, number == 0, 0.5, 0))
    return with_values(shifted(run, noise, *_TRAINER), microbatch=number)


@graded(
    _PAIR, _ROWS, "inert-ratio", "kl-spike", needs=_ALIGNED, cause="left-padding-positions", sizes=(0.01, 0.03, 0.05),
    least_size=0.03, unit="nat per token of padding",
)  # fmt: skip
def positions_count_left_padding(run: SimulatedRun, random: Random, size: float, first: int) -> SimulatedRun:
    """Rows with left padding are scored at other positions: the more padding the worse."""
    padding = np.where(random.random(len(run.splits) - 1) < 0.5, 0, random.integers(4, 40, len(run.splits) - 1))
    spread = np.where(run.token_step >= first, size * padding[run.rows], 0.0)
    return with_values(shifted(run, _honest(random, spread), *_TRAINER), left_padding=padding)


@injected(_PAIR, _ROWS, "inert-ratio", needs=(*_ALIGNED, "response_length"), cause="long-rows-differ")
def long_responses_scored_differently(run: SimulatedRun, random: Random) -> SimulatedRun:
    """Responses of 16 tokens and more are scored with other positions from their first token on."""
    length = run.arrays["response_length"]
    return shifted(run, _honest(random, _by_row(run, length >= 16, 0.6, 0)), *_TRAINER)


@injected(_PAIR, _ROWS, "inert-ratio", needs=_ALIGNED, cause="late-positions-differ")
def late_tokens_scored_differently(run: SimulatedRun, random: Random) -> SimulatedRun:
    """From the eighth token on engine and trainer part, in all rows."""
    place = np.arange(run.splits[-1]) - run.splits[:-1][run.rows]
    return shifted(run, _honest(random, np.where(place >= 8, 0.6, 0.0)), *_TRAINER)


@graded(
    _PAIR, _ROWS, "wrong-reference", "kl-spike", "tokens-contradict-entropy", needs=_ALIGNED, cause="rows-not-lined-up",
    sizes=(0.02, 0.05, 0.2), least_size=0.05, unit="of the rows", asks=(4, 1), sooner=(_ROWS,),
)  # fmt: skip
def logits_of_image_rows_not_lined_up(run: SimulatedRun, random: Random, size: float, first: int) -> SimulatedRun:
    """In some rows the trainer and the reference score other positions: about -10 nat, unrelated to the engine."""
    group = codes(run.arrays["group"])
    rows = (random.random(group.max() + 1) < size)[group] & (run.arrays["step"] >= first)
    source = np.where(rows, "images", "text").astype(object)
    noise = -10.0 + 2.0 * random.standard_normal(run.splits[-1])
    found = {name: np.where(rows[run.rows], np.minimum(noise, -2.0), run.arrays[name]) for name in _TRAINER if name in run.arrays}
    return with_values(run, **found, data_source=source)


def of_other_rows(run: SimulatedRun, rows: NDArray[np.bool_], name: str = "rollout_logprob") -> SimulatedRun:
    """These rows have the logprobs of the next longer row of their step, cut; the longest one those of the one before."""
    lengths, start, step = np.diff(run.splits), run.splits[:-1], run.arrays["step"]
    order = np.lexsort((lengths, step))
    last = np.append(step[order][1:] != step[order][:-1], True)
    longer = np.empty_like(order)
    longer[order] = np.where(last, np.roll(order, 1), np.roll(order, -1))
    other = np.where(rows, longer, np.arange(len(lengths)))[run.rows]
    place = np.arange(run.splits[-1]) - start[run.rows]
    there = place < lengths[other]
    values = run.arrays[name][np.where(there, start[other] + place, 0)]
    return with_values(run, **{name: np.where(there, values, 0.0)})


@graded(
    _ROWS, _PAIR, "inert-ratio", needs=_ALIGNED, cause="rollout-logprobs-of-other-rows",
    sizes=(0.01, 0.02, 0.05, 0.2), least_size=0.05, unit="of the rows", asks=(4, 8),
)  # fmt: skip
def rollout_logprobs_of_other_rows(run: SimulatedRun, random: Random, size: float, first: int) -> SimulatedRun:
    """Some rows were moved after generation, and their rollout logprobs were not."""
    return of_other_rows(run, (random.random(len(run.splits) - 1) < size) & (run.arrays["step"] >= first))


@injected(_PAIR, _ROWS, "stale-old-logprob", needs=_ALIGNED, cause="rollout-logprobs-of-other-rows")
def rollout_logprobs_in_another_order(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The batch is sorted by length, and all columns move but one."""
    return of_other_rows(run, np.ones(len(run.splits) - 1, np.bool_))


@injected("unlawful-rollout-logprob", needs=_ALIGNED, cause="sampling-law-unrecorded")
def penalty_left_out_of_rollout_logprob(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The engine changes logits after it has taken logprobs: some of them are too high, some too low."""
    change = np.where(random.random(run.splits[-1]) < 0.4, 0.06, -0.02)
    return shifted(run, change, "rollout_logprob")


def _entropy_too_large(run: SimulatedRun) -> SimulatedRun:
    names = [name for name in ("entropy", "old_entropy") if name in run.arrays]
    return with_values(run, **{name: run.arrays[name] * 1.13 for name in names})


@injected("tokens-contradict-entropy", anywhere=False, cause="raw-logprobs-on-both-sides")
def tail_cut_behind_logprobs(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The sampler cuts the tail and reports logprobs from before: only the entropy, an eighth too large, shows it."""
    return _entropy_too_large(run)


@injected("tokens-contradict-entropy", anywhere=False, cause="sampler-cooler-or-cut")
def tail_cut_and_no_logprobs_of_the_engine(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The same where the engine's logprobs are not recorded."""
    known = _entropy_too_large(run)
    return replace(known, arrays={name: values for name, values in known.arrays.items() if name != "rollout_logprob"})


@injected("mismatch-by-part", _PAIR, _ROWS, "inert-ratio", needs=_ALIGNED, anywhere=False, cause="part-apart")
def one_rank_noisier_than_the_others(run: SimulatedRun, random: Random) -> SimulatedRun:
    """One rank of four has an engine of other precision: its rows are off by too little to be told one by one."""
    rank = np.arange(len(run.splits) - 1) % 4
    return with_values(shifted(run, _honest(random, _by_row(run, rank == 1, 0.07, 0)), *_TRAINER), rank=rank)


@injected("tokens-contradict-entropy", anywhere=False, cause="sampler-hotter-or-tokens-foreign")
def entropy_of_cooler_logits(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The tokens cost more than the entropy says."""
    names = [name for name in ("entropy", "old_entropy") if name in run.arrays]
    return with_values(run, **{name: run.arrays[name] * 0.85 for name in names})


@injected("sequence-weight-collapse", needs=_ALIGNED, cause="sequence-weights-are-products")
def weights_of_long_responses(run: SimulatedRun, random: Random) -> SimulatedRun:
    """One importance weight per response, as the product over many hundreds of tokens would be."""
    late = run.arrays["step"] >= onset(run, 0.0)
    weight = np.where(late, np.minimum(np.exp(random.normal(-3.0, 1.5, len(run.splits) - 1)), 3.0), 1.0)
    return with_values(run, is_weight=weight[run.rows])
