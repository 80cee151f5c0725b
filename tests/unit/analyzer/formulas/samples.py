"""Batches to try formulas on: ragged, with empty sequences, of one token, of none, extreme, with ties at the bounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LENGTHS = {
    "ragged": (3, 0, 1, 7, 0, 12, 2, 5),
    "extreme": (4, 9, 0, 1, 6, 6, 2, 30),
    "one token": (1,),
    "one token each": (1, 1, 1),
    "all empty": (0, 0),
    "nothing": (),
}


@dataclass(frozen=True)
class Sample:
    splits: NDArray[np.int64]
    logprob: NDArray[np.float64]
    old: NDArray[np.float64]
    ref: NDArray[np.float64]
    advantage: NDArray[np.float64]
    returns: NDArray[np.float64]
    value: NDArray[np.float64]
    mask: NDArray[np.bool_]
    noise: NDArray[np.float64]
    rewards: NDArray[np.float64]
    labels: NDArray[np.int64]
    of_sequences: NDArray[np.float64]

    @property
    def x(self) -> NDArray[np.float64]:
        return self.logprob - self.old

    @property
    def ratio(self) -> NDArray[np.float64]:
        return np.exp(np.clip(self.x, -20.0, 20.0))

    @property
    def counts(self) -> NDArray[np.int64]:
        return np.diff(self.splits)

    @property
    def weight(self) -> NDArray[np.float64]:
        return np.exp(0.3 * self.noise)


def sample(kind: str, seed: int) -> Sample:
    rng = np.random.default_rng([seed, *map(ord, kind)])
    lengths = np.array(LENGTHS[kind], np.int64)
    n, sequences = int(lengths.sum()), len(lengths)
    wide = kind == "extreme"
    old = -rng.exponential(3.0 if wide else 1.0, n)
    step = rng.normal(size=n) * (rng.choice([1e-9, 1e-3, 0.3, 8.0], n) if wide else 0.3)
    step[rng.random(n) < 0.1] = 0.0
    step[rng.random(n) < 0.1] = np.log(1.2)
    step[rng.random(n) < 0.1] = np.log(0.8)
    if wide and n:
        step[:4] = 45.0, -45.0, 25.0, -25.0
    advantage = rng.normal(size=n) * (rng.choice([1e-6, 1.0, 1e3], n) if wide else 1.0)
    advantage[rng.random(n) < 0.15] = 0.0
    far = rng.normal(size=sequences) * 10.0 ** rng.integers(-3, 4, sequences)
    rewards = far if wide else rng.choice([0.0, 0.5, 1.0], sequences)
    labels = rng.integers(0, 3, sequences)
    if sequences > 5:
        labels[:3] = 7
        labels[3] = 9
        labels[4:] = rng.integers(0, 2, sequences - 4)
    mask = rng.random(n) < 0.7
    returns, value = rng.normal(size=(2, n)) * (100.0 if wide else 1.0)
    return Sample(
        splits=np.append(0, np.cumsum(lengths)).astype(np.int64), logprob=old + step, old=old, ref=old + 0.2 * rng.normal(size=n),
        advantage=advantage, returns=returns, value=value, mask=mask, noise=rng.normal(size=n), rewards=rewards, labels=labels,
        of_sequences=rng.normal(size=sequences),
    )  # fmt: skip
