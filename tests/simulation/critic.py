"""A critic whose value depends on the prompt, the previous token and the position, and the advantages that follow from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.simulation.policy import Floats, Ints
from tests.simulation.settings import VOCABULARY, Settings
from tests.simulation.training import Tokens


@dataclass(frozen=True, slots=True, eq=False)
class Critic:
    """One version of the critic: what each prompt, previous token and position adds to the value."""

    by_prompt: Floats
    by_token: Floats
    by_position: Floats

    @classmethod
    def first(cls, settings: Settings) -> Critic:
        """The critic before training, which expects nothing."""
        return cls(np.zeros(settings.prompt_kinds), np.zeros(VOCABULARY), np.zeros(settings.max_length))

    def values(self, tokens: Tokens) -> Floats:
        """The value before each token ``[n]``, as float32 holds it."""
        found: Floats = self.by_prompt[tokens.kind] + self.by_token[tokens.previous] + self.by_position[tokens.position]
        return found.astype(np.float32).astype(np.float64)

    def moved(self, settings: Settings, tokens: Tokens, old: Floats, returns: Floats) -> Critic:
        """The critic after a step down the gradient of the clipped squared error, of the size of the mean error of each part."""
        value = self.values(tokens)
        near = np.clip(value, old - settings.value_clip, old + settings.value_clip)
        error = returns - value
        error = np.where((near != value) & (np.abs(returns - near) > np.abs(error)), 0.0, error)
        kept = tokens.mask

        def step(part: Floats, key: Ints) -> Floats:
            counts = np.bincount(key[kept], minlength=len(part))
            sums = np.bincount(key[kept], error[kept], minlength=len(part))
            return np.asarray(part + settings.value_rate / 3.0 * sums / np.maximum(counts, 1), np.float64)

        return Critic(
            step(self.by_prompt, tokens.kind), step(self.by_token, tokens.previous), step(self.by_position, tokens.position)
        )


def generalised(settings: Settings, reward: Floats, value: Floats, sequence: Ints) -> tuple[Floats, Floats]:
    """Advantages before they are whitened, and returns, per token ``[n]``.

    Source: GAE, arXiv:1506.02438, eq. 16, by the recursion from the last token to the first.

    Args:
        reward: of each token.
        value: of the old critic before each token.
        sequence: response of each token, in order.
    """
    rows = int(sequence.max(initial=-1)) + 1
    place = np.arange(len(sequence)) - np.searchsorted(sequence, sequence)
    advantage = np.zeros((rows, int(place.max(initial=-1)) + 2))
    ahead = np.zeros_like(advantage)
    ahead[sequence, place] = value
    paid = np.zeros_like(advantage)
    paid[sequence, place] = reward
    inside = np.zeros(advantage.shape, np.bool_)
    inside[sequence, place] = True
    for at in range(advantage.shape[1] - 2, -1, -1):
        surprise = paid[:, at] + settings.gamma * ahead[:, at + 1] - ahead[:, at]
        advantage[:, at] = np.where(inside[:, at], surprise + settings.gamma * settings.lam * advantage[:, at + 1], 0.0)
    found = advantage[sequence, place]
    return found, found + value


def whitened(values: Floats) -> Floats:
    """Values with mean 0 and variance 1 (ddof 1), as verl whitens advantages."""
    return np.asarray((values - values.mean()) / np.sqrt(values.var(ddof=1) + 1e-8), np.float64)
