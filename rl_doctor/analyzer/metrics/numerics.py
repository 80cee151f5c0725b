"""NaN and infinity, by column."""

from __future__ import annotations

from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import finite, selected_splits, selection
from rl_doctor.analyzer.grouping import aborted
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Sum, Sums, mean, total
from rl_doctor.schema import TOKEN_COLUMNS
from rl_doctor.store.batch import Batch
from rl_doctor.store.unknown import unknown

_SOURCE: Final = "IEEE 754"
_ENGINE: Final = "rollout_logprob"
"""The column whose gaps count as NaN: it has them where the engine gave nothing, and stores write them as either."""


def _declare_nonfinite(column: str) -> None:
    @reduction(zero=Sums(), needs=(column,))
    def counts(batch: Batch) -> Sums:
        fine, of = finite(batch, column), int(selected_splits(batch)[-1])
        everywhere = batch.n_tokens - int(np.count_nonzero(fine))
        trained = gaps = 0
        if everywhere:
            broken, chosen = ~fine, selection(batch)
            if column != _ENGINE and (missing := unknown(batch.columns[column])).any():
                broken &= ~missing
                gaps = int(np.count_nonzero(missing & chosen))
                everywhere = int(np.count_nonzero(broken))
            trained = int(np.count_nonzero(broken & chosen))
        return Sums((Sum.counted(trained, of), Sum.counted(everywhere, batch.n_tokens), Sum.counted(gaps, of)))

    metric(
        f"numerics.nonfinite.{column}", counts, total, part=0, unit="tokens", source=_SOURCE,
        formula=f"number of T[{column} not finite]",
        doc=f"Number of tokens trained on at which {column} is NaN or infinite.",
    )  # fmt: skip
    metric(
        f"numerics.nonfinite_stored.{column}", counts, total, part=1, unit="tokens", source=_SOURCE,
        formula=f"number of stored t[{column} not finite]",
        doc=f"Number of stored tokens, masked ones included, at which {column} is NaN or infinite.",
    )  # fmt: skip
    if column != _ENGINE:
        metric(
            f"numerics.unknown.{column}", counts, total, part=2, unit="tokens", source=_SOURCE,
            formula=f"number of T[{column} null]",
            doc=f"Number of tokens trained on at which {column} is null, which is no NaN, or was not recorded.",
        )  # fmt: skip


@reduction(zero=Sum(), needs=("reward",), optional=("finish_reason", "response_length"), level="rollout")
def _without_reward(batch: Batch) -> Sum:
    judged = ~aborted(batch)
    return Sum.counted(int(np.count_nonzero(np.isnan(batch.columns["reward"]) & judged)), int(np.count_nonzero(judged)))


metric(
    "numerics.missing_reward_frac", _without_reward, mean, unit="1", source=_SOURCE,
    formula="share_i[R unknown], i not aborted",
    doc="Share of sequences, aborted ones left out, whose reward is NaN or was not recorded.",
)  # fmt: skip


@reduction(zero=Sum(), needs=("reward",), level="rollout")
def _infinite_reward(batch: Batch) -> Sum:
    return Sum.counted(int(np.count_nonzero(np.isinf(batch.columns["reward"]))), batch.n_sequences)


metric(
    "numerics.infinite_reward_frac", _infinite_reward, mean, unit="1", source=_SOURCE,
    formula="share_i[R infinite]",
    doc="Share of sequences whose reward is infinite.",
)  # fmt: skip

for _column in TOKEN_COLUMNS:
    if _column.dtype == "float32":
        _declare_nonfinite(_column.name)
