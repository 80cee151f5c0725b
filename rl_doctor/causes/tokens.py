"""Tokens: other ones than were sampled, the same ones twice, and the same ones for ever."""

from __future__ import annotations

from rl_doctor.causes.registry import Look, cause
from rl_doctor.causes.sampling_signs import starts_at_one_place
from rl_doctor.causes.scene import Scene
from rl_doctor.causes.signs import between, found, measured, over, sign

_RETOKENISED = (
    "rollout-trainer-mismatch", "mismatch-in-some-rows", "tokens-contradict-entropy",
    "logprob-misaligned", "part-off-policy", "missing-rollout-logprob", "ratio-saturation",
    "kl-spike", "kl-runaway", "stale-old-logprob", "grad-norm-spike", "entropy-explosion", "reward-flatline",
    "impossible-length", "wrong-reference", "temperature-mismatch", "unlawful-rollout-logprob", "coarse-logprob",
    "inert-ratio", "mismatch-before-explosion",
)  # fmt: skip

cause(
    "retokenised",
    "responses are decoded to text and tokenised again, so that other ids are trained than were sampled",
    explains=("mismatch-within-response",),
    leads_to=_RETOKENISED,
    signs=(
        found("mismatch-within-response", "engine and trainer agree up to some token and are unrelated after it"),
        measured(
            "inner.to_end_frac", over(0.8), "they disagree to the end of the turn",
            "in {}% of these rows they disagree to the end of the turn", scale=100,
        ),
        measured(
            "inner.shifted_frac", over(0.5), "one follows the other some tokens later",
            "in {}% of these rows one column follows the other 1 to 3 tokens later", role="typical", scale=100,
        ),
        measured(
            "inner.after_gap_frac", over(0.8), "it begins right after what a tool wrote",
            "in {}% of these rows it begins right after untrained tokens", role="against", scale=100,
        ),
        measured(
            "inner.switched_frac", over(0.5), "the weights change there",
            "in {}% of these rows the version that sampled changes there", role="against", scale=100,
        ),
        starts_at_one_place,
    ),
    advice=(
        "Train on the ids that were sampled (token in, token out).",
        "Until then leave out rows whose ids, decoded and tokenised again, are others.",
        "Compare the sampled ids with those that were trained, at the first token that differs.",
    ),
    source="public issues and posts on text that is tokenised again",
    doc="""The same text has several tokenisations. From the first token that is split otherwise, logprobs belong to other tokens,
    until the next turn starts afresh. A shift of whole rows disagrees from their first token on; special tokens that were skipped
    move the rest by their number.""",
)  # fmt: skip

cause(
    "context-differs-after-tools",
    "engine and trainer read different contexts after a tool's output",
    explains=("mismatch-within-response",),
    leads_to=_RETOKENISED,
    signs=(
        found("mismatch-within-response", "engine and trainer agree up to some token and are unrelated after it"),
        measured(
            "inner.after_gap_frac", over(0.8), "it begins right after what a tool wrote",
            "in {}% of these rows it begins right after untrained tokens", scale=100,
        ),
        measured(
            "inner.shifted_frac", over(0.5), "one follows the other some tokens later",
            "in {}% of these rows one column follows the other 1 to 3 tokens later", role="typical", scale=100,
        ),
    ),
    advice=(
        "Compare the ids of the prompt of the second turn with the ids that the trainer has before it.",
        "Look for observations that are cut by length on one side only, and for special tokens that one side skips.",
    ),
    source="public issues: special tokens skipped in text and kept in ids, observations cut by length",
    doc="""The first turn agrees. From the first action after an observation on the two condition on different text: the
    observation was cut, stripped or rendered otherwise.""",
)  # fmt: skip

cause(
    "weights-change-within-response",
    "the engine's weights change in the midst of a response",
    explains=("mismatch-within-response",),
    leads_to=_RETOKENISED,
    signs=(
        found("mismatch-within-response", "engine and trainer agree up to some token and are unrelated after it"),
        measured(
            "inner.switched_frac", over(0.5), "the weights change there",
            "in {}% of these rows the version that sampled changes there", scale=100,
        ),
    ),
    advice=(
        "Check the weights after the synchronisation that fell into these responses: a probe prompt must score as before.",
        "Keep the cache of the old weights out of responses that go on under new ones.",
    ),
    source="partial rollouts go on under new weights",
    doc="""That responses go on under new weights is by design; that logprobs are then unrelated to the trainer's is not.""",
)  # fmt: skip

_COPIES = ("zero-variance-groups", "near-zero-variance-groups", "reward-flatline", "entropy-collapse", "broken-groups")

cause(
    "seed-shared",
    "engines, ranks or samples of a group share a random seed",
    explains=("duplicate-samples",),
    leads_to=_COPIES,
    signs=(
        found("duplicate-samples", "responses repeat each other more often than chance allows"),
        measured(
            "data.distinct_frac", between(0.0, 0.95), "the group holds few different responses",
            "{} of the responses of groups with copies are different", role="typical",
        ),
        measured(
            "data.copy_across_ranks_frac", over(0.5), "copies lie on several ranks",
            "{}% of the sets of copies lie on several ranks", role="typical", scale=100,
        ),
    ),
    advice=(
        "Give every engine, rank and sample of a group its own seed, and none to the request itself.",
        "Check that caching in the engine does not return the first completion for equal prompts.",
    ),
    source="public trainer issues: engines that share a seed",
    doc="""Long responses of low probability come again, token by token: independent samples do not. A greedy or sure policy
    repeats itself honestly, and then its own logprobs say so.""",
)  # fmt: skip

cause(
    "sampling-greedy",
    "the engine samples greedily, or nearly so, though logprobs are of another temperature",
    explains=("duplicate-samples",),
    leads_to=_COPIES,
    signs=(
        found("duplicate-samples", "responses repeat each other more often than their probabilities say"),
        found("duplicate-samples", "all responses of a group are the same", suspect="sampling-greedy"),
    ),
    advice=(
        "Look up the sampling parameters that the engine really gets; temperature 0 and top_k 1 are greedy.",
        "With equal responses no group has an advantage: nothing is learned until they differ.",
    ),
    source="greedy decoding gives one response per prompt",
    doc="""Every response of every group is the same one. With a shared seed some groups or some pairs differ.""",
)  # fmt: skip


@sign("it is so from the first steps on", "repeat.loop_frac")
def _from_start(scene: Scene) -> Look:
    series = scene.view.get("repeat.loop_frac")
    if series is None:
        return Look(None, "it is so from the first steps on", None, scene.missing("repeat.loop_frac"))
    first = float(series.values[:3].mean())
    return Look(first >= 0.5, f"{first:.0%} of the long responses of the first steps loop")


@sign("it came later", "repeat.loop_frac")
def _later(scene: Scene) -> Look:
    series = scene.view.get("repeat.loop_frac")
    if series is None:
        return Look(None, "it came later", None, scene.missing("repeat.loop_frac"))
    first = float(series.values[:3].mean())
    return Look(first < 0.5, f"{first:.0%} of the long responses of the first steps loop")


_STUCK = (
    "length-truncation", "length-explosion", "reward-flatline", "zero-variance-groups", "grad-zero", "grad-vanished",
    "kl-flatline", "entropy-collapse", "reward-drift", "inert-ratio", "reward-component-idle", "duplicate-samples",
    "same-answer-rewarded",
)  # fmt: skip

cause(
    "generation-broken",
    "generation is broken from the start: responses loop before anything was trained",
    explains=("looping-responses",),
    leads_to=_STUCK,
    signs=(found("looping-responses", "responses end in a circle"), _from_start),
    advice=(
        "Generate with the same weights outside of the trainer; if that is fine, look at its caching and gradient checkpointing.",
        "Do not raise the length limit: responses that loop never end.",
    ),
    source="a public run whose generation looped at every step, with rewards, KL and gradients of 0",
    doc="""Scalars look as if the length limit were too low: every response is cut and none is right. Their tokens repeat, which a
    limit that is too low does not do.""",
)  # fmt: skip

cause(
    "policy-loops",
    "the policy has learned to repeat itself, and runs into the length limit",
    explains=("looping-responses",),
    leads_to=_STUCK,
    signs=(
        found("looping-responses", "responses end in a circle"),
        _later,
        measured(
            "repeat.loop_cut_frac", over(0.3), "responses that were cut loop",
            "{}% of the long responses that were cut loop", role="typical", scale=100,
        ),
    ),
    advice=(
        "Go back to a checkpoint from before the share rose, and lower the learning rate or raise kl_coef.",
        "Check whether the loss rewards length (token-mean with long wrong answers), and whether EOS is trained.",
    ),
    source="arXiv:1904.09751",
    doc="""Cut reasoning looks alike in scalars, but does not repeat; an EOS that is masked out makes responses run on without
    repeating at first.""",
)  # fmt: skip
