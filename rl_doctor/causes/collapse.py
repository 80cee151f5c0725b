"""Policies that close up, come apart or break: told by what was set, by what the reward does, and by what broke first."""

from __future__ import annotations

from typing import Final

from rl_doctor.causes.registry import Look, Sign, cause
from rl_doctor.causes.scene import Scene
from rl_doctor.causes.signs import configured, found, measured, over, sign, under
from rl_doctor.rules.reading import TRUNCATION
from rl_doctor.rules.spans import pooled

_AFTER: Final = (
    "reward-drift", "reward-variance-shift", "reward-flatline", "entropy-explosion", "entropy-collapse", "kl-spike",
    "kl-runaway", "ratio-saturation", "grad-norm-spike", "grad-norm-growth", "grad-vanished", "grad-zero", "length-explosion",
    "length-collapse", "length-truncation", "zero-variance-groups", "near-zero-variance-groups", "reward-hacking-suspected",
    "reward-component-idle", "reward-component-imbalance", "rollout-trainer-mismatch", "duplicate-samples", "aborted-responses",
)  # fmt: skip
"""What a broken policy shows next, whatever broke it."""
_SOURCE: Final = "public issue threads on rewards that collapse between steps 60 and 160"


def _ordered(name: str, label: str, words: str, *signs: Sign, advice: tuple[str, ...], doc: str) -> None:
    cause(
        name, label, explains=("sudden-collapse", "reward-drift", "grad-norm-growth"), leads_to=_AFTER,
        signs=(found("sudden-collapse", words, suspect=name), *signs), advice=advice, source=_SOURCE, doc=doc,
    )  # fmt: skip


_ordered(
    "collapse-from-mismatch", "engine and trainer drift apart until the policy breaks",
    "the difference of engine and trainer grows before the reward falls",
    measured("mismatch.k3", over(1e-3), "engine and trainer differ by more than numerics", "k3 of engine and trainer is {}",
             role="typical"),
    advice=(
        "Go back to a checkpoint from before the mismatch began to grow.",
        "Correct for the sampler's distribution (truncated importance weights), or remove the difference.",
        "Look where the mismatch concentrates: improbable tokens, tokens after tool output, one rank.",
    ),
    doc="""The gradient is that of samples which another distribution drew. The error grows with every update until the gradient
    explodes; the reward tells last. Updates that are too large look the same at the end, but there the mismatch moves with
    the gradient or after it.""",
)  # fmt: skip
_ordered(
    "collapse-from-large-updates", "single updates become too large and break the policy",
    "the gradient norm breaks upwards before the reward falls",
    found("grad-norm-spike", "the gradient norm stands a multiple above its level", role="typical"),
    advice=(
        "Go back to a checkpoint from before the gradient grew; lower the learning rate or max_grad_norm.",
        "Look at the batch at which it begins: extreme advantages, very small probabilities, one very long response.",
    ),
    doc="""The gradient leaves its level while engine and trainer still agree. One batch or a rate at the edge of stability is
    enough; everything else follows within a few steps.""",
)  # fmt: skip
_ordered(
    "collapse-from-drift", "the policy moves away from where it was until it breaks",
    "the distance to the old policy or to the reference grows before the reward falls",
    configured("kl_coef", lambda value: not value, "no KL term holds the policy", "kl_coef is {}", role="typical"),
    advice=(
        "Lower the learning rate or the number of updates per batch, or raise kl_coef.",
        "Go back to a checkpoint from before the distance grew.",
    ),
    doc="""The distance grows first, while entropy and gradient are still what they were.""",
)  # fmt: skip
_ordered(
    "collapse-from-entropy", "the policy loses or dissolves its entropy, and then breaks",
    "the entropy breaks before the reward falls",
    found("entropy-explosion", "the entropy grew to a multiple", role="typical"),
    found("entropy-collapse", "the entropy fell to a share", role="typical"),
    advice=(
        "Go back to a checkpoint from before the entropy moved.",
        "If it rose: lower the upper clip bound, entropy_coef or the learning rate. If it fell: the reverse.",
    ),
    doc="""Entropy is an early sign of a policy that comes apart, whatever pushes it: a clip range that is open above, a bonus, a
    learning rate, or responses that are cut and punished.""",
)  # fmt: skip
_ordered(
    "collapse-from-length", "responses grow or shrink until the policy breaks",
    "the length of responses breaks before the reward falls",
    found("length-truncation", "many responses are cut at the length limit", role="typical"),
    advice=(
        "Read responses from between the break of the length and that of the reward: loops, padding with words, empty answers.",
        "Go back to a checkpoint from before the length moved.",
    ),
    doc="""Length moves first where the loss or the reward pays for it, where the end of a response is not learned, or where
    responses fall into loops.""",
)  # fmt: skip
_ordered(
    "collapse-without-precursor", "the policy breaks within one step or two, and nothing recorded tells why",
    "nothing that was recorded breaks before the reward does",
    advice=(
        "Go back to a checkpoint from before the step, and record rollout logprobs, grad_norm and entropy from there on.",
        "Compare the batch and the weights of that step with those of the step before: data, a reload, a failed rank.",
    ),
    doc="""Several unrelated causes end like this: a batch that is not like others, weights that were loaded or sent wrongly, a
    rank that failed. What broke first is not in the columns that were recorded, or all of them broke at once.""",
)  # fmt: skip


@sign("every batch is used for many optimizer steps", "update.passes_mean", role="needed")
def _many_updates(scene: Scene) -> Look:
    config = scene.view.config
    if config.epochs is None or config.minibatches is None:
        return Look(None, "every batch is used for many optimizer steps", None, ("config.epochs", "config.minibatches"))
    number = config.epochs * config.minibatches
    return Look(config.epochs > 1 or number >= 8, f"every batch is used for {number} optimizer steps, in {config.epochs} passes")


_COLLAPSED: Final = found("entropy-collapse", "the entropy fell to a small share of its start")
_EXPLODED: Final = found("entropy-explosion", "the entropy grew to a multiple of its start")
_LOST: Final = (
    "zero-variance-groups", "near-zero-variance-groups", "grad-vanished", "grad-zero", "kl-flatline", "duplicate-samples",
    "reward-flatline", "length-collapse", "same-answer-rewarded",
)  # fmt: skip


@sign("more responses are cut at the length limit after it", *TRUNCATION, role="typical")
def _came_cut(scene: Scene) -> Look:
    words = "more responses are cut at the length limit after it"
    name = next((name for name in TRUNCATION if scene.view.get(name) is not None), TRUNCATION[0])
    before, after = scene.before(name), scene.series(name)
    if before is None or after is None or not len(before):
        return Look(None, words, None, scene.missing(name))
    first, last = pooled(before), pooled(after)
    return Look(last > first + 0.1, f"{first:.0%} of the responses are cut before it begins, {last:.0%} from there on")


_CLOSED: Final = (
    *_LOST, "looping-responses", "length-truncation", "length-explosion", "kl-spike", "kl-runaway",
    "ratio-saturation", "reward-drift",
)  # fmt: skip
"""What else a policy shows that puts all its weight on a few tokens: circles that never end, and steps that move it far."""
_STEP: Final = measured(
    "policy.kl_old_k3", over(0.02), "single batches move the policy far", "the KL to the policy that sampled is {} per batch"
)

cause(
    "exploration-used-up", "the policy has become sure of what it learned, and explores no more",
    explains=("entropy-collapse",), leads_to=_LOST,
    signs=(found("entropy-collapse", "the entropy fell while the reward rose or stands at its ceiling",
                 suspect="exploration-used-up"),),
    advice=(
        "Nothing is wrong as long as the validation score holds; for further gains take harder prompts or a higher clip_high.",
        "Keep a checkpoint from before: from a policy without entropy nothing else can be learned.",
    ),
    source="arXiv:2505.22617 (reward is traded for entropy)",
    doc="""What learning looks like where it succeeds: entropy is spent on reward. A collapse spends it on nothing, and the reward
    tells which of the two it is.""",
)  # fmt: skip
cause(
    "policy-closes-up", "the policy closes up: its entropy is lost, and it goes on to repeat itself or to gain nothing",
    explains=("entropy-collapse",), leads_to=_CLOSED,
    signs=(
        _COLLAPSED,
        found("entropy-collapse", "the entropy fell while the reward rose or stands at its ceiling",
              suspect="exploration-used-up", role="against"),
        _came_cut,
        measured("repeat.loop_frac", over(0.05), "long responses loop", "{}% of the long responses loop",
                 role="typical", scale=100.0),
    ),
    advice=(
        "Go back to a checkpoint from before the onset: a policy without entropy explores no more.",
        "Lower the learning rate, raise the upper clip bound (clip-higher) or set a small entropy bonus.",
        "Check that rollouts are sampled at temperature 1, and that prompts are not repeated too often.",
        "Do not raise max_response_length for responses that loop: they never end.",
    ),
    source="arXiv:2505.22617 (entropy mechanism); arXiv:1904.09751 (repetition)",
    doc="""Entropy that is spent on reward is what learning looks like. Here it is lost without that, or to the point where
    responses run in circles: they never end, so that they are cut; all of a group become alike, so that nothing is left to
    learn; and small updates change such a policy by much. A reward that rises meanwhile then speaks for a reward that
    can be had by repeating, not for learning.""",
)  # fmt: skip
cause(
    "batches-learned-by-heart", "every batch is learned by heart: too many optimizer steps on the same samples",
    explains=("entropy-collapse",), leads_to=_CLOSED,
    signs=(
        _COLLAPSED, _many_updates,
        measured("policy.clip_frac", over(0.05), "many updates are clipped", "the share of clipped tokens is {}", role="typical"),
    ),
    advice=("Take fewer passes or larger mini-batches.", "Go back to a checkpoint from before the onset."),
    source="arXiv:1707.06347 (passes over a batch)",
    doc="""Every further pass over a batch sharpens the policy on the same few samples. A learning rate that is too high does in
    one step what these do in many.""",
)  # fmt: skip
cause(
    "sampling-too-cold", "rollouts are sampled at a low temperature, which leaves little to learn from",
    explains=("entropy-collapse",), leads_to=_CLOSED,
    signs=(
        _COLLAPSED,
        configured("temperature", lambda value: value < 0.8, "the sampling temperature is low", "the sampling temperature is {}"),
    ),
    advice=("Sample at temperature 1 with top_p 1.", "Go back to a checkpoint from before the onset."),
    source="arXiv:2505.22617; public recipes sample at temperature 1",
    doc="""Only what is sampled can be reinforced. At a low temperature that is what was probable already, so that each update
    sharpens the policy further.""",
)  # fmt: skip
cause(
    "updates-too-large", "updates are too large: the learning rate is too high for this batch size",
    explains=("entropy-collapse", "entropy-explosion", "grad-norm-growth"),
    leads_to=("grad-norm-spike", "grad-norm-growth", *_CLOSED),
    signs=(
        _STEP,
        found("grad-norm-spike", "the gradient norm spikes", role="typical"),
        found("ratio-saturation", "many ratios lie outside the clip range", role="typical"),
    ),
    advice=(
        "Lower the learning rate by three to ten times, and go back to a checkpoint from before the onset.",
        "Then watch the KL to the policy that sampled: below .01 per batch is usual.",
    ),
    source="arXiv:1707.06347 (target KL)",
    doc="""The entropy may fall or rise; what is common is how far each batch moves the policy.""",
)  # fmt: skip
cause(
    "clip-range-open-above", "the upper clip bound is so high that improbable tokens grow without bound",
    explains=("entropy-explosion",), leads_to=("length-explosion", "length-truncation", "kl-runaway", "ratio-saturation"),
    signs=(
        _EXPLODED,
        configured("clip_high", lambda value: value >= 0.25, "the upper clip bound is raised", "clip_high is {}"),
        configured("entropy_coef", lambda value: value > 0, "an entropy bonus is set", "entropy_coef is {}", role="against"),
    ),
    advice=("Lower clip_high towards clip_low while the entropy rises.", "Keep it if the reward still rises: then it is meant."),
    source="arXiv:2503.14476, section 3.1; public issue threads on entropy growth with clip-higher",
    doc="""Clip-higher is there to keep entropy up. Entropy that rises to a multiple while the reward does not is more than was
    meant. With a rising reward it is no fault.""",
)  # fmt: skip
cause(
    "entropy-bonus-too-strong", "the entropy bonus outweighs the reward",
    explains=("entropy-explosion",), leads_to=("length-explosion", "length-truncation", "kl-runaway", "reward-flatline"),
    signs=(
        _EXPLODED,
        configured("entropy_coef", lambda value: value > 0, "an entropy bonus is set", "entropy_coef is {}"),
    ),
    advice=("Lower entropy_coef by ten times, or to 0.", "Go back to a checkpoint from before the onset."),
    source="arXiv:2505.22617, section on entropy bonuses",
    doc="""The bonus is a constant push, and the advantage shrinks as groups agree: from some step on noise is what pays.""",
)  # fmt: skip
cause(
    "cut-responses-add-noise", "responses that are cut and punished push the policy towards noise",
    explains=("entropy-explosion",), leads_to=("length-truncation", "length-explosion", "reward-flatline"),
    signs=(
        _EXPLODED,
        found("length-truncation", "many responses are cut at the length limit"),
        configured("entropy_coef", lambda value: value > 0, "an entropy bonus is set", "entropy_coef is {}", role="against"),
    ),
    advice=("Mask cut responses out of the loss (overlong filtering), or raise max_response_length.",),
    source="arXiv:2503.14476, section 3.4 (overlong filtering)",
    doc="""A response that is cut is counted as wrong whatever it says. Pushing down what was sampled raises everything else.""",
)  # fmt: skip
cause(
    "entropy-rises-harmlessly", "the entropy rises, and nothing suffers from it",
    explains=("entropy-explosion",),
    signs=(
        found("entropy-explosion", "the entropy rises while reward and truncation stay as they are",
              suspect="entropy-rises-harmlessly"),
        measured("policy.entropy", under(1.0), "the entropy is below 1 nat", "the entropy is {} nat", role="typical"),
    ),
    advice=("Nothing, as long as the reward holds.",),
    source="public issue threads: with a raised upper clip bound entropy rises in runs that learn",
    doc="""What clip-higher is for.""",
)  # fmt: skip
cause(
    "policy-dissolves", "the policy dissolves: its entropy rises to a multiple, and nothing is set that would raise it",
    explains=("entropy-explosion", "kl-runaway"),
    leads_to=("kl-runaway", "kl-spike", "ratio-saturation", "length-explosion", "length-truncation", "grad-norm-growth"),
    signs=(
        _EXPLODED,
        configured("entropy_coef", lambda value: value == 0, "there is no entropy bonus", "entropy_coef is {}"),
        configured("clip_high", lambda value: value < 0.25, "the upper clip bound is not raised", "clip_high is {}"),
        found("entropy-explosion", "the reward pays for it", suspect="entropy-rises-harmlessly", role="against"),
        found("length-truncation", "many responses are cut at the length limit", role="against"),
    ),
    advice=(
        "Check the sign and the rows of the advantages: pushing down what was sampled raises everything else.",
        "Go back to a checkpoint from before the onset; lower the learning rate, or raise kl_coef.",
        "Read responses from after the onset.",
    ),
    source="public issue threads on entropy growth without a bonus",
    doc="""Where neither a bonus nor clip-higher asks for it, entropy that grows to a multiple is drift. The KL to the reference
    follows from it. Updates that are too large show in the KL to the policy that sampled; here single batches are small.""",
)  # fmt: skip
