"""Edges of the mask that lie a few tokens beside those of what the policy wrote, and holes in it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Hit, Severity
from rl_doctor.rules.masks import AGREEMENT, inverted
from rl_doctor.rules.reading import lacking, uncorrected
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.spans import Breach, above, at, pooled
from rl_doctor.rules.view import View

EDGES: Final = {
    "mask.extra_head_frac": "train tokens of somebody else right before them",
    "mask.extra_tail_frac": "train tokens of somebody else right after them",
    "mask.missing_head_frac": "leave out their first tokens",
    "mask.missing_tail_frac": "leave out their last tokens",
}
SHIFTS: Final = (("mask.extra_head_frac", "mask.missing_tail_frac"), ("mask.missing_head_frac", "mask.extra_tail_frac"))
"""What a mask shows that lies too early, and one that lies too late."""


@rule(
    "RLD028",
    "mask-edge-off",
    severity="error",
    optional=(*EDGES, *AGREEMENT, "mask.wrong_rows", "mask.eos_missed_frac"),
    limits={"share": 0.005, "stretches": 3, "most": 0.2},
    cause="The mask begins or ends a few tokens beside what the policy wrote: an offset at the boundaries of turns.",
    advice=(
        "Print the tokens around one boundary with their mask and their rollout_logprob: the three must change together.",
        "Build the mask from the ids that were sampled, while the conversation is put together.",
    ),
    avoids=(
        "observations that are trained as a whole: observation-in-loss",
        "a prefix that is forced and that the engine gives logprobs for",
        "more than eight tokens in a row: leaving out a preamble may be meant",
        "a last token without a logprob in a row without untrained tokens: missing-rollout-logprob",
    ),
    source="public agent-training issues: the header of the next turn in the loss, since it is longer than the code assumed",
    since="0.2.0",
)
def mask_edge_off(view: View, limits: Limits) -> Iterable[Hit | Skip]:
    """The mask changes a few tokens before or after the author does.

    Tokens of the chat template are then trained (the policy never chooses them, so their gradient is noise or teaches it to
    write them), or the first or last tokens of a turn, often its end token, are not.

    A stretch is what the policy wrote without a break: tokens of the assistant where roles are recorded, else tokens that the
    engine gave a logprob for. Counted are stretches beside which one to eight tokens of somebody else are trained, with
    untrained ones beyond them, and stretches whose first or last one to eight tokens are not trained. More than ``share`` of the
    stretches, and at least ``stretches``, are a warning, more than ``most`` an error. Too early at one edge and too early at the
    other is one shift.

    Limits: without roles and with engine logprobs of 0 at tokens that the trainer is sure of too, an edge cannot be told.
    """
    series = {name: view.get(name) for name in EDGES}
    if all(found is None for found in series.values()):
        yield lacking(view, *EDGES)
        return
    if inverted(view):
        return
    found = {name: breach for name, one in series.items() if (breach := _breach(one, limits)) is not None}
    if set(found) == {"mask.missing_tail_frac"} and _only_eos(view, found["mask.missing_tail_frac"]):
        return
    if not found:
        return
    shift = next((pair for pair in SHIFTS if all(name in found for name in pair)), None)
    first = max(found.values(), key=lambda breach: breach.value)
    told = [f"{breach.items:.0f} of {breach.n} {EDGES[name]} ({breach.value:.1%})" for name, breach in found.items()]
    message = f"Of the stretches that the policy wrote, {'; '.join(told)}, {first.when}"
    others = all("extra" in name for name in found)
    suspect = "mask-shifted" if shift is not None else "template-glue-trained" if others else ""
    cause = None if shift is None else f"The mask lies too {'early' if shift == SHIFTS[0] else 'late'} by some tokens."
    worst: Severity = "error" if first.value > limits["most"] else "warning"
    yield Hit(
        message, worst, tuple(breach.evidence() for breach in found.values()), cause, (), (), (), suspect,
        view.samples("mask.wrong_rows", first.first, first.last),
    )  # fmt: skip


def _breach(series: Series | None, limits: Limits) -> Breach | None:
    found = above(series, limits["share"])
    return found if found is not None and found.items >= limits["stretches"] else None


def _only_eos(view: View, breach: Breach) -> bool:
    """Whether rule mask-misses-eos tells all of it."""
    missed = at(view.get("mask.eos_missed_frac"), breach.series.steps[breach.marked])
    return missed is not None and pooled(missed) * int(missed.counts.sum()) >= 0.9 * breach.items


@rule(
    "RLD029",
    "written-tokens-untrained",
    severity="warning",
    optional=("mask.written_untrained_inside_frac", *AGREEMENT, "mask.wrong_rows"),
    limits={"share": 0.005, "chosen": 0.2, "tokens": 32},
    cause="Tokens that the policy wrote drop out of the loss, in the midst of what is trained.",
    advice=(
        "Compare the mask with the rollout_logprob of a sample: every token that was sampled has one and should be trained.",
        "If tokens are selected on purpose (entropy, rejection), record that mask as response_mask and the other as loss_mask.",
    ),
    avoids=(
        "token-level rejection by rollout correction, where it is configured",
        "a selection of tokens on purpose, which leaves out far more of them",
        "tokens at the edge of a turn: mask-edge-off",
    ),
    source="masks built by searching for ids in text lose tokens that look like markers",
    since="0.2.0",
)
def written_tokens_untrained(view: View, limits: Limits) -> Iterable[Hit | Skip]:
    """Some tokens that the policy wrote are not trained, though what stands around them is.

    A mask that is made by looking for ids (of padding, of markers) drops these ids wherever the policy writes them. A few per
    cent of the tokens never learn.

    Of the tokens that the policy wrote in rows that train any, those are counted that are untrained and lie elsewhere than
    within eight tokens of an edge. From ``share`` on it is a warning, info where rollout correction is configured, and from
    ``chosen`` on: that is a selection. ``tokens`` such tokens at least.
    """
    series = view.get("mask.written_untrained_inside_frac")
    if series is None:
        yield lacking(view, "mask.written_untrained_inside_frac")
        return
    if inverted(view):
        return
    found = above(series, limits["share"])
    if found is None or found.items < limits["tokens"]:
        return
    meant = found.value >= limits["chosen"] or not uncorrected(view)
    message = f"{found.items:.0f} of {found.n} tokens that the policy wrote ({found.value:.1%}) are not trained {found.when}"
    cause = "A selection of tokens is trained on, as configured or on purpose." if meant else None
    yield Hit(
        message, "info" if meant else "warning", (found.evidence(),), cause, suspect="tokens-selected" if meant else "",
        samples=view.samples("mask.wrong_rows", found.first, found.last),
    )  # fmt: skip
