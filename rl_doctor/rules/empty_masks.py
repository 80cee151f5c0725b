"""Responses of which no token is trained."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rl_doctor.report.model import Hit, Severity
from rl_doctor.rules.masks import AGREEMENT, inverted
from rl_doctor.rules.reading import uncorrected
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.spans import Breach, above, at, pooled
from rl_doctor.rules.view import View

_CUT: Final = "length.truncated_frac"
_NO_EOS: Final = "mask.eos_missed_frac"


@rule(
    "RLD016",
    "empty-mask",
    severity="error",
    needs=("mask.empty_frac", "mask.empty_unexplained_frac"),
    optional=("mask.rejected_frac", _CUT, _NO_EOS, *AGREEMENT),
    limits={"all": 0.999, "most": 0.5, "some": 0.05, "few": 0.002, "told": 0.01, "rows": 3},
    cause="The mask removes whole responses: a filter that matches everything, or a mask that was never set.",
    advice=(
        "Count what each filter removes (length, rejection, stale samples), and log it.",
        "Check that masks of tools, completion and loss are combined once, and with the right shapes.",
    ),
    avoids=(
        "padding rows",
        "responses filtered since they were cut at the length limit or aborted",
        "responses that rollout correction rejected, where loss_mask says so",
        "responses of length 0",
        "responses of one token in a run whose mask misses the last one: mask-misses-eos",
    ),
    source="masks combined over truncation, tools and rejection can leave nothing (public trainer issues)",
)
def empty_mask(view: View, limits: Limits) -> Iterable[Hit | Skip]:
    """Responses without a single trained token.

    They cost a rollout and give no gradient; in trainers that average over sequences they dilute the loss, and in group
    baselines they still count. If a whole step has none, the step trains nothing.

    Rows that only fill the batch and rows without a response are left out. Steps in which more than ``all`` of the rows are
    empty are an error. Otherwise the share of rows counts that neither the length limit nor an abort nor rejection explains,
    from ``few`` and ``rows`` rows on (``some`` where most responses end without EOS), of the steps since the first such row.
    It is a warning above ``most``, and above ``told`` where finish reasons are recorded and no correction is configured, so
    that nothing is left that would empty single rows on purpose; else it is worth knowing. Overlong filtering is at most info,
    and so is rejection by rollout correction (rows that loss_mask still counts), which is named where it takes more than
    ``most`` of the rows.
    """
    share, odd = view.series("mask.empty_frac"), view.series("mask.empty_unexplained_frac")
    nothing = above(share, limits["all"])
    if nothing is not None:
        explained = at(odd, nothing.series.steps[nothing.marked])
        filtered = explained is not None and pooled(explained) < limits["some"]
        cause = "Every response was filtered as truncated, aborted or rejected." if filtered else None
        unlucky = nothing.marked.sum() < 0.1 * len(share) and filtered
        message = f"no response has a trained token {nothing.when}: these steps train nothing"
        always = pooled(share) > limits["all"] and not filtered
        suspect = "all-filtered-by-length" if filtered else "mask-never-set" if always else "responses-filtered"
        yield Hit(message, "warning" if unlucky else "error", (nothing.evidence(),), cause, suspect=suspect)
        return
    strange = above(odd, 0.0)
    ends = view.get(_NO_EOS)  # a mask that misses the last token is empty where there is no other
    few = limits["few"] if ends is None or pooled(ends) < limits["most"] else limits["some"]
    since = 0.0 if strange is None else pooled(odd, odd.steps >= strange.first)
    if strange is not None and strange.items > limits["rows"] - 0.5 and since > few and not inverted(view):
        yield _emptied(view, strange, since, limits)
        return
    rejected = above(view.get("mask.rejected_frac"), limits["most"])
    if rejected is not None and pooled(rejected.series) > limits["some"]:
        message = f"{rejected.value:.0%} of {rejected.n} responses were rejected as a whole {rejected.when}"
        words = "Rollout correction rejects most of the responses."
        yield Hit(message, "info", (rejected.evidence(),), words, suspect="correction-rejects")


def _emptied(view: View, strange: Breach, share: float, limits: Limits) -> Hit:
    """The finding that responses which nothing explains have no trained token."""
    cut = view.get(_CUT) is not None
    most = share > limits["most"]
    message = f"{strange.items:.0f} of {strange.n} responses ({strange.value:.1%}) have no trained token {strange.when}"
    severity: Severity = "warning" if most or (cut and share > limits["told"] and uncorrected(view)) else "info"
    ruled_out = ("overlong filtering, aborted responses: neither was cut or aborted",) if cut else ()
    unchecked = () if cut else ("whether these were cut or aborted: finish_reason",)
    suspect = "responses-filtered" if most else "mask-empty-in-some-rows"
    return Hit(message, severity, (strange.evidence(),), None, ruled_out, unchecked, suspect=suspect)
