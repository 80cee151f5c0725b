"""Ranks that no longer take part."""

from __future__ import annotations

from rl_doctor.causes.registry import cause
from rl_doctor.causes.signs import found

cause(
    "rank-lost", "a rank no longer takes part: its worker died, or its rows are dropped before the update",
    explains=("rank-stops",), leads_to=("broken-groups", "advantage-mismatch", "advantage-without-difference"),
    signs=(found("rank-stops", "the rows of a rank stop while the others go on"),),
    advice=(
        "Look at that worker's log at the step, and at what collects rows over ranks.",
        "Compare the rows per step with the batch size that is set: the gradient is that of the rest.",
    ),
    source="Reproduced by leaving out the rows of one rank",
    doc="""No mean shows it: the others train on, with smaller batches and without the prompts of that rank.""",
)  # fmt: skip
