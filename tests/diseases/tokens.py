"""Tokens that are not those that were sampled, or that repeat."""

from __future__ import annotations

import numpy as np

from rl_doctor.schema import ROLES
from tests.diseases.catalogue import graded, injected
from tests.simulation.inject import with_values
from tests.simulation.run import SimulatedRun

Random = np.random.Generator
_COMPANY = (
    "rollout-trainer-mismatch",
    "logprob-misaligned",
    "mismatch-in-some-rows",
    "tokens-contradict-entropy",
    "missing-rollout-logprob",
    "part-off-policy",
    "stale-old-logprob",
)
_TOOL = ROLES.index("tool")
_LEAST = 24


def _moved(run: SimulatedRun, rows: np.ndarray, begins: dict[int, int]) -> SimulatedRun:
    """The engine's logprobs of some rows moved by one trained token from a trained token on."""
    rollout, mask = run.arrays["rollout_logprob"].copy(), run.arrays["response_mask"]
    for row in rows.tolist():
        at = np.flatnonzero(mask[run.splits[row] : run.splits[row + 1]]) + run.splits[row]
        rollout[at[begins[row] :]] = np.roll(rollout[at[begins[row] :]], 1)
    return with_values(run, rollout_logprob=rollout)


def _trained(run: SimulatedRun) -> np.ndarray:
    return np.bincount(run.rows[run.arrays["response_mask"]], minlength=len(run.splits) - 1)


@graded(
    "mismatch-within-response",
    *_COMPANY,
    sizes=(0.02, 0.1, 0.5),
    least_size=0.1,
    unit="rows",
    into="two_epochs",
    needs=("rollout_logprob", "token_id"),
    cause="retokenised",
    asks=(3, 24),
)
def retokenised(run: SimulatedRun, random: Random, size: float, onset: int) -> SimulatedRun:
    """In some of the longer responses every token from one in the middle on has the logprob of the token before."""
    long = (_trained(run) >= _LEAST) & (run.arrays["step"] >= onset)
    rows = np.flatnonzero(long & (random.random(len(long)) < size))
    return _moved(run, rows, {row: int(random.integers(9, _trained(run)[row] - 11)) for row in rows.tolist()})


@injected(
    "mismatch-within-response",
    *_COMPANY,
    into="agentic",
    needs=("role", "rollout_logprob"),
    cause="context-differs-after-tools",
    anywhere=False,
)
def context_differs_after_tools(run: SimulatedRun, random: Random) -> SimulatedRun:
    """What the policy writes after its first observation has logprobs in another context."""
    mask = run.arrays["response_mask"]
    rollout = run.arrays["rollout_logprob"].copy()
    for row in range(len(run.splits) - 1):
        inside = slice(run.splits[row], run.splits[row + 1])
        gaps = np.flatnonzero(~mask[inside])
        if not gaps.size:
            continue
        at = np.flatnonzero(mask[inside])
        at = at[at > gaps[0]] + run.splits[row]
        rollout[at] = -np.abs(random.normal(1.5, 1.2, at.size))
    return with_values(run, rollout_logprob=rollout)


@injected(
    "duplicate-samples",
    "zero-variance-groups",
    "reward-component-idle",
    "reward-flatline",
    needs=("token_id", "group"),
    anywhere=False,
    cause="sampling-greedy",
)
def sampling_greedy(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Every response of a group is the first one."""
    from tests.simulation.inject import with_advantages

    first: dict[str, int] = {}
    source = np.array([first.setdefault(group, row) for row, group in enumerate(run.arrays["group"])])
    kept = ("uid", "sequence", "step", "epoch", "minibatch", "microbatch", "rank")
    return with_advantages(with_values(run.take(source), **{name: run.arrays[name] for name in kept if name in run.arrays}))


@injected("looping-responses", "length-truncation", into="two_epochs", needs=("token_id",), cause="policy-loops", anywhere=False)
def responses_end_in_a_circle(run: SimulatedRun, random: Random) -> SimulatedRun:
    """In the second half of the run most of the longer responses end by the same three tokens again and again."""
    length, token = np.diff(run.splits), run.arrays["token_id"].copy()
    late = run.arrays["step"] >= np.median(run.arrays["step"])
    for row in np.flatnonzero(late & (length >= 32) & (random.random(len(length)) < 0.9)).tolist():
        stop = run.splits[row + 1]
        token[stop - 30 : stop] = np.tile(token[stop - 30 : stop - 27], 10)
    return with_values(run, token_id=token)


@injected(
    "looping-responses", "length-truncation", into="two_epochs", needs=("token_id",), cause="generation-broken", anywhere=False
)
def generation_loops_from_the_start(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Every longer response ends by the same token again and again, from the first step on."""
    length, token = np.diff(run.splits), run.arrays["token_id"].copy()
    for row in np.flatnonzero(length >= 32).tolist():
        stop = run.splits[row + 1]
        token[stop - 30 : stop] = 11
    return with_values(run, token_id=token)
