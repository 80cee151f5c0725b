"""A softmax policy over 50 tokens whose logits depend on the prompt, the previous token and the position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.simulation.settings import BEGIN, CALL, END, PAD, VOCABULARY, Settings

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_NEVER = -30.0
_ENDING = (-4.5, 0.5)
"""Log-odds of ending the response at the first and at the last position allowed."""


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """One version of the policy.

    Attributes:
        base: float64 ``[prompt_kinds, V, V]``, fixed logits by prompt and previous token.
        transition: float64 ``[V, V]``, learned, by previous token.
        bias: float64 ``[prompt_kinds, V]``, learned, by prompt.
        ending: float64 ``[max_length]``, added to the logit of the end token by position.
    """

    base: Floats
    transition: Floats
    bias: Floats
    ending: Floats

    def moved(self, transition: Floats, bias: Floats) -> Weights:
        """The version after adding to the learned parts."""
        return Weights(self.base, self.transition + transition, self.bias + bias, self.ending)

    def distorted(self, sharpening: float, lengthening: float) -> Weights:
        """The version with all other logits multiplied by 1 + sharpening, and that of the end lowered by lengthening."""
        grown = 1.0 + sharpening
        return Weights(self.base * grown, self.transition * grown, self.bias * grown, self.ending - lengthening)

    def table(self) -> Floats:
        """Logits ``[prompt_kinds, V, V]`` without the part that depends on the position."""
        table: Floats = self.base + self.transition + self.bias[:, None, :]
        return table

    def logits(self, kind: Ints, previous: Ints, position: Ints) -> Floats:
        """Logits ``[n, V]`` of n contexts."""
        rows: Floats = self.base[kind, previous] + self.transition[previous] + self.bias[kind]
        rows[:, END] += self.ending[position]
        return rows


@dataclass(frozen=True, slots=True, eq=False)
class Law:
    """Log-probabilities of sampled tokens, entropies and probabilities of their contexts: ``[n]``, ``[n]``, ``[n, V]``."""

    logprob: Floats
    entropy: Floats
    probabilities: Floats


def law(logits: Floats, token: Ints, temperature: float) -> Law:
    """The softmax law at a temperature."""
    scaled = logits / temperature
    scaled -= scaled.max(1, keepdims=True)
    probabilities = np.exp(scaled)
    total = probabilities.sum(1, keepdims=True)
    probabilities /= total
    scaled -= np.log(total)
    entropy = -np.einsum("ij,ij->i", probabilities, scaled)
    return Law(scaled[np.arange(len(token)), token], entropy, probabilities)


def first_weights(settings: Settings, rng: np.random.Generator) -> Weights:
    """The weights before training, which are also the reference."""
    size = (settings.prompt_kinds, VOCABULARY, VOCABULARY)
    base = settings.sharpness * (0.8 * rng.standard_normal(size) + 0.6 * rng.standard_normal((1, *size[1:])))
    base[:, :, [PAD, BEGIN]] = _NEVER
    base[:, :, CALL] = 0.5 * settings.sharpness if settings.tools else _NEVER
    base[:, :, END] = _NEVER
    base -= np.log(np.exp(base).sum(2, keepdims=True))
    base[:, :, END] = 0.0
    for number, source in enumerate(settings.sources):
        base[settings.kinds_of(number), :, END] = source.ending
    ending = np.linspace(*_ENDING, settings.max_length) + settings.ending_offset
    zeros = np.zeros((VOCABULARY, VOCABULARY))
    return Weights(base, zeros, np.zeros((settings.prompt_kinds, VOCABULARY)), ending)


def truncate(probabilities: Floats, top_p: float) -> Floats:
    """Keep the smallest set of most probable tokens that holds ``top_p`` and renormalise, per row."""
    order = np.argsort(-probabilities, axis=1)
    ranked = np.take_along_axis(probabilities, order, 1)
    ranked[np.cumsum(ranked, 1) - ranked >= top_p] = 0.0
    kept = np.zeros_like(probabilities)
    np.put_along_axis(kept, order, ranked, 1)
    normalised: Floats = kept / kept.sum(1, keepdims=True)
    return normalised


def as_bfloat16(values: NDArray[Any]) -> NDArray[np.float32]:
    """Round to bfloat16, to nearest even, kept as float32."""
    bits = values.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.astype(np.uint32).view(np.float32)
