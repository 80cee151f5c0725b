"""What the updates are driven by: advantages of groups without a success, and advantages below 0."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import row_sums
from rl_doctor.analyzer.exact import exact_quotient
from rl_doctor.analyzer.grouping import groups
from rl_doctor.analyzer.metrics.advantage import PER_SEQUENCE, token_sums
from rl_doctor.analyzer.registry import Metric, family, metric, reduction
from rl_doctor.analyzer.states import Sum, Sums, mean
from rl_doctor.schema import REWARD_COMPONENT_PREFIX
from rl_doctor.store.batch import Batch

_SOURCE: Final = "a gradient weighs every token by its advantage"


_NOTHING: Final = 1e-6
"""Mean absolute advantage below which there is none but for rounding."""


def _ratio(sums: Sums) -> float:
    part, whole = sums[0], sums[1]
    if not part.finite or not whole.finite or not whole.mean > _NOTHING:
        return np.nan
    return exact_quotient(part.total, whole.total)


@reduction(zero=Sums(), needs=("advantage",))
def _negative(batch: Batch) -> Sums:
    total, _, size = token_sums(batch)
    return row_sums(batch, np.stack([0.5 * (size - total), size]))


metric(
    "adv.negative_mass_frac", _negative, _ratio, unit="1", source=_SOURCE, formula="sum_T[A < 0] |A| / sum_T |A|",
    doc="Share of the absolute advantage of all tokens that is below 0: above a half where wrong responses are the longer ones.",
)  # fmt: skip


@family("signal.", REWARD_COMPONENT_PREFIX)
def _failures(columns: tuple[str, ...]) -> Iterable[Metric]:
    """For each component: the groups in which no response earned it, and their share of all advantage."""
    for column in columns:
        component = column.removeprefix(REWARD_COMPONENT_PREFIX)
        needs = (column, "reward", "group", PER_SEQUENCE)

        def sums(batch: Batch, column: str = column) -> Sums:
            found, rewards = groups(batch, column), groups(batch, "reward")
            several = found.sizes > 1
            failed = several & (found.high <= 0.0)
            advantage = np.abs(batch.columns[PER_SEQUENCE][found.rows].astype(np.float64))
            fine = np.isfinite(advantage)
            size = np.where(fine, advantage, 0.0)
            lost = found.spread(failed.astype(np.float64)) > 0
            differs = int(np.count_nonzero(rewards.low < rewards.high)) if len(rewards.values) else 0
            return Sums(
                (
                    Sum.of(size[lost & fine], int(fine.sum())),
                    Sum.of(size[fine]),
                    Sum.counted(int(np.count_nonzero(failed)), int(np.count_nonzero(several))),
                    Sum.counted(differs, len(rewards.sizes)),
                )
            )

        state = reduction(zero=Sums(), needs=needs, level="rollout")(sums)
        yield Metric(
            f"signal.failed_mass.{component}", "1", state, _ratio, _SOURCE,
            f"Share of the absolute advantage (one per response) that belongs to groups in which no response earned {component}.",
            formula="sum_i[max_g R_c <= 0] |A| / sum_i |A|",
        )  # fmt: skip
        yield Metric(
            f"signal.failed_groups.{component}", "1", state, mean, _SOURCE,
            f"Share of groups of two or more in which no response earned {component}.", part=2, formula="share_g[max_g R_c <= 0]",
        )  # fmt: skip
