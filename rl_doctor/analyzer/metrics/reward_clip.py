"""Whether the reward is cut off: a weighted sum of its components between two bounds, and the bound beyond them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import Floats
from rl_doctor.analyzer.registry import Metric, family, reduction
from rl_doctor.analyzer.states import Sum, Sums, mean
from rl_doctor.schema import REWARD_COMPONENT_PREFIX
from rl_doctor.store.batch import Batch

_SOURCE: Final = "arithmetic: a sum has no bound of its own, and a bound that is the sum's is met by one set of components"
_EXACT: Final = 1e-4
"""Share of the reward's range that a row may be off the weighted sum, beside what 32-bit numbers round."""
_ROWS: Final = 6
"""Rows between the bounds for each component, at least, that the weights are found from."""


@family("clip.", REWARD_COMPONENT_PREFIX)
def _of_components(columns: tuple[str, ...]) -> Iterable[Metric]:
    """Shares of rows at either bound of a generation batch whose weighted sum lies beyond it, and by how much."""

    def sums(batch: Batch) -> Sums:
        reward = batch.columns["reward"].astype(np.float64)
        parts = np.stack([np.nan_to_num(batch.columns[column].astype(np.float64)) for column in columns], axis=1)
        rows = np.lexsort((*parts.T, reward))  # so that the order of the rows changes no bit
        rows = rows[np.isfinite(reward[rows])]
        beyond = _beyond(reward[rows], parts[rows])
        if beyond is None:
            return Sums()
        number = beyond.size
        clipped = np.abs(beyond[beyond != 0.0])
        flags = (int((beyond > 0.0).sum()), int((beyond < 0.0).sum()))
        return Sums((*(Sum.counted(flag, number) for flag in flags), Sum.of(clipped)))

    state = reduction(zero=Sums(), needs=("reward", *columns), level="rollout")(sums)
    for part, name, which in ((0, "high_frac", "largest"), (1, "low_frac", "smallest")):
        yield Metric(
            f"clip.{name}", "1", state, mean, _SOURCE,
            f"Share of rows with the {which} reward of the generation batch whose components give one that lies beyond it.",
            part=part, formula="share_i[R_i = bound, sum_c w_c R_ci beyond it], w exact between the bounds",
        )  # fmt: skip
    yield Metric(
        "clip.excess", "reward", state, mean, _SOURCE, "Mean distance of these sums from the bound.", part=2,
        formula="mean_i |sum_c w_c R_ci - R_i| over these rows",
    )  # fmt: skip


def _beyond(reward: Floats, parts: Floats) -> Floats | None:
    """How far the weighted sum of the components of each row lies beyond the bound at which its reward is, 0 for others.

    The weights are those that give the rewards between the bounds exactly; None where no weights do, or too few rows lie there.
    """
    if reward.size == 0:
        return None
    low, high = float(reward.min()), float(reward.max())
    parts = parts[:, parts.any(axis=0)]
    inside = (reward > low) & (reward < high)
    if not parts.shape[1] or inside.sum() < _ROWS * parts.shape[1]:
        return None
    weights, *_ = np.linalg.lstsq(parts[inside], reward[inside], rcond=None)
    tolerance = _EXACT * (high - low)
    told = np.sum(parts * weights, axis=1)
    if np.linalg.matrix_rank(parts[inside]) < parts.shape[1] or np.abs(told[inside] - reward[inside]).max() > tolerance:
        return None
    over = np.where((reward == high) & (told > high + 10.0 * tolerance), told - high, 0.0)
    under = np.where((reward == low) & (told < low - 10.0 * tolerance), told - low, 0.0)
    return np.asarray(over + under)
