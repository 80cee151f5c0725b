"""The inference engine: samples responses token by token, with tool calls, stale weights, pauses and aborts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.simulation.policy import Floats, Ints, truncate
from tests.simulation.settings import BEGIN, CALL, END, PAD, Settings

_OBSERVED = (3, 8)
_MAX_CALLS = 3


@dataclass(frozen=True, slots=True, eq=False)
class Responses:
    """Sampled responses, padded to a common width.

    Attributes:
        token: int64 ``[n, width]``.
        stored: bool ``[n, width]``, positions before the end.
        sampled: bool ``[n, width]``, positions that the policy wrote.
        logprob: float64 ``[n, width]``, as the engine reports it; 0 where the policy did not write.
        version_lag: int64 ``[n, width]``, versions behind the newest at which the token was sampled.
        turn: int64 ``[n, width]``.
        finish: object ``[n]``.
    """

    token: Ints
    stored: NDArray[np.bool_]
    sampled: NDArray[np.bool_]
    logprob: Floats
    version_lag: Ints
    turn: Ints
    finish: NDArray[Any]

    def take(self, rows: Ints) -> Responses:
        """These responses, in this order."""
        return Responses(*(getattr(self, field.name)[rows] for field in fields(self)))


def sample(
    settings: Settings, tables: Sequence[Floats], ending: Floats, kind: Ints, lag: Ints, rng: np.random.Generator
) -> Responses:
    """Sample one response per entry of ``kind``.

    Args:
        tables: engine logits ``[prompt_kinds, V, V]`` by version lag, newest first.
        ending: position-dependent logit of the end token.
        kind: prompt of each response.
        lag: version lag at which each response starts.
    """
    n, width = len(kind), settings.max_length
    stack = np.stack(tables)
    token, turn = np.full((n, width), PAD), np.zeros((n, width), np.int64)
    stored, sampled = np.zeros((n, width), np.bool_), np.zeros((n, width), np.bool_)
    logprob, version_lag = np.zeros((n, width)), np.zeros((n, width), np.int64)
    finish = np.full(n, "length", object)
    pause = np.where(rng.random(n) < settings.partial, rng.integers(2, width // 2, n), width)
    abort = np.where(rng.random(n) < settings.aborted, rng.integers(1, width // 2, n), width)
    lag = np.where((pause < width) & (lag == 0), min(1, len(tables) - 1), lag)
    alive, previous, calls, observing = np.ones(n, np.bool_), np.full(n, BEGIN), np.zeros(n, np.int64), np.zeros(n, np.int64)
    for position in range(width):
        alive &= ~((position == abort) & alive & _set(finish, "abort", (position == abort) & alive))
        if not alive.any():
            break
        now = np.where(position >= pause, 0, lag)
        logits = stack[now, kind, previous]
        logits[:, END] += ending[position]
        chosen, reported = _draw(settings, logits, rng)
        watching = observing > 0
        chosen = np.where(watching, rng.integers(4, 24, n), chosen)
        wrote = alive & ~watching
        token[:, position] = np.where(alive, chosen, PAD)
        logprob[:, position] = np.where(wrote, reported, 0.0)
        stored[:, position], sampled[:, position] = alive, wrote
        version_lag[:, position], turn[:, position] = now, calls
        observing = np.maximum(observing - 1, 0)
        called = wrote & (chosen == CALL) & (calls < _MAX_CALLS)
        observing = np.where(called, rng.integers(*_OBSERVED, n), observing)
        calls = calls + called
        ended = wrote & (chosen == END)
        finish[ended] = "stop"
        alive &= ~ended
        previous = chosen
    return Responses(token, stored, sampled, logprob, version_lag, turn, finish)


def _set(finish: NDArray[Any], word: str, rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
    finish[rows] = word
    return rows


def _draw(settings: Settings, logits: Floats, rng: np.random.Generator) -> tuple[Ints, Floats]:
    """One token per row from the sampler's law, with its log-probability under the law that the engine reports."""
    logits = logits - logits.max(1, keepdims=True)
    weights = np.exp(logits / settings.temperature)
    if settings.top_p < 1.0:
        weights = truncate(weights / weights.sum(1, keepdims=True), settings.top_p)
    running = np.cumsum(weights, 1)
    chosen = (running <= rng.random(len(logits))[:, None] * running[:, -1:]).sum(1)
    rows = np.arange(len(logits))
    if settings.reported_at == settings.temperature:
        return chosen, np.log(weights[rows, chosen] / running[:, -1])
    raw = logits / settings.reported_at
    return chosen, raw[rows, chosen] - np.log(np.exp(raw).sum(1))
