"""Masks that are wrong as a whole: made for another length, another role, or other turns."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from rl_doctor.causes.registry import Look, Role, Sign, cause
from rl_doctor.causes.scene import Scene
from rl_doctor.causes.signs import Test, found, measured, over, sign, under

AGENTS: Final = "public agent-training issues"
IN_LOSS: Final = (
    "missing-rollout-logprob", "rollout-trainer-mismatch", "part-off-policy", "kl-spike", "kl-runaway", "kl-reversed",
    "kl-below-zero", "ratio-saturation", "entropy-explosion", "entropy-collapse", "grad-norm-spike", "reward-flatline",
    "reward-drift", "impossible-logprob", "logged-metric-mismatch", "advantage-mismatch", "mask-edge-off", "observations-in-kl",
    "stale-old-logprob", "wrong-reference", "impossible-values", "temperature-mismatch", "tokens-contradict-entropy",
)  # fmt: skip
"""What tokens that nobody sampled do to everything that is averaged over the mask."""
LOST: Final = (
    "reward-flatline", "length-explosion", "length-truncation", "logged-metric-mismatch", "advantage-mismatch",
    "written-tokens-untrained", "tokens-contradict-entropy", "empty-mask",
)  # fmt: skip


def concentrated(by: str, words: str, *names: str, share: float = 0.9, what: str = "the wrong tokens") -> Sign:
    """Wrong tokens lie in some parts of the rows, and hardly any in the others; with ``names`` in these.

    Args:
        by: family of metrics, each the share of wrong tokens of a part; must end in a dot.
        words: what the parts are.
        names: the parts that are meant; by default those that have a tenth as large a share as the worst, or more.
        share: of the wrong tokens that the parts must hold.
        what: what is wrong.
    """

    def look(scene: Scene) -> Look:
        parts = {name.removeprefix(by): (scene.value(name), scene.count(name)) for name in scene.view.named(by)}
        known = {name: pair for name, pair in parts.items() if not math.isnan(pair[0])}
        total = sum(value * number for value, number in known.values())
        if total == 0 or len(known) < 2:
            return Look(None, f"by {words} only a part holds them", None, scene.missing(by))
        worst = max(value for value, _ in known.values())
        chosen = names or tuple(sorted(name for name, (value, _) in known.items() if value >= _FREE * worst))
        held = sum(value * number for value, number in (known[name] for name in chosen if name in known)) / total
        told = f"{held:.0%} of {what} lie in {words} {', '.join(chosen)}"
        if len(chosen) == len(known):
            return Look(there=False, text=f"{what} lie in every {words}")
        return Look(held >= share, f"{told}, of {len(known)}")

    return Sign(f"by {words} only a part holds them", "typical", (by,), look)


def _after(how: str, test: Test, words: str, told: str, *, role: Role = "needed") -> Sign:
    """That padding is trained after responses that ended so; token ids would tell where nothing else says how they ended."""
    metric, by_tokens = f"mask.padding_after_{how}_frac", "mask.eos_missed_frac"
    plain = measured(metric, test, words, told, role=role, scale=100)

    @sign(words, metric, by_tokens, role=role)
    def look(scene: Scene) -> Look:
        seen = plain.look(scene)
        return replace(seen, missing=seen.missing or scene.missing(by_tokens)) if seen.there is None else seen

    return look


def _nearly_all(role: Role) -> Sign:
    """That padding is trained after nearly every response."""
    words = "nearly every response is concerned"
    return _after("end", over(0.6), words, "{}% of the responses that ended train padding", role=role)


_FREE: Final = 0.1
"""How much smaller than in the worst part the share of what is wrong must be for a part to be free of it."""
BY_RANK: Final = concentrated("mask.wrong_by.rank.", "rank")
BY_SOURCE: Final = concentrated("mask.wrong_by.source.", "data source")
EMPTY_BY_RANK: Final = concentrated("mask.empty_by.rank.", "rank", what="the empty masks")
EMPTY_BY_SOURCE: Final = concentrated("mask.empty_by.source.", "data source", what="the empty masks")

cause(
    "mask-of-padded-width",
    "the mask is as wide as the padded batch",
    explains=("mask-covers-padding", "impossible-length"),
    leads_to=(*IN_LOSS, "mask-misses-eos"),
    signs=(
        found("mask-covers-padding", "padding is trained on"),
        _after(
            "end", over(0.6), "padding is trained after nearly every response that ended",
            "{}% of the responses that ended train padding",
        ),
        measured(
            "mask.padding_trained_std", over(0.5), "shorter rows train more of it",
            "rows differ by {} tokens in how much of it they train",
        ),
        BY_RANK,
    ),
    advice=(
        "Build the mask from the real lengths (attention mask), not from the shape of the batch.",
        "Check that padding rows and padded columns are cut by the same mask in loss, entropy and KL.",
    ),
    source="public trainer issues on masks that run to the end of the row",
    doc="""Every row is trained up to the width of the longest one. Noise grows with the spread of lengths.

    A mask that runs to the first EOS looks alike, but is right in rows that have an EOS.""",
)  # fmt: skip

cause(
    "mask-runs-to-first-eos",
    "the mask runs to the first EOS, and to the end of the row where there is none",
    explains=("mask-covers-padding", "impossible-length"),
    leads_to=IN_LOSS,
    signs=(
        found("mask-covers-padding", "padding is trained on"),
        _after(
            "cut", over(0.9), "padding is trained after responses without EOS",
            "{}% of the padded responses without EOS train padding",
        ),
        _after(
            "end", over(0.05), "padding is trained after responses that ended too",
            "{}% of the responses that ended train padding", role="against",
        ),
    ),
    advice=(
        "Build the mask from the attention mask; a response that was cut has no EOS to look for.",
        "Test it on a short response that was cut, in a batch with a longer one.",
    ),
    source="public trainer issue: without an EOS the mask of a response is all ones",
    doc="""Responses that were cut or aborted before the width of the batch have no EOS: the search for it finds nothing, and the
    mask covers their padding. Rows that ended are right.""",
)  # fmt: skip

cause(
    "mask-of-other-rows",
    "the mask belongs to other rows than the tokens",
    explains=("mask-covers-padding", "mask-misses-eos", "written-tokens-untrained", "mask-edge-off"),
    leads_to=(*IN_LOSS, *LOST, "mask-misses-eos", "advantage-outside-mask", "non-finite"),
    signs=(
        found("mask-covers-padding", "padding is trained on"),
        measured(
            "mask.count_off", over(0.5), "rows train more or fewer tokens than they have",
            "rows train {} tokens more or fewer than they have, on average",
        ),
        measured(
            "mask.count_sums_off", under(1e-6), "over a step the counts are those of the responses, in another order",
            "summed over a step, the rows' numbers of trained tokens (and their squares) are {}% off those of the responses",
            scale=100,
        ),
        BY_RANK,
    ),
    advice=(
        "Find the step that orders rows (balancing, dynamic batches, a filter) and move the masks in it too.",
        "Build the mask from the row's own attention mask, after the last reordering.",
    ),
    source="reproduced by moving the masks by one row",
    doc="""Some rows train padding, others miss their end, and as many tokens are trained as there are: the masks are right, in
    another order. A mask that is too wide only adds tokens.""",
)  # fmt: skip

cause(
    "token-ids-of-other-rows",
    "token_id belongs to other rows than the mask and the logprobs",
    explains=("mask-covers-padding",),
    leads_to=(
        *IN_LOSS, "mask-misses-eos", "stop-without-eos", "looping-responses", "duplicate-samples", "observation-in-loss",
        "written-tokens-untrained",
    ),
    signs=(
        found("mask-covers-padding", "by the token ids padding is trained on", suspect="token-ids-of-other-rows"),
        measured(
            "mask.padding_sampled_frac", over(0.5), "the engine sampled something there",
            "the engine gave a logprob at {}% of what is padding by the ids", scale=100,
        ),
        measured(
            "mask.stop_open_frac", over(0.3), "where no padding stands the end token is missing",
            "{}% of the responses that stopped and have no padding do not end by EOS", scale=100,
        ),
    ),
    advice=(
        "Find the step that orders rows (balancing, dynamic batches, a filter) and move token_id in it too.",
        ("If logprob agrees with rollout_logprob, the loss has the right ids: those that are recorded, or decoded, are the wrong "
        "ones."),
    ),
    source="reproduced by moving the token ids by one row",
    doc="""Mask, lengths and logprobs agree with each other, and the ids do not: where a row got a shorter one it ends in padding,
    of which the engine has logprobs, and where it got a longer one its end token is missing. A mask that is wrong covers padding
    of which the engine knows nothing.""",
)  # fmt: skip

_HEAD: Final = "mask.missing_head_frac"


@sign("their first tokens are left out too", _HEAD, "mask.beyond_length_frac", role="against")
def _first_tokens_too(scene: Scene) -> Look:
    """That the mask is shifted; recordings without lengths begin at the first token that is trained, and cannot tell."""
    share = scene.value(_HEAD)
    unknown = scene.missing(_HEAD) if math.isnan(share) else scene.missing("mask.beyond_length_frac") if share == 0.0 else ()
    if math.isnan(share) or unknown:
        return Look(None, _first_tokens_too.words, None, unknown)
    return Look(share > 0.05, f"{100 * share:.3g}% of the stretches leave out their first tokens")


cause(
    "mask-ends-late",
    "the mask ends some tokens too late",
    explains=("mask-covers-padding",),
    leads_to=IN_LOSS,
    signs=(
        found("mask-covers-padding", "padding is trained on"),
        measured(
            "mask.padding_trained_std", under(0.5), "all rows train the same number of tokens too many",
            "rows differ by {} tokens in how much of it they train",
        ),
        measured(
            "mask.padding_trained_mean", under(8.5), "that is a few tokens",
            "the rows that train padding train {} tokens of it", role="typical",
        ),
        _nearly_all("needed"),
        _first_tokens_too,
    ),
    advice=(
        "Print token, mask and rollout_logprob of a short response: if its first token is not trained, the mask is shifted.",
        "Look at the comparison that builds the mask: position < length keeps the tokens of the response, <= one more.",
        "Check whether the length counts an EOS that the tokens do not have.",
    ),
    source="masks that compare positions with lengths by <= instead of <",
    doc="""Every row trains the same few tokens of padding, whatever its length. A mask of the padded width trains more in shorter
    rows; one that is shifted leaves out the first tokens as well.""",
)  # fmt: skip

cause(
    "padding-in-some-rows",
    "the mask covers padding in some rows",
    explains=("mask-covers-padding",),
    leads_to=IN_LOSS,
    signs=(
        found("mask-covers-padding", "padding is trained on"),
        _nearly_all("against"),
        BY_RANK,
        BY_SOURCE,
        concentrated("mask.wrong_by.left_padding.", "class of padding to the left"),
        concentrated("mask.wrong_by.microbatch.", "micro-batch"),
    ),
    advice=(
        "Look at the samples: what do the rows with padding in their mask share (rank, micro-batch, tool calls, a cut response)?",
        "Build the mask from the attention mask of the row itself.",
    ),
    source="public trainer issues on masks that run to the end of the row",
    doc="""Most rows are right, so that the mask is not as wide as the batch; and it is not those without EOS. A worker, a data
    source or rows that were joined from several parts make their masks otherwise.""",
)  # fmt: skip


def _parts(by: str, scene: Scene) -> dict[str, float]:
    return {name.removeprefix(by): scene.value(name) for name in scene.view.named(by) if scene.count(name) >= 16}


@sign("the mask is right in some turns and wrong in others", "mask.wrong_by.turn.")
def _some_turns(scene: Scene) -> Look:
    shares = _parts("mask.wrong_by.turn.", scene)
    if len(shares) < 2:
        return Look(None, "the mask is right in some turns and wrong in others", None, ("turn",))
    right = [name for name, share in shares.items() if share < 0.1]
    wrong = [name for name, share in shares.items() if share > 0.5]
    low, high = min(shares.values()), max(shares.values())
    return Look(bool(right and wrong), f"the mask is wrong at {low:.0%} to {high:.0%} of the tokens of a turn")


cause(
    "mask-means-opposite",
    "the mask has the opposite meaning",
    explains=("mask-inverted",),
    leads_to=(
        *IN_LOSS, "empty-mask", "mask-misses-eos", "zero-variance-groups", "advantage-outside-mask", "observation-in-loss",
        "mask-covers-padding", "written-tokens-untrained",
    ),
    signs=(found("mask-inverted", "the mask is 1 where it should be 0, and the other way round"),),
    advice=(
        "Invert the mask, or the convention of the function that reads it.",
        "Check the helper that pairs turn markers: a shift by one turn has the same effect.",
    ),
    source="public agent-training issues in which only observation tokens got a gradient",
    doc="""Only what the policy read is trained. The loss moves, the task does not improve.""",
)  # fmt: skip

cause(
    "turns-mispaired",
    "turn markers are paired with the wrong partner, so that whole turns are trained that the policy did not write",
    explains=("mask-inverted", "observation-in-loss"),
    leads_to=(
        *IN_LOSS, "empty-mask", "mask-misses-eos", "zero-variance-groups", "advantage-outside-mask", "written-tokens-untrained",
    ),
    signs=(
        found("observation-in-loss", "what others wrote is trained"),
        measured(
            "mask.written_untrained_frac", over(0.1), "much of what the policy wrote is not trained",
            "{}% of what the policy wrote is not trained", scale=100,
        ),
        _some_turns,
    ),
    advice=(
        "Number the markers of a conversation by hand, and compare the pairs that the code makes.",
        "Build the mask while the conversation is put together, so that nothing has to be searched for.",
    ),
    source=AGENTS,
    doc="""From some turn on the mask covers the turns of the others. An inverted mask is wrong everywhere, a mispaired one from
    the first pair that fails.""",
)  # fmt: skip

cause(
    "observations-trained",
    "what a tool, a user or the system wrote is trained on",
    explains=("observation-in-loss",),
    leads_to=IN_LOSS,
    signs=(
        found("observation-in-loss", "tokens are trained that the policy did not write"),
        measured(
            "mask.observation_trained_frac", over(0.9), "all of what others wrote is trained",
            "{}% of what others wrote is trained", role="typical", scale=100,
        ),
        measured(
            "mask.observation_edge_frac", over(0.9), "it is a few tokens at the edges of turns only",
            "{}% of them lie in short runs beside what the policy wrote", role="against", scale=100,
        ),
        concentrated("mask.wrong_by.turn.", "turn"),
        BY_SOURCE,
    ),
    advice=(
        "Build the mask while the conversation is put together (token in, token out), not by searching for markers in text.",
        "If it is meant, say so in the configuration; else check the option that masks observations.",
    ),
    source="public agent-training issues: retrieved text in the loss, and early collapse",
    doc="""The probability of tool output is low and not the policy's doing. Its gradient dominates, KL turns strongly negative,
    and runs collapse early. If the prompt is trained too, the mask is that of the whole sequence.""",
)  # fmt: skip

cause(
    "observations-trained-on-purpose",
    "observations are trained on, as configured",
    explains=("observation-in-loss",),
    leads_to=("missing-rollout-logprob", "rollout-trainer-mismatch", "part-off-policy", "mask-edge-off"),
    signs=(
        found(
            "observation-in-loss", "what others wrote is trained, as the configuration says",
            suspect="observations-trained-on-purpose",
        ),
    ),
    advice=("Keep the policy loss of these tokens apart from that of the actions, or weigh it: they have no advantage.",),
    source="some trainers offer it as an option",
    doc="""An auxiliary loss on observations teaches a model of the environment. Importance weights and KL must leave it out.""",
)  # fmt: skip

cause(
    "whole-sequence-mask",
    "the mask of the loss is the attention mask: prompt and observations included",
    explains=("prompt-in-loss", "observation-in-loss", "mask-edge-off"),
    leads_to=IN_LOSS,
    signs=(
        found("prompt-in-loss", "prompt tokens are trained"),
        measured(
            "mask.prompt_whole_frac", over(0.9), "the whole prompt is trained",
            "{}% of the rows with prompt tokens in the loss have the whole prompt in it", scale=100,
        ),
        found("observation-in-loss", "what others wrote in the conversation is trained too", role="typical"),
    ),
    advice=(
        "Use the mask of the response in the loss; keep the attention mask for attention.",
        "If the mask is full-width on purpose, check that the loss really slices it to the response.",
    ),
    source="public trainer issues on loss masks equal to the attention mask",
    doc="""The advantage pushes the probability of the question up or down, and long prompts outweigh short answers.

    A full-width mask that only attention reads is right, and shows no prompt tokens in the loss.""",
)  # fmt: skip
