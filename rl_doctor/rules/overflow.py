"""Exponents that overflow at positions that nothing else looks at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from rl_doctor.report.model import Hit
from rl_doctor.rules.reading import evidence
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.spans import above
from rl_doctor.rules.view import View

_MAX: Final = "numerics.log_ratio_max_stored"


@rule(
    "RLD612", "exponent-overflow",
    severity="error", since="0.2.0",
    needs=(_MAX,), optional=("policy.ratio_max", "optim.grad_norm"),
    limits={"overflow": 88.0, "near": 60.0},
    cause="Positions outside the mask, such as padding, hold logprobs that do not belong together; exp is taken before the mask.",
    advice=(
        "Select before exp, or put 0 for the log-ratio outside the mask: infinity times 0 is NaN in the gradient.",
        "Fill padding with the same number in logprob and old_logprob.",
    ),
    avoids=("Large ratios of trained tokens below the overflow: rule ratio-saturation.", "Positions that are not finite."),
    source="Public report: 8 of 14 runs died from exp at padding with a finite loss and no precursor in the scalars",
)  # fmt: skip
def exponent_overflow(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The log-ratio at some stored position is so large that exp overflows, or nearly.

    exp(88.8) is infinite in float32 and in bfloat16. Multiplied by a mask of 0 the loss stays finite, but the gradient of that
    product is infinity times 0, which is NaN: the run dies at that step while every logged number before it is in order.

    It looks at the largest logprob - old_logprob over all stored positions, masked ones included. An error from `overflow` on,
    a warning from `near` on, and info as long as the gradient norm is known to stay finite on all these steps: then the trainer
    selects first. Where the largest ratio of trained tokens is above exp(`near`) too, they are what the finding is about: no mask
    keeps them out, and it is never info.
    """
    breach = above(view.series(_MAX), limits["near"])
    if breach is None:
        return
    largest = float(np.max(breach.series.values))
    ratio, norm = view.get("policy.ratio_max"), view.raw("optim.grad_norm")
    outside = ratio is None or float(np.max(ratio.values)) < np.exp(limits["near"])
    safe = norm is not None and len(norm) > 0 and bool(np.all(np.isfinite(norm.values[norm.steps >= breach.first])))
    index = int(np.argmax(breach.series.values >= limits["near"]))
    yield Hit(
        f"logprob - old_logprob reaches {largest:.3g} {'outside the response mask' if outside else 'at a trained token'}, "
        f"{breach.when}: exp {'overflows' if largest >= limits['overflow'] else 'is close to its overflow'} at 88.7",
        "info" if safe and outside else "error" if largest >= limits["overflow"] else "warning",
        (evidence(breach.series, index, -1, value=largest, limit=limits["overflow"]),),
        ruled_out=("a gradient that has it: its norm is finite at all these steps",) if safe else (),
        cause=None if outside else "The log-ratio of trained tokens is so large that its exp overflows, or nearly.",
        suspect="padding-overflows" if outside else "trained-ratios-overflow",
        unchecked=() if norm is not None else ("whether it reaches the gradient: grad_norm",),
    )
