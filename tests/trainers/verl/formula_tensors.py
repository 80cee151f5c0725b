"""Seeded tensors for verl's own functions, and the same numbers flat for ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch")

ROWS, WIDTH = 16, 24
LOW, HIGH, DUAL = 0.2, 0.28, 3.0
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Tensors:
    """Padded tensors, with one row without a token, one that is all masked, some of a single token, and holes in the masks."""

    padded: dict[str, Any]
    mask: Any
    labels: NDArray[Any]

    @property
    def flags(self) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = self.mask.numpy().astype(bool)
        return found

    @property
    def counts(self) -> NDArray[np.int64]:
        return np.asarray(self.flags.sum(axis=1), np.int64)

    @property
    def splits(self) -> NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(self.counts)]).astype(np.int64)

    def __getitem__(self, name: str) -> Any:
        return self.padded[name]

    def flat(self, values: Any) -> Floats:
        """The values at the selected tokens, in order."""
        padded = self.padded[values] if isinstance(values, str) else values
        found: Floats = padded.detach().double().numpy()[self.flags]
        return found


def make(seed: int, kind: str) -> Tensors:
    """``kind`` is float64, float32, or bfloat16: rounded to it and held in float32."""
    random = np.random.default_rng(seed)
    lengths = random.integers(2, WIDTH + 1, ROWS)
    lengths[3], lengths[[6, 11]] = 0, 1
    inside = np.arange(WIDTH) < lengths[:, None]
    mask = inside & (random.random((ROWS, WIDTH)) < 0.85)
    mask[8] = False
    old = -np.abs(random.normal(1.5, 1.2, (ROWS, WIDTH))) - 1e-3
    x = random.normal(0, 0.4, (ROWS, WIDTH))
    x[random.random(x.shape) < 0.03] = 7.0
    x[random.random(x.shape) < 0.03] = -25.0
    new = old + x
    old[:, 4], new[:, 4] = np.log(0.5), np.log(0.5) + np.log1p(HIGH)  # at the upper edge, as far as the type goes
    old[:, 6], new[:, 6] = np.log(0.5), np.log(0.5) + np.log1p(-LOW)
    advantage = random.normal(0, 1, (ROWS, WIDTH))
    advantage[random.random(advantage.shape) < 0.1] = 0.0
    scores = np.round(random.normal(0, 1, ROWS), 1)
    scores[:4] = 1.0
    made = {
        "old": old, "new": new, "ref": old + random.normal(0, 0.6, old.shape),
        "rollout": old + random.normal(0, 0.2, old.shape),
        "advantage": advantage, "weight": np.exp(random.normal(0, 0.3, old.shape)), "value": random.normal(0, 1, old.shape),
        "old_value": random.normal(0, 1, old.shape), "return": random.normal(0, 1, old.shape),
    }  # fmt: skip
    dtype = torch.float64 if kind == "float64" else torch.float32
    padded = {name: torch.tensor(values).to(dtype) for name, values in made.items()}
    if kind == "bfloat16":
        for name in ("old", "new", "ref", "rollout"):
            padded[name] = padded[name].bfloat16().float()
    rewards = np.zeros((ROWS, WIDTH))
    last = np.array([flags.nonzero()[0][-1] if flags.any() else 0 for flags in mask])
    rewards[np.arange(ROWS), last] = scores
    padded["reward"] = torch.tensor(rewards).to(dtype)
    labels = np.array([f"p{at // 4}" for at in range(ROWS)], dtype=object)
    return Tensors(padded, torch.tensor(mask).to(dtype), labels)


def close(ours: Any, theirs: Any, sizes: Any, kind: str, where: str = "") -> None:
    """Within 1e-6 of the mean absolute summand; in float64 within 1e-9."""
    bound = (1e-9 if kind == "float64" else 1e-6) * float(np.mean(np.abs(sizes))) if np.size(sizes) else 0.0
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=0, atol=max(bound, 1e-12), err_msg=where)
