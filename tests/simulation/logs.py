"""What the trainer logs of a run, recomputed from its arrays with the definitions of verl's metrics."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rl_doctor.store.metric_log import MetricLog
from tests.simulation.run import SimulatedRun

Floats = NDArray[np.float64]


def relogged(run: SimulatedRun) -> SimulatedRun:
    """The run with a log that says what its arrays say, as an honest trainer would have logged it."""
    found = {**_rollout_metrics(run), **_critic_metrics(run), **_update_metrics(run)}
    steps = np.unique(run.arrays["step"])
    return replace(run, log=MetricLog({(name, "train"): (steps, values) for name, values in found.items()}))


def _rollout_metrics(run: SimulatedRun) -> dict[str, Floats]:
    """Over each sequence of a step once, whatever the number of passes."""
    arrays = run.arrays
    _, step = np.unique(arrays["step"], return_inverse=True)
    first = np.full(step.max() + 1, np.iinfo(np.int32).max)
    np.minimum.at(first, step, arrays["epoch"])
    rows = arrays["epoch"] == first[step]
    tokens = rows[run.rows] & arrays["response_mask"]
    limit = run.info.config.max_response_length or 0
    found: dict[str, Floats] = {}
    for name, values in (("critic/score", arrays["score"]), ("critic/rewards", arrays["reward"])):
        found |= _spread(name, values[rows], step[rows])
    found |= _spread("critic/advantages", arrays["advantage"][tokens], step[run.rows][tokens])
    found |= _spread("response_length", arrays["response_length"][rows], step[rows])
    found["response_length/clip_ratio"] = _mean(arrays["response_length"][rows] >= limit, step[rows])
    found["actor/entropy"] = _mean(arrays["old_entropy"][tokens], step[run.rows][tokens])
    return found


def _critic_metrics(run: SimulatedRun) -> dict[str, Floats]:
    """Values, returns and how much of these the values explain, over each sequence of a step once."""
    arrays = run.arrays
    if "old_value" not in arrays:
        return {}
    _, step = np.unique(arrays["step"], return_inverse=True)
    first = np.full(step.max() + 1, np.iinfo(np.int32).max)
    np.minimum.at(first, step, arrays["epoch"])
    tokens = (arrays["epoch"] == first[step])[run.rows] & arrays["response_mask"]
    key = step[run.rows][tokens]
    value, returns = (arrays[name][tokens].astype(np.float64) for name in ("old_value", "return"))
    found = {**_spread("critic/values", value, key), **_spread("critic/returns", returns, key)}
    found["critic/vf_explained_var"] = 1.0 - _variance(returns - value, key) / (_variance(returns, key) + 1e-5)
    return found


def _variance(values: Floats, key: NDArray[np.int64]) -> Floats:
    """Variance by key, with ddof 1."""
    counts, centred = np.bincount(key), values - _mean(values, key)[key]
    return np.asarray(np.bincount(key, centred * centred) / np.maximum(counts - 1, 1), np.float64)


def _update_metrics(run: SimulatedRun) -> dict[str, Floats]:
    """A masked mean per mini-batch, then the plain mean over the mini-batches of a step."""
    arrays, config = run.arrays, run.info.config
    key = np.stack([arrays["step"], arrays["epoch"], arrays["minibatch"]], 1)
    batches, batch = np.unique(key, axis=0, return_inverse=True)
    _, step = np.unique(batches[:, 0], return_inverse=True)
    mask = arrays["response_mask"]
    token = batch[run.rows][mask]

    def column(name: str) -> Floats:
        return arrays[name].astype(np.float64)[mask]

    difference, ahead = column("logprob") - column("old_logprob"), column("ref_logprob") - column("logprob")
    ratio = difference
    if run.info.algorithm == "gspo":
        ratio = _mean(difference, run.rows[mask], len(batch))[run.rows[mask]]
    with np.errstate(over="ignore", invalid="ignore"):
        ratio = np.exp(np.clip(ratio, -20.0, 20.0))
        k3 = np.clip(np.expm1(np.clip(ahead, -20.0, 20.0)) - ahead, -10.0, 10.0)
        clipped = np.clip(ratio, 1.0 - (config.clip_low or 0.0), 1.0 + (config.clip_high or 0.0))
        further = -column("advantage") * clipped > -column("advantage") * ratio
    size = len(batches)
    parts = {"actor/grad_norm": _mean(arrays["grad_norm"], batch, size), "actor/lr": _mean(arrays["learning_rate"], batch, size)}
    if "rank" not in arrays and not arrays["microbatch"].any():  # else they are means over ranks and micro-batches
        parts["actor/ppo_kl"] = _mean(-difference, token, size)
        parts["actor/pg_clipfrac"] = _mean(further, token, size)
        if not config.kl_in_reward:
            parts["actor/kl_loss"] = _mean(k3, token, size)
    return {name: _mean(values, step) for name, values in parts.items()}


def _mean(values: NDArray[np.generic], key: NDArray[np.int64], size: int = 0) -> Floats:
    counts = np.bincount(key, minlength=size)
    return np.asarray(np.bincount(key, values.astype(np.float64), minlength=size) / np.maximum(counts, 1), np.float64)


def _spread(name: str, values: NDArray[np.generic], key: NDArray[np.int64]) -> dict[str, Floats]:
    double = values.astype(np.float64)
    low, high = np.full(key.max(initial=-1) + 1, np.inf), np.full(key.max(initial=-1) + 1, -np.inf)
    np.minimum.at(low, key, double)
    np.maximum.at(high, key, double)
    return {f"{name}/mean": _mean(double, key), f"{name}/max": high, f"{name}/min": low}
