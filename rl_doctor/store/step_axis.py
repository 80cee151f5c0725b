"""Which number of a log is the step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

STEP_NAMES: Final = (
    "step", "global_step", "train_global_step", "training_global_step", "training_step", "trainer_global_step", "train_step",
    "trainer_step", "global_steps", "optimizer_step", "optim_step", "update_step", "step_num", "step_idx", "steps",
    "rollout_step", "_step", "iteration", "iterations", "iter", "update", "updates", "num_updates", "training_iteration",
    "time_iterations", "total_steps", "timestep", "timesteps", "time_total_timesteps", "episode", "episodes",
)  # fmt: skip
"""Names of the step as ``plain_name`` spells them, the surest first. An epoch is none: it is a fraction, or too coarse."""

_RANK: Final = {name: rank for rank, name in enumerate(STEP_NAMES)}


def plain_name(name: str) -> str:
    """A name in small letters with ``_`` for every separator: tables and trackers rename ``train/global_step`` at will."""
    return name.strip().lower().translate(_SEPARATORS)


_SEPARATORS: Final = str.maketrans({"/": "_", ".": "_", " ": "_", "-": "_"})


def step_names(names: Iterable[str]) -> list[str]:
    """Those of the names that may be the step's, the surest first."""
    found = {name: rank for name in names if (rank := _RANK.get(plain_name(name))) is not None}
    return sorted(found, key=lambda name: (found[name], name))
