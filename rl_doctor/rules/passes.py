"""How many update passes a generation batch gets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from rl_doctor.report.model import Hit, Severity
from rl_doctor.rules.reading import KL_OLD, evidence, first_of, lacking, too_short
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.view import View

_PASSES: Final = "update.passes_mean"


@rule(
    "RLD606", "update-cut-short",
    severity="warning",
    optional=(_PASSES, "update.epochs", *KL_OLD),
    limits={"missing": 0.25, "often": 0.2, "steps": 8},
    cause="The update stops when the KL to the sampling policy passes its limit (target_kl): the learning rate is too high for "
    "the number of passes, so that each batch is used in part only.",
    advice=(
        "Lower the learning rate, or the number of epochs, until updates run to their end.",
        "If batches are cut on purpose, compare the number of samples used with the number generated: the rest is wasted.",
        "If no limit on the KL is set, look for mini-batches that are skipped: overflows, or an iterator that ends early.",
    ),
    avoids=("The last step of a run that was stopped.", "Batches that are trained on once by design.", "Single steps."),
    source="PPO implementations stop an update early at a target KL; reproduced by leaving out the later epochs",
)  # fmt: skip
def update_cut_short(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """Generation batches get fewer update passes than the configuration, or the run's own start, says.

    PPO-like trainers stop an update when the policy has moved too far. Once in a while that is a safeguard; step after step it
    means that the steps are too large, and that samples are generated and thrown away.

    The mean number of passes over a sequence is held against config.epochs, else against the largest of the run. It fires if at
    `often` of the steps or more (of at least `steps`, without the last) at least `missing` of the passes are lacking. A
    warning; info where that is over by the end.
    """
    series = first_of(view, _PASSES, "update.epochs")
    if series is None:
        yield lacking(view, _PASSES)
        return
    if skip := too_short(series, int(limits["steps"]) + 1):
        yield skip
        return
    values = series.values[:-1]
    whole = float(view.config.epochs or 0) or float(np.max(values))
    if whole <= 1.0:
        yield Skip("data", "every generation batch is trained on once")
        return
    short = values <= (1.0 - limits["missing"]) * whole
    share = float(np.mean(short))
    if share < limits["often"]:
        return
    first = int(np.flatnonzero(short)[0])
    ongoing = bool(short[-max(values.size // 10, 3) :].any())
    severity: Severity = "warning" if ongoing else "info"
    level = float(np.median(values[short]))
    kl = first_of(view, *KL_OLD)
    yield Hit(
        f"Generation batches get {level:.2g} of {whole:.2g} update passes at {int(short.sum())} of {values.size} steps, since "
        f"step {series.steps[first]}" + ("" if ongoing else ", and no more at the end"),
        severity,
        (evidence(series, first, -1, value=level, baseline=whole, limit=(1.0 - limits["missing"]) * whole),),
        ruled_out=("a run that was stopped within a step: the last step is left out",),
        unchecked=("whether the KL to the sampling policy passes a limit (in a recording: logprob and old_logprob)",)
        if kl is None
        else (),
    )
