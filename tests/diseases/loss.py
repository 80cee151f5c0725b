"""Faults of the loss: what a token weighs, how it is clipped, and what its terms are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rl_doctor.store.metric_log import MetricLog
from tests.diseases.catalogue import graded, injected
from tests.simulation.inject import with_values
from tests.simulation.logs import relogged
from tests.simulation.run import SimulatedRun

Random = np.random.Generator
_LAGGING = ("ratio-saturation", "kl-spike", "kl-runaway")


def _update(run: SimulatedRun) -> np.ndarray:
    """The number of the optimizer step of each row, from 0."""
    names = [name for name in ("step", "epoch", "minibatch") if name in run.arrays]
    return np.unique(np.stack([run.arrays[name] for name in names]), axis=1, return_inverse=True)[1].reshape(-1)


def _tokens(run: SimulatedRun) -> np.ndarray:
    return np.bincount(run.rows, run.arrays["response_mask"], len(run.splits) - 1).astype(np.int64)


def _over(key: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The sum of values over the rows that share a key, at each row."""
    return np.bincount(key, values)[key].astype(np.int64)


@graded("uneven-token-weights", sizes=(1.1, 1.3, 2.0, 4.0, 10.0), least_size=2.0, unit="times the tokens",
        cause="each-rank-own-tokens")  # fmt: skip
def ranks_divide_by_their_own_tokens(run: SimulatedRun, random: Random, size: float, first: int) -> SimulatedRun:
    """Two ranks, one with more tokens than the other; each divides by its own. Before the onset they divide by all."""
    tokens, update = _tokens(run), _update(run)
    rank = (random.random(len(tokens)) < 1.0 / (1.0 + size)).astype(np.int64)
    own = _over(2 * update + rank, tokens)
    divisor = np.where(run.arrays["step"] >= first, own, _over(update, tokens))
    run = replace(run, info=replace(run.info, world_size=2, writing_ranks=(0, 1)))
    return with_values(run, rank=rank, batch_num_tokens=divisor)


@injected(
    "loss-normaliser-scale", "logged-metric-mismatch", into="two_epochs", anywhere=False, cause="loss-divided-by-other-tokens"
)
def divided_by_the_generation_batch(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The normaliser counts the tokens of all mini-batches of a pass; the log has another loss, which may be told."""
    keys = np.stack([run.arrays[name] for name in ("step", "epoch")])
    key = np.unique(keys, axis=1, return_inverse=True)[1].reshape(-1)
    many = _over(key, _tokens(run))
    return with_values(run, batch_num_tokens=many)


def _ratios(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The run with ratios that reach far in later passes, on both sides."""
    later = (run.arrays["epoch"] + run.arrays["minibatch"] > 0)[run.rows]
    moved = run.arrays["old_logprob"].astype(np.float64) + np.where(later, 1.2 * random.standard_normal(len(later)), 0.0)
    return with_values(run, logprob=np.minimum(moved, -1e-4))


def _logged_loss(run: SimulatedRun, loss: np.ndarray, name: str = "actor/pg_loss") -> SimulatedRun:
    """The run whose log has a policy loss: the mean over the trained tokens of each mini-batch, and of these over the step."""
    made, mask = relogged(run), run.arrays["response_mask"]
    update = _update(run)
    token = update[run.rows][mask]
    means = np.bincount(token, loss[mask]) / np.bincount(token)
    first = np.unique(update, return_index=True)[1]
    steps, place = np.unique(run.arrays["step"][first], return_inverse=True)
    values = np.bincount(place, means) / np.bincount(place)
    return replace(made, log=MetricLog({**made.log.points, (name, "train"): (steps, values)}))


def _parts(run: SimulatedRun) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ratio, ratio within the clip range, advantage."""
    config = run.info.config
    ratio = np.exp(run.arrays["logprob"].astype(np.float64) - run.arrays["old_logprob"])
    return ratio, np.clip(ratio, 1.0 - config.clip_low, 1.0 + config.clip_high), run.arrays["advantage"].astype(np.float64)


@injected("logged-metric-mismatch", *_LAGGING, into="two_epochs", log=False, anywhere=False, cause="dual-clip-without-inner")
def dual_clip_without_the_inner_clip(run: SimulatedRun, random: Random) -> SimulatedRun:
    """For a negative advantage the loss is bounded by 3 |A| alone. The ratios that show it saturate, which may be told."""
    run = _ratios(run.with_config(dual_clip=3.0), random)
    ratio, inside, advantage = _parts(run)
    usual = np.maximum(-advantage * ratio, -advantage * inside)
    return _logged_loss(run, np.where(advantage < 0, np.minimum(-advantage * ratio, -3.0 * advantage), usual))


@injected("logged-metric-mismatch", *_LAGGING, into="two_epochs", log=False, anywhere=False, cause="dual-clip-on-both-signs")
def dual_clip_on_both_signs(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The loss of a positive advantage is bounded too, by 1.1 |A|: a ratio above 1.1 earns no more."""
    run = _ratios(run.with_config(dual_clip=1.1), random)
    ratio, inside, advantage = _parts(run)
    usual = np.maximum(-advantage * ratio, -advantage * inside)
    return _logged_loss(run, np.clip(usual, -1.1 * np.abs(advantage), 1.1 * np.abs(advantage)))
