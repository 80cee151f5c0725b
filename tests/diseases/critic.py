"""Faults of advantages and returns of a critic, and of the KL penalty in the rewards of its tokens."""

from __future__ import annotations

import numpy as np

from rl_doctor.store.codes import codes
from tests.diseases.catalogue import graded, injected
from tests.simulation.critic import generalised, whitened
from tests.simulation.inject import Floats, onset, rolled, with_values
from tests.simulation.run import SimulatedRun
from tests.simulation.settings import Settings

Random = np.random.Generator
_NEEDS = ("advantage", "return", "old_value", "token_reward")
_PENALTY = (*_NEEDS, "reward", "ref_logprob", "old_logprob")


def _recomputed(run: SimulatedRun, reward: Floats, lam: float, at: int) -> SimulatedRun:
    """The run with the advantages and returns that rewards of tokens and old values give from a step on."""
    value, late = run.arrays["old_value"].astype(np.float64), run.token_step >= at
    made = Settings(seed=0, gamma=run.info.config.gamma or 0.0, lam=lam)
    plain, returns = generalised(made, reward, value, run.rows)
    advantage = run.arrays["advantage"].astype(np.float64)
    for step in np.unique(run.token_step[late]):
        inside = run.token_step == step
        advantage[inside] = whitened(plain[inside])
    return with_values(run, advantage=advantage, **{"return": np.where(late, returns, run.arrays["return"])})


def _moved(run: SimulatedRun, name: str, lag: int, at: int) -> SimulatedRun:
    """A column of tokens moved by ``lag`` within each response from a step on; 0 where nothing comes from."""
    made = rolled(run, name, np.where(run.arrays["step"] >= at, lag, 0))
    place = np.arange(run.splits[-1]) - run.splits[:-1][run.rows]
    left = run.splits[1:][run.rows] - np.arange(run.splits[-1]) - 1
    edge = (place < lag) | (left < -lag)
    return with_values(made, **{name: np.where(edge & (run.token_step >= at), 0.0, made.arrays[name])})


@injected("gae-mismatch", "value-not-learning", into="critic", needs=_NEEDS, cause="returns-shifted")
def returns_one_token_late(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Returns are sliced as logits are; the critic may stop following them."""
    return _moved(run, "return", 1, 0)


@injected("gae-mismatch", "value-not-learning", into="critic", needs=_NEEDS, cause="returns-shifted")
def returns_one_token_early(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The other way round, from the middle of the run on."""
    return _moved(run, "return", -1, onset(run))


@injected("gae-mismatch", into="critic", needs=_NEEDS, cause="token-advantages-shifted")
def token_advantages_one_late(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Advantages are sliced as logits are."""
    return _moved(run, "advantage", 1, 0)


@injected("gae-mismatch", into="critic", needs=_NEEDS, cause="advantage-sign-turned")
def critic_with_the_sign_turned(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The loss is negated twice."""
    return with_values(run, advantage=-run.arrays["advantage"])


def _exchanged(run: SimulatedRun, random: Random, name: str) -> SimulatedRun:
    """Each response has the values of another of its step, cut or filled with 0 to its own length."""
    uid, lengths = codes(run.arrays["uid"]), np.diff(run.splits)
    _, first, place = np.unique(uid, return_index=True, return_inverse=True)
    other = np.empty(len(first), np.int64)
    for step in np.unique(run.arrays["step"][first]):
        inside = np.flatnonzero(run.arrays["step"][first] == step)
        other[inside] = np.roll(inside, 1 + int(random.integers(len(inside) - 1)))
    source = first[other][place]
    at = np.arange(run.splits[-1]) - run.splits[:-1][run.rows]
    there = at < lengths[source][run.rows]
    taken = run.splits[:-1][source][run.rows] + np.where(there, at, 0)
    return with_values(run, **{name: np.where(there, run.arrays[name][taken], 0.0)})


@injected("gae-mismatch", into="critic", needs=(*_NEEDS, "uid"), cause="token-advantages-of-other-rows")
def critic_of_other_rows(run: SimulatedRun, random: Random) -> SimulatedRun:
    """A batch is balanced after its advantages were computed, and they stay where they were."""
    return _exchanged(run, random, "advantage")


@injected("gae-mismatch", into="critic", needs=_NEEDS, cause="token-advantages-unknown")
def critic_replaced_by_noise(run: SimulatedRun, random: Random) -> SimulatedRun:
    """Advantages are read from a buffer that another batch has overwritten."""
    return with_values(run, advantage=random.standard_normal(len(run.arrays["advantage"])))


@injected("gae-mismatch", "value-not-learning", into="critic", needs=(*_NEEDS, "uid"), least="info",
          cause="returns-of-another-kind")  # fmt: skip
def returns_of_other_rows(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The returns alone are exchanged; normalised ones look alike, so that it is no more than worth knowing."""
    return _exchanged(run, random, "return")


@graded("gae-mismatch", sizes=(0.002, 0.01, 0.03, 0.1), least_size=0.01, unit="of lambda", into="critic", needs=_NEEDS,
        cause="gae-settings-differ")  # fmt: skip
def another_lambda(run: SimulatedRun, random: Random, size: float, at: int) -> SimulatedRun:  # noqa: ARG001
    """An option that does not reach the place where advantages are computed."""
    reward = run.arrays["token_reward"].astype(np.float64)
    return _recomputed(run, reward, (run.info.config.lam or 0.0) - size, at)


def _with_penalty(run: SimulatedRun, factor: float, at: int) -> SimulatedRun:
    """The KL penalty of the recorded rewards multiplied, with advantages and returns that follow."""
    ahead = run.arrays["old_logprob"].astype(np.float64) - run.arrays["ref_logprob"]
    added = np.where(run.token_step >= at, -(factor - 1.0) * (run.info.config.kl_coef or 0.0) * ahead, 0.0)
    reward = run.arrays["token_reward"].astype(np.float64) + added
    total = run.arrays["reward"] + np.bincount(run.rows, added, minlength=len(run.splits) - 1)
    made = with_values(run, token_reward=reward, reward=total)
    return _recomputed(made, reward, run.info.config.lam or 0.0, at)


@graded("kl-coefficient-differs", "value-not-learning", "reward-drift", sizes=(1.05, 1.2, 2.0, 10.0), least_size=1.2,
        unit="times", into="critic", needs=_PENALTY, cause="kl-coefficient-not-configured")  # fmt: skip
def another_coefficient(run: SimulatedRun, random: Random, size: float, at: int) -> SimulatedRun:  # noqa: ARG001
    """The coefficient is multiplied twice; where it is large, the rewards fall and the critic does not expect it."""
    return _with_penalty(run, size, at)


@injected("kl-coefficient-differs", into="critic", needs=_PENALTY, cause="kl-paid-for")
def distance_is_paid_for(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The sign of the penalty in the reward is turned."""
    return _with_penalty(run, -1.0, 0)
