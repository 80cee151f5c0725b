"""Faults of length: what looks like a limit that is too short, and is not; and lengths that are logged of something else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rl_doctor.store.metric_log import MetricLog
from tests.diseases.catalogue import graded, injected, simulated
from tests.simulation.inject import onset, with_reward, with_values
from tests.simulation.logs import relogged
from tests.simulation.run import SimulatedRun, is_token
from tests.simulation.settings import END, Settings
from tests.simulation.world import simulate

Random = np.random.Generator


def _seed(run: SimulatedRun) -> int:
    return int(str(run.info.run_id).rpartition("-")[2])


_FOLLOWS = ("zero-variance-groups", "reward-flatline", "near-zero-variance-groups", "grad-zero", "grad-vanished")


@simulated("length-truncation", *_FOLLOWS, cause="length-limit-too-short")
def limit_before_any_answer(seed: int) -> Settings:
    """Next to no response ends before the limit, and only finished ones earn: reward, variance and gradient follow."""
    return Settings(seed=seed, ending_offset=-5.5, reward="finished")


@injected("length-truncation", *_FOLLOWS, "looping-responses", anywhere=False, cause="generation-broken")
def loops_until_the_limit(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The same scalars as with a limit that is too short, but the cut responses repeat two tokens to their end."""
    made = simulate(Settings(seed=_seed(run), ending_offset=-5.5, reward="finished"))
    lengths = np.diff(made.splits)
    place = np.arange(made.splits[-1]) - made.splits[:-1][made.rows]
    looping = ((made.arrays["finish_reason"] == "length") & (lengths > 30))[made.rows] & (place >= 5)
    return with_values(made, token_id=np.where(looping, 10 + place % 2, made.arrays["token_id"]))


@injected("length-truncation", *_FOLLOWS, anywhere=False, cause="engine-ignores-end")
def engine_goes_on_after_the_end(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The end token is written half-way, and the engine goes on to the limit."""
    made = simulate(Settings(seed=_seed(run), ending_offset=-5.5, reward="finished"))
    place = np.arange(made.splits[-1]) - made.splits[:-1][made.rows]
    at = random.integers(8, 20, len(made.splits) - 1)[made.rows]
    return with_values(made, token_id=np.where(place == at, END, made.arrays["token_id"]))


@graded("length-collapse", "impossible-lengths", "response-mask-mismatch", "length-truncation", "stop-without-eos",
        sizes=(0.6, 0.4, 0.25, 0.1), least_size=0.25, unit="of the length left", least="info", needs=("turn",))  # fmt: skip
def responses_shrink_at_once(run: SimulatedRun, random: Random, size: float, first: int) -> SimulatedRun:  # noqa: ARG001
    """From a step on responses are cut to a share of their length, rows and masks with them, and earn what they did.

    Recorded responses of a single turn have a few tokens only.
    """
    lengths = np.diff(run.splits)
    late = run.arrays["step"] >= first
    kept = np.where(late, np.maximum(np.round(size * lengths), 1), lengths).astype(np.int64)
    splits = np.concatenate([[0], np.cumsum(kept)]).astype(np.int64)
    tokens = np.repeat(run.splits[:-1] - splits[:-1], kept) + np.arange(splits[-1])
    arrays = {name: array[tokens] if is_token(name) else array for name, array in run.arrays.items()}
    shorter = replace(run, arrays=arrays, splits=splits)
    more = {name: kept.astype(np.int32) for name in ("response_length", "stored_length") if name in arrays}
    return with_values(shorter, **more)


@injected("length-logged-of-mask", least="info", log=False, anywhere=False, cause="lengths-of-the-mask")
def lengths_of_the_zeroed_mask(run: SimulatedRun, random: Random) -> SimulatedRun:
    """A log alone: the shortest response has 0 tokens, the longest that of the finished ones, as some are cut at each step."""
    steps = np.unique(run.arrays["step"])
    n = len(steps)
    ended = 200.0 + 20.0 * random.random(n)
    values = {
        "length.min": np.zeros(n), "length.max": ended, "length.ended_max": ended, "length.mean": 90.0 + 5.0 * random.random(n),
        "length.truncated_frac": 0.1 + 0.05 * random.random(n), "reward.mean": 0.4 + 0.05 * random.random(n),
    }  # fmt: skip
    log = MetricLog({(name, "train"): (steps, part) for name, part in values.items()})
    return replace(run, arrays={"step": run.arrays["step"]}, splits=np.zeros(len(run.splits), np.int64), log=log).with_config(
        max_response_length=256
    )


@injected("truncation-logged-zero", least="info", log=False, anywhere=False, cause="truncation-not-counted")
def clip_ratio_never_counted(run: SimulatedRun, random: Random) -> SimulatedRun:
    """A log alone: the longest response has the limit's length at each step, and no response is counted as cut."""
    steps = np.unique(run.arrays["step"])
    n = len(steps)
    values = {
        "length.max": np.full(n, 256.0), "length.mean": 190.0 + 5.0 * random.random(n), "length.truncated_frac": np.zeros(n),
        "reward.mean": 0.4 + 0.05 * random.random(n),
    }  # fmt: skip
    log = MetricLog({(name, "train"): (steps, part) for name, part in values.items()})
    return replace(run, arrays={"step": run.arrays["step"]}, splits=np.zeros(len(run.splits), np.int64), log=log).with_config(
        max_response_length=256
    )


@injected("long-samples-left-out", "empty-response-mask", "empty-mask", anywhere=False, cause="long-samples-discarded")
def long_groups_are_dropped(run: SimulatedRun, random: Random) -> SimulatedRun:
    """Half of the responses that are longer than most are masked as a whole: they came too late."""
    length = run.arrays["response_length"]
    late = (length > np.quantile(length, 0.7)) & (random.random(len(length)) < 0.6)
    return with_values(run, response_mask=run.arrays["response_mask"] & ~late[run.rows])


@injected("length-collapse", "reward-drift", "reward-hacking-suspected", "reward-variance-shift", "zero-variance-groups",
          "near-zero-variance-groups", "entropy-collapse", "reward-at-bound", "duplicate-samples", "data-duplicates",
          "reward-flatline", "same-answer-rewarded", "mask-misses-eos", anywhere=False, damage="length.mean",
          sooner=("same-answer-rewarded",), cause="one-answer-for-all")  # fmt: skip
def one_short_answer_for_all(run: SimulatedRun, random: Random) -> SimulatedRun:
    """Over ten steps ever more responses become the same three tokens, whatever the prompt, and earn the full reward."""
    first = onset(run, 0.4)
    _, place = np.unique(run.arrays["uid"], return_inverse=True)
    share = np.clip((run.arrays["step"] - first + 1.0) / 10.0, 0.0, 0.95)
    hacked = (random.random(place.max() + 1)[place] < share) & (np.diff(run.splits) >= 3)
    lengths = np.diff(run.splits)
    kept = np.where(hacked, 3, lengths).astype(np.int64)
    splits = np.concatenate([[0], np.cumsum(kept)]).astype(np.int64)
    tokens = np.repeat(run.splits[:-1] - splits[:-1], kept) + np.arange(splits[-1])
    arrays = {name: array[tokens] if is_token(name) else array for name, array in run.arrays.items()}
    short = replace(run, arrays=arrays, splits=splits)
    inside = np.arange(splits[-1]) - splits[:-1][short.rows]
    answer = np.array([7, 8, END])[np.minimum(inside, 2)]
    short = with_values(
        short, token_id=np.where(hacked[short.rows], answer, short.arrays["token_id"]),
        response_length=kept, stored_length=kept,
        finish_reason=np.where(hacked, "stop", short.arrays["finish_reason"]).astype(object),
    )  # fmt: skip
    return relogged(with_reward(short, np.where(hacked, 1.2, short.arrays["reward"])))
