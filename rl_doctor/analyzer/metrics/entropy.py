"""Entropy and level of the logprobs of the tokens trained on."""

from __future__ import annotations

from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import column_sums, row_sums
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Sum, mean
from rl_doctor.store.batch import Batch

_SHANNON: Final = "C. Shannon, A mathematical theory of communication, 1948"


def _declare(name: str, column: str, doc: str) -> None:
    @reduction(zero=Sum(), needs=(column,))
    def total(batch: Batch) -> Sum:
        return row_sums(batch, column_sums(batch, column)[np.newaxis])[0]

    metric(name, total, mean, unit="nat", source=_SHANNON, formula=f"mean_T {column}", doc=doc)


_declare("policy.entropy", "entropy", "Mean entropy of the policy being trained, over the tokens trained on.")
_declare("policy.old_entropy", "old_entropy", "Mean entropy of the policy of old_logprob, over the tokens trained on.")
_declare("policy.mean_logprob", "logprob", "Mean logprob of the tokens trained on under the policy being trained.")
_declare("policy.mean_old_logprob", "old_logprob", "Mean old_logprob of the tokens trained on.")
