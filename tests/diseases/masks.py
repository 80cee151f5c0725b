"""Masks, prompts, observations, and rows that are not what they seem."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rl_doctor.schema import ROLES
from tests.diseases.catalogue import graded, injected
from tests.simulation.inject import extended, onset, with_advantages, with_row_advantages, with_values
from tests.simulation.run import SimulatedRun
from tests.simulation.settings import PAD

Random = np.random.Generator
_TOOL = ROLES.index("tool")


def _row_advantage(run: SimulatedRun) -> np.ndarray:
    """The advantage of each row, from its trained tokens."""
    largest = np.zeros(len(run.splits) - 1)
    trained = run.arrays["response_mask"]
    largest[run.rows[trained]] = run.arrays["advantage"][trained]
    return largest


@injected("mask-covers-padding", "missing-rollout-logprob", "rollout-trainer-mismatch", cause="mask-of-padded-width")
def mask_covers_padding(run: SimulatedRun, random: Random) -> SimulatedRun:
    """Every row is padded to the longest of its step and the mask covers it. The engine's logprob is 0 there."""
    step, length = run.arrays["step"], np.diff(run.splits)
    widest = np.zeros(step.max() + 1, np.int64)
    np.maximum.at(widest, step, length)
    extra = widest[step] - length
    advantage = _row_advantage(run)
    fill = {"token_id": run.info.pad_token_id or PAD, "response_mask": True, "entropy": 3.0, "old_entropy": 3.0}
    longer = extended(run, extra, fill)
    added = np.arange(longer.splits[-1]) - longer.splits[:-1][longer.rows] >= length[longer.rows]
    guess = -10.0 + random.standard_normal(len(added))
    drift: dict[str, np.ndarray] = {name: np.where(added, guess, longer.arrays[name]) for name in ("logprob", "old_logprob")}
    if "ref_logprob" in longer.arrays:
        drift["ref_logprob"] = np.where(added, guess + 0.1 * random.standard_normal(len(added)), longer.arrays["ref_logprob"])
    return with_row_advantages(with_values(longer, **drift), advantage)


@injected("mask-misses-eos", needs=("finish_reason", "token_id"), cause="eos-masked-with-padding")
def mask_misses_eos(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The mask ends before the end token, since padding and end share an id."""
    run = replace(run, info=replace(run.info, pad_token_id=(run.info.eos_token_ids or (None,))[0]))
    last = run.splits[1:][run.arrays["finish_reason"] == "stop"] - 1
    mask, advantage = run.arrays["response_mask"].copy(), run.arrays["advantage"].copy()
    mask[last], advantage[last] = False, 0.0
    return with_values(run, response_mask=mask, advantage=advantage)


@injected("mask-inverted", "observation-in-loss", "mask-misses-eos", "missing-rollout-logprob", "rollout-trainer-mismatch",
          "zero-variance-groups", into="agentic", needs=("role",), cause="mask-means-opposite")  # fmt: skip
def mask_inverted(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Only what the environment wrote is trained on: observations, without engine logprobs, but no end token."""
    advantage = _row_advantage(run)
    return with_row_advantages(with_values(run, response_mask=~run.arrays["response_mask"]), advantage)


@injected("observation-in-loss", "missing-rollout-logprob", "rollout-trainer-mismatch", into="agentic", needs=("role",),
          cause="observations-trained")  # fmt: skip
def observation_in_loss(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Tool output is trained on; the engine has no logprob of it, the buffer holds 0."""
    advantage = _row_advantage(run)
    mask = run.arrays["response_mask"] | (run.arrays["role"] == _TOOL)
    return with_row_advantages(with_values(run, response_mask=mask), advantage)


@injected("observation-in-loss", "missing-rollout-logprob", "rollout-trainer-mismatch", into="agentic", needs=("role",),
          cause="observations-trained")  # fmt: skip
def observation_in_some_rows(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The same in a third of the sequences."""
    advantage = _row_advantage(run)
    leaking = (random.random(len(run.splits) - 1) < 0.33)[run.rows]
    mask = run.arrays["response_mask"] | (leaking & (run.arrays["role"] == _TOOL))
    return with_row_advantages(with_values(run, response_mask=mask), advantage)


@injected("prompt-in-loss", cause="whole-sequence-mask")
def prompt_in_loss(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The loss covers the whole prompt."""
    return with_values(run, prompt_loss_tokens=run.arrays["prompt_length"])


@injected("advantage-outside-mask", into="agentic", least="info", needs=("role",), cause="advantage-without-mask")
def advantage_outside_mask(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Tokens that are not trained on carry an advantage of their own: whitened without the mask."""
    outside = np.where(run.arrays["response_mask"], run.arrays["advantage"], -0.7 * _row_advantage(run)[run.rows] + 0.3)
    return with_values(run, advantage=outside)


@injected("advantage-outside-mask", into="agentic", least="info", needs=("role",), cause="advantage-repeated-over-observations")
def advantage_repeated_over_observations(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """One number per response is spread over all that is stored of it."""
    return with_values(run, advantage=_row_advantage(run)[run.rows])


@injected("non-finite", "logged-metric-mismatch")
def nan_logprob_from_a_step_on(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Every logprob of the trainer is NaN from a step on. A mean over NaN is NaN or what is left, depending on the trainer."""
    bad = run.token_step >= onset(run)
    return with_values(run, **{name: np.where(bad, np.nan, run.arrays[name]) for name in ("logprob", "old_logprob")})


@injected("non-finite", "logged-metric-mismatch", "ratio-saturation", "kl-spike", "kl-runaway", "inert-ratio",
          "stale-old-logprob", log=False)  # fmt: skip
def infinite_logprob_at_a_step(run: SimulatedRun, random: Random) -> SimulatedRun:
    """One token in fifty has a logprob of minus infinity at one step; what depends on it is infinite there too."""
    bad = (run.token_step == onset(run)) & (random.random(run.splits[-1]) < 0.02)
    return with_values(run, logprob=np.where(bad, -np.inf, run.arrays["logprob"]))


@injected("non-finite", log=False)
def nan_advantage_at_a_step(run: SimulatedRun, random: Random) -> SimulatedRun:
    """A tenth of the rows of one step has NaN advantages."""
    bad = (run.arrays["step"] == onset(run)) & (random.random(len(run.splits) - 1) < 0.1)
    return with_values(run, advantage=np.where(bad[run.rows], np.nan, run.arrays["advantage"]))


@injected("non-finite", log=False)
def infinite_reward_at_a_step(run: SimulatedRun, random: Random) -> SimulatedRun:
    """One row in ten of one step has an infinite reward."""
    bad = (run.arrays["step"] == onset(run)) & (random.random(len(run.splits) - 1) < 0.1)
    return with_values(run, reward=np.where(bad, np.inf, run.arrays["reward"]))


@injected("non-finite", into="agentic", log=False, least="info", needs=("role",))
def nan_where_masked(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The trainer's logprobs are NaN on observed tokens only: harmless until someone multiplies by the mask."""
    bad = ~run.arrays["response_mask"] & (run.token_step >= onset(run))
    return with_values(run, **{name: np.where(bad, np.nan, run.arrays[name]) for name in ("logprob", "old_logprob")})


@injected("impossible-logprob", cause="logprobs-above-zero")
def logprob_above_zero(run: SimulatedRun, random: Random) -> SimulatedRun:
    """A normaliser that is wrong at some tokens: a tenth of all logprobs of the trainer lies above 0."""
    above = random.random(run.splits[-1]) < 0.1
    value = 0.03125 * random.integers(1, 5, run.splits[-1])
    names = [name for name in ("logprob", "old_logprob", "ref_logprob") if name in run.arrays]
    return with_values(run, **{name: np.where(above, value, run.arrays[name]) for name in names})


@injected("duplicate-samples", "zero-variance-groups", needs=("token_id", "group"), cause="seed-shared")
def duplicate_samples(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Two ranks share a seed: in each group the second half repeats the first, so that more groups have equal rewards."""
    place: dict[tuple[str, int], int] = {}
    turn = np.zeros(len(run.splits) - 1, np.int64)
    members: dict[str, set[str]] = {}
    for row, (uid, group) in enumerate(zip(run.arrays["uid"], run.arrays["group"], strict=True)):
        while (uid, int(turn[row])) in place:
            turn[row] += 1
        place[uid, int(turn[row])] = row
        members.setdefault(group, set()).add(uid)
    twin: dict[str, str] = {}
    for group in members.values():
        names = sorted(group)
        twin |= {name: names[index % ((len(names) + 1) // 2)] for index, name in enumerate(names)}
    source = np.array([place[twin[uid], int(turn[row])] for row, uid in enumerate(run.arrays["uid"])])
    kept = ("uid", "sequence", "step", "epoch", "minibatch", "microbatch", "rank")
    return with_advantages(with_values(run.take(source), **{name: run.arrays[name] for name in kept if name in run.arrays}))


@injected("repeated-steps")
def duplicate_steps(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Three steps are written twice."""
    step, first = run.arrays["step"], onset(run)
    again = np.flatnonzero((step >= first) & (step < first + 3))
    rows = np.concatenate([np.arange(len(step)), again])
    return run.take(rows[np.argsort(step[rows], kind="stable")])


@injected("dropped-steps")
def dropped_steps(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The recorder dropped five steps and counted them."""
    step, first = run.arrays["step"], onset(run)
    kept = run.take(np.flatnonzero((step < first) | (step >= first + 5)))
    return replace(kept, dropped_steps=5)


@injected("empty-mask", cause="responses-filtered")
def mask_empty_in_most_rows(run: SimulatedRun, random: Random) -> SimulatedRun:
    """A filter removes seven rows of ten, whatever they are, before anything else makes a mask."""
    gone = (random.random(len(run.splits) - 1) < 0.7)[run.rows]
    masks = {name: run.arrays[name] & ~gone for name in ("response_mask", "loss_mask") if name in run.arrays}
    return with_values(run, **masks, advantage=np.where(gone, 0.0, run.arrays["advantage"]))


@graded("empty-mask", "logged-metric-mismatch", "written-tokens-untrained", sizes=(0.005, 0.03, 0.2), least_size=0.03,
        unit="of the rows", cause="mask-empty-in-some-rows", needs=("finish_reason",))  # fmt: skip
def mask_empty_in_some_rows(run: SimulatedRun, random: Random, size: float, first: int) -> SimulatedRun:
    """The mask of a few rows is empty, whatever they are."""
    emptied = (random.random(len(run.splits) - 1) < size)[run.rows] & (run.token_step >= first)
    mask, advantage = run.arrays["response_mask"] & ~emptied, np.where(emptied, 0.0, run.arrays["advantage"])
    return with_values(run, response_mask=mask, advantage=advantage)


@injected("impossible-length", "length-truncation", "mask-covers-padding", "mask-misses-eos", "stop-without-eos",
          "logged-metric-mismatch", log=False)  # fmt: skip
def lengths_contradict(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The length columns were shuffled apart from the tokens. What follows from lengths is wrong too."""
    order = random.permutation(len(run.splits) - 1)
    return with_values(run, **{name: run.arrays[name][order] for name in ("stored_length", "response_length")})


@injected("unreadable-parts")
def part_file_damaged(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The reader had to leave out a part file."""
    return replace(run, skipped_parts=("tokens-s0-r0-3.parquet: cut short",))
