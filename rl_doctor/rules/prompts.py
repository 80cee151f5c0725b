"""Groups that hold more than one prompt."""

from __future__ import annotations

from collections.abc import Iterator

from rl_doctor.report.model import Hit
from rl_doctor.rules.advantage import GROUPED
from rl_doctor.rules.reading import lacking
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.stretch import stretch
from rl_doctor.rules.view import View

_MIXED = "group.mixed_frac"


@rule(
    "RLD425", "mixed-groups",
    severity="error", since="0.2.0",
    optional=(_MIXED,),
    limits={"some": 0.05, "most": 0.5, "steps": 3, "groups": 12},
    cause="Groups are formed by position, but prompts and samples stand in another order: tiled, not repeated, or shuffled.",
    advice=(
        "Repeat prompts as p1 p1 p2 p2, not p1 p2 p1 p2, before rows are taken in blocks; or group by identity.",
        "Recompute the advantages of one batch by prompt and compare.",
    ),
    avoids=(
        "Multi-turn sessions, whose rows have prompts of their own.", "Order within the batch: groups are found by id.",
        "One prompt that is put together anew for each sample: its lengths do not recur, or are closer than those of prompts.",
    ),
    source="Public issue threads: tiled prompts taken in contiguous blocks; such runs still improve",
)  # fmt: skip
def mixed_groups(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """Rows of one group answer different prompts.

    The baseline of a response is then that of other prompts: responses to easy prompts are reinforced and those to hard ones
    discouraged, whatever they say. The reward still rises for a while, so that curves do not show it.

    Rows of one prompt have one prompt length (one text, one data source, where those were recorded). Lengths alone count where
    they recur from row to row and are as far apart within groups as between them. It fires if more than `some` of the groups
    hold several, at a stretch of `steps` steps with `groups` groups: an error from `most` on, else a warning. Rows of sessions
    are left out. Limits: prompts of the same length cannot be told apart by it.
    """
    declared = view.config.adv_estimator
    if declared is not None and declared not in GROUPED:
        yield Skip("config", f"{declared} does not compare samples of a group")
        return
    series = view.get(_MIXED)
    if series is None:
        yield lacking(view, _MIXED)
        return
    found = stretch(
        series, series.values > limits["some"], limits["some"], steps=int(limits["steps"]), items=int(limits["groups"])
    )
    if found is None:
        return
    yield Hit(
        f"{found.value:.0%} of the groups hold rows of different prompts, {found.when}",
        "error" if found.value >= limits["most"] else "warning",
        (found.evidence(),),
        ruled_out=("another order of the rows: groups are found by id",),
        suspect="groups-of-several-prompts",
    )
