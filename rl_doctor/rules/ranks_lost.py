"""Ranks whose rows stop while the others go on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from rl_doctor.report.model import Evidence, Hit
from rl_doctor.rules.reading import lacking
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.view import View

_ROWS: Final = "data.rows_of_rank."


@rule(
    "RLD031", "rank-stops",
    severity="error", since="0.2.0",
    optional=(_ROWS,),
    limits={"before": 5, "present": 0.9, "gone": 3},
    cause="A worker died or lost its data while the others train on, or its rows are dropped before the update.",
    advice=(
        "Look at that worker's log at the step, and at what collects rows over ranks.",
        "Compare the rows per step with the batch size that is set: the gradient is that of the rest.",
    ),
    avoids=("Ranks that have no rows now and then.", "A run that was continued with fewer ranks.", "The last two steps."),
    source="Reproduced by leaving out the rows of one rank",
)  # fmt: skip
def rank_stops(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """From some step on a rank has no rows, while the others go on.

    The loss goes on with what is left, and no mean shows it: the prompts of that rank are no longer learned from, and steps are
    as much smaller.

    It fires where a rank had rows at `present` of at least `before` steps, and has none at the last `gone` steps or more, where
    other ranks have some. Runs that were continued are not judged: they may have another number of ranks.
    """
    found = {name.removeprefix(_ROWS): series for name, series in view.named(_ROWS).items()}
    if not found:
        yield lacking(view, _ROWS)
        return
    if len(view.info.sessions) > 1:
        yield Skip("data", "the run was continued, perhaps with another number of ranks")
        return
    steps = np.unique(np.concatenate([series.steps for series in found.values()]))
    for rank, series in sorted(found.items()):
        there = np.isin(steps, series.steps[series.values > 0.0])
        last = int(np.flatnonzero(there)[-1]) if there.any() else -1
        before, gone = there[: last + 1], len(steps) - last - 1
        if gone < limits["gone"] or len(before) < limits["before"] or float(np.mean(before)) < limits["present"]:
            continue
        first = int(steps[last + 1])
        others = len(found) - 1
        yield Hit(
            f"rank {rank} has no rows from step {first} on, for {gone} steps, while {others} other "
            f"rank{'' if others == 1 else 's'} went on",
            "error",
            (Evidence(series.metric, first, int(steps[-1]), 0.0, float(np.median(series.values)), None, "rows", gone),),
            ruled_out=(f"a rank that rests now and then: it had rows at {np.mean(before):.0%} of the steps before",),
        )
