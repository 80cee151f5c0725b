"""KL of the policy being trained to the reference policy."""

from __future__ import annotations

from typing import Final

import numpy as np

from rl_doctor.analyzer import estimators
from rl_doctor.analyzer.derive import Bools, Floats, derived, first_rows, selected, token_sum
from rl_doctor.analyzer.metrics.policy import KL_FORMULAS, PASS_NEEDS, PASS_OPTIONAL, SCHULMAN
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Sum, Sums, mean
from rl_doctor.store.batch import Batch

_NEEDS: Final = ("logprob", "ref_logprob")


@derived
def difference(batch: Batch) -> Floats:
    """Ref_logprob - logprob at the selected tokens, float64 ``[n_selected]``."""
    return selected(batch, "ref_logprob") - selected(batch, "logprob")


@derived
def kl_terms(batch: Batch) -> dict[str, Floats]:
    """Each estimator of KL(new||ref) at the selected tokens, by its name; k3 with the trainer's clamps."""
    x = difference(batch)
    config = batch.info.config
    bounded = x if config.kl_input_clamp is None else np.clip(x, -config.kl_input_clamp, config.kl_input_clamp)
    k3 = estimators.k3(bounded)
    if config.kl_output_clamp is not None:
        k3 = np.clip(k3, -config.kl_output_clamp, config.kl_output_clamp)
    return {"k1": estimators.k1(x), "k2": estimators.k2(x), "k3": k3, "abs": np.abs(x)}


def _sums(batch: Batch, rows: Bools | None) -> Sums:
    terms = kl_terms(batch)
    return Sums(tuple(token_sum(batch, terms[name], rows) for name in KL_FORMULAS))


@reduction(zero=Sums(), needs=_NEEDS)
def _kl(batch: Batch) -> Sums:
    return _sums(batch, None)


@reduction(zero=Sums(), needs=(*_NEEDS, *PASS_NEEDS), optional=PASS_OPTIONAL)
def _first(batch: Batch) -> Sums:
    return _sums(batch, first_rows(batch))


@reduction(zero=Sum(), needs=(*_NEEDS, "config.kl_estimator"))
def _configured(batch: Batch) -> Sum:
    terms = kl_terms(batch).get(batch.info.config.kl_estimator or "")
    return Sum() if terms is None else token_sum(batch, terms)


for _index, (_name, _formula) in enumerate(KL_FORMULAS.items()):
    _clamp = "; clamped as the configuration says" if _name == "k3" else ""
    metric(
        f"ref.kl_{_name}", _kl, mean, part=_index, unit="nat", source=SCHULMAN,
        doc=f"Mean of {_formula} with x = ref_logprob - logprob over the tokens trained on: estimates KL(new||ref){_clamp}.",
    )  # fmt: skip
    metric(
        f"ref.kl_first_{_name}", _first, mean, part=_index, unit="nat", source=SCHULMAN,
        doc=f"ref.kl_{_name} in the first mini-batch, before any optimizer step on the generation batch.",
    )  # fmt: skip
metric(
    "ref.kl", _configured, mean, unit="nat", source=SCHULMAN,
    doc="Mean KL to the reference policy by the estimator that the configuration names (k1, k2, k3 or abs).",
)  # fmt: skip
