"""Training on preferences and on demonstrations, as the trainer logs it: no policy samples and nothing is rewarded there."""

from __future__ import annotations

from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import known
from rl_doctor.analyzer.registry import logged_metric, metric, reduction
from rl_doctor.analyzer.states import Sum, mean
from rl_doctor.store.batch import Batch

_DPO: Final = "DPO, arXiv:2305.18290, eq. 7; TRL, DPOTrainer and KTOTrainer"

logged_metric(
    "pref.loss",
    unit="1",
    source=_DPO,
    formula="-mean log sigmoid(margin) in DPO; the trainer's own elsewhere",
    doc="Loss on preferences as logged; log 2 for a policy that has not moved.",
)
logged_metric(
    "pref.margin", unit="1", source=_DPO,
    formula="mean (chosen reward - rejected reward)",
    doc="Mean reward of the chosen responses - that of the rejected ones, as logged.",
)  # fmt: skip
logged_metric(
    "pref.accuracy",
    unit="1",
    source=_DPO,
    formula="share of pairs[chosen reward > rejected reward]",
    doc="Share of pairs whose chosen response has the higher reward, as logged.",
)
for _side in ("chosen", "rejected"):
    logged_metric(
        f"pref.{_side}_reward", unit="1", source=_DPO,
        formula=f"mean over {_side} of beta sum_t (logprob - ref_logprob)",
        doc=f"Mean implicit reward of the {_side} responses, beta times their log-ratio to the reference, as logged.",
    )  # fmt: skip
    logged_metric(
        f"pref.{_side}_logprob", unit="nat", source=_DPO,
        formula=f"mean over {_side} of sum_t logprob",
        doc=f"Mean logprob of the {_side} responses as logged: a sum over tokens in most trainers.",
    )  # fmt: skip
logged_metric(
    "sft.loss", unit="nat", source="maximum likelihood", formula="-mean_T logprob", doc="Loss of supervised training as logged."
)


@reduction(zero=Sum(), needs=("pair", "chosen"), level="rollout")
def _paired(batch: Batch) -> Sum:
    return Sum.counted(int(np.count_nonzero(known(batch.columns["pair"]))), batch.n_sequences)


metric(
    "pref.paired_frac", _paired, mean, unit="1", source=_DPO,
    formula="share_i[pair and chosen known]",
    doc="Share of sequences that are recorded as a side of a preference pair.",
)  # fmt: skip
