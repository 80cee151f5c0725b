"""Logprobs that were rounded to half precision."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rl_doctor.report.model import Evidence, Hit
from rl_doctor.rules.reading import lacking
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.spans import pooled
from rl_doctor.rules.view import View

_TYPES: Final = ("bfloat16", "float16")
_COLUMNS: Final = {"trainer": ("old_logprob", "logprob", "ref_logprob"), "engine": ("rollout_logprob",)}


@rule(
    "RLD110",
    "coarse-logprob",
    severity="info",
    optional=tuple(f"data.{name}_{kind}_frac" for names in _COLUMNS.values() for name in names for kind in _TYPES),
    limits={"share": 0.99, "rows": 16},
    cause="Logprobs are computed, or were stored, in half precision.",
    advice=(
        "Compute the last layer's log_softmax in float32, outside autocast, in every pass.",
        "If they were rounded only where they were recorded, hand over float32.",
    ),
    avoids=("values of 0, which any type can hold", "a float32 that ends in zeros by chance, once in 65,536 values"),
    source="public trainer issues; half precision in the last layer is the largest part of many training-inference gaps",
    since="0.2.0",
)
def coarse_logprob(view: View, limits: Limits) -> Iterable[Hit | Skip]:
    """All logprobs of a column lie on the grid of bfloat16 or float16.

    bfloat16 keeps eight bits: between -4 and -8 its values are .03125 apart, and a ratio of two such numbers is 1 or wrong by
    3%. That is noise and no bias, so training goes on, but a KL below 1e-3 means nothing, and clipping acts at random. Where a
    column exceeds 0, impossible-logprob tells as well.

    The first trained token of each row is looked at: a float32 that was never rounded ends in so many zeros once in 65,536
    values (8,192 for float16), so ``rows`` of them decide. At least ``share`` of the rows must lie on the grid.

    Limits: logits that were rounded before a log_softmax in float32 leave no grid, only noise; that is seen by comparison with
    an engine or another pass.
    """
    measured = False
    for side, names in _COLUMNS.items():
        for name in names:
            for kind in reversed(_TYPES):
                series = view.get(f"data.{name}_{kind}_frac")
                measured = measured or series is not None
                if series is None or series.counts.sum() < limits["rows"] or pooled(series) < limits["share"]:
                    continue
                if kind == "float16" and _on(view, name, "bfloat16") >= limits["share"]:
                    continue
                first, last, count = int(series.steps[0]), int(series.steps[-1]), int(series.counts.sum())
                proof = Evidence(series.metric, first, last, pooled(series), 2.0**-16, limits["share"], "1", count)
                message = f"{name} lies on the grid of {kind} in {pooled(series):.1%} of {count} rows"
                suspect = f"{side}-half-precision-logits"
                yield Hit(message, "info", (proof,), f"The {side}'s logprobs were rounded to {kind}.", suspect=suspect)
    if not measured:
        yield lacking(view, *(f"data.{name}_bfloat16_frac" for names in _COLUMNS.values() for name in names))


def _on(view: View, name: str, kind: str) -> float:
    series = view.get(f"data.{name}_{kind}_frac")
    return 0.0 if series is None else pooled(series)
