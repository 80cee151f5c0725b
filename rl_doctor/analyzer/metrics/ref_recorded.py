"""The KL term that the trainer recorded per token, against what each estimator gives there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import Floats, selected
from rl_doctor.analyzer.formulas import kl
from rl_doctor.analyzer.metrics.policy import SCHULMAN
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Sum, Sums
from rl_doctor.store.batch import Batch

REVERSED: Final = ("k3_reversed", "k1_negated", "k2_negated", "k3_negated", "abs_negated")
FORMS: Final = ("k1", "k2", "k3", "abs", *REVERSED)


def _clamped_k3(batch: Batch, x: Floats) -> Floats:
    config = batch.info.config
    bounded = x if config.kl_input_clamp is None else np.clip(x, -config.kl_input_clamp, config.kl_input_clamp)
    found = kl.k3(bounded)
    return found if config.kl_output_clamp is None else np.clip(found, -config.kl_output_clamp, config.kl_output_clamp)


@reduction(zero=Sums(), needs=("kl", "logprob", "ref_logprob"))
def _gaps(batch: Batch) -> Sums:
    """Sums of the absolute recorded term, and of its absolute difference to each form, over the trained tokens."""
    recorded, x = selected(batch, "kl"), selected(batch, "ref_logprob") - selected(batch, "logprob")
    forms: dict[str, Floats] = {
        "k1": -x, "k2": kl.k2(x), "k3": _clamped_k3(batch, x), "abs": np.abs(x), "k3_reversed": _clamped_k3(batch, -x),
    }  # fmt: skip
    forms |= {f"{name}_negated": -forms[name] for name in ("k1", "k2", "k3", "abs")}
    fine = np.isfinite(recorded) & np.isfinite(x)
    count = int(np.count_nonzero(fine))
    values = [np.abs(recorded[fine]), *(np.abs(recorded[fine] - forms[name][fine]) for name in FORMS)]
    return Sums(tuple(Sum.of(value, count) for value in values))


def _relative(part: int) -> Callable[[Sums], float]:
    def final(sums: Sums) -> float:
        size = sums[0].mean if sums.count else float("nan")
        return sums[part].mean / size if size > 0.0 else float("nan")

    return final


for _part, _form in enumerate(FORMS, 1):
    metric(
        f"ref.kl_recorded_gap_{_form}", _gaps, _relative(_part), unit="1", source=SCHULMAN,
        formula=f"sum_T |kl - {_form.replace('_', ' ')}(y)| / sum_T |kl|",
        doc=f"Mean absolute difference of the recorded KL term to {_form.replace('_', ' ')}, over the mean size of the term.",
    )  # fmt: skip
