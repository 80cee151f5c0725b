"""KL of the policy being trained to the reference policy."""

from __future__ import annotations

from typing import Final

from rl_doctor.analyzer import kernels
from rl_doctor.analyzer.derive import Floats, columns_of, derived, first_rows, of_rows, row_sums, tokens
from rl_doctor.analyzer.metrics.policy import KL_FORMULAS, PASS_NEEDS, PASS_OPTIONAL, SCHULMAN, kl_rows
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Sum, Sums, mean
from rl_doctor.store.batch import Batch

_NEEDS: Final = ("logprob", "ref_logprob")


@derived
def kl_sums(batch: Batch) -> Floats:
    """Each estimator of KL(new||ref), as ``KL_FORMULAS`` orders them, summed per sequence, float64 ``[4, n_sequences]``.

    Over x = ref_logprob - logprob at the selected tokens; k3 with the trainer's clamps.
    """
    config = batch.info.config
    columns, clamps = columns_of(batch, "logprob", "ref_logprob"), (config.kl_input_clamp, config.kl_output_clamp)
    sums = kernels.of(batch.run_tokens).divergence(*columns, tokens(batch), clamps)
    return of_rows(batch, kl_rows(sums))


@reduction(zero=Sums(), needs=_NEEDS)
def _kl(batch: Batch) -> Sums:
    return row_sums(batch, kl_sums(batch))


@reduction(zero=Sums(), needs=(*_NEEDS, *PASS_NEEDS), optional=PASS_OPTIONAL)
def _first(batch: Batch) -> Sums:
    return row_sums(batch, kl_sums(batch), first_rows(batch))


@reduction(zero=Sum(), needs=(*_NEEDS, "config.kl_estimator"))
def _configured(batch: Batch) -> Sum:
    names, name = list(KL_FORMULAS), batch.info.config.kl_estimator
    return row_sums(batch, kl_sums(batch)[[names.index(name)]])[0] if name in names else Sum()


for _index, (_name, _formula) in enumerate(KL_FORMULAS.items()):
    _clamp = "; clamped as the configuration says" if _name == "k3" else ""
    metric(
        f"ref.kl_{_name}", _kl, mean, part=_index, unit="nat", source=SCHULMAN,
        formula=f"mean_T {_formula.replace('x', 'y').replace('eyp', 'exp')}",
        doc=f"Mean of {_formula} with x = ref_logprob - logprob over the tokens trained on: estimates KL(new||ref){_clamp}.",
    )  # fmt: skip
    metric(
        f"ref.kl_first_{_name}", _first, mean, part=_index, unit="nat", source=SCHULMAN,
        formula=f"mean_F {_formula.replace('x', 'y').replace('eyp', 'exp')}",
        doc=f"ref.kl_{_name} in the first mini-batch, before any optimizer step on the generation batch.",
    )  # fmt: skip
metric(
    "ref.kl", _configured, mean, unit="nat", source=SCHULMAN,
    formula="mean_T of config.kl_estimator at y",
    doc="Mean KL to the reference policy by the estimator that the configuration names (k1, k2, k3 or abs).",
)  # fmt: skip
