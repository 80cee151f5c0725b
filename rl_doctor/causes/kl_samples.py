"""A KL to the reference that its own samples contradict, and penalties that count what they should not."""

from __future__ import annotations

import math
from typing import Final

from rl_doctor.causes.registry import Look, cause
from rl_doctor.causes.scene import Scene
from rl_doctor.causes.signs import configured, found, measured, over, sign


@sign("sampling is restricted: top_p, top_k or another temperature than 1", role="typical")
def _restricted(scene: Scene) -> Look:
    config = scene.view.config
    if config.top_p is None and config.top_k is None:
        return Look(None, "sampling is restricted", None, ("config.top_p", "config.top_k"))
    there = (config.top_p is not None and config.top_p < 1.0) or (config.top_k or 0) > 0
    return Look(there, f"top_p is {config.top_p}, top_k is {config.top_k}")


_KIND: Final = "ref.k1_by.kind."


def _share_at(scene: Scene, kind: str) -> tuple[float, float] | None:
    """Share of the negative sum that stands at one kind of token, and the share of tokens that are of it."""
    sums, total = {}, 0
    for name, series in scene.view.named(_KIND).items():
        inside = scene.series(name)
        number = 0 if inside is None else int((inside if inside is not None else series).counts.sum())
        sums[name.removeprefix(_KIND)] = (scene.value(name) * number, number)
        total += number
    whole = sum(value for value, _ in sums.values())
    if total == 0 or whole >= 0.0:
        return None
    part, number = sums.get(kind, (0.0, 0))
    return min(part / whole, 1.0), number / total


@sign("most of it stands at the tokens that end responses", _KIND)
def _at_ends(scene: Scene) -> Look:
    share = _share_at(scene, "end")
    if share is None:
        return Look(None, "most of it stands at the tokens that end responses", None, scene.missing(_KIND) or ("token_id",))
    return Look(
        share[0] >= 0.5 and share[1] <= 0.3, f"{share[0]:.0%} of it stands at the {share[1]:.0%} of tokens that end responses"
    )


@sign("most of it stands at padding", _KIND)
def _at_padding(scene: Scene) -> Look:
    share = _share_at(scene, "padding")
    if share is None:
        return Look(None, "most of it stands at padding", None, scene.missing(_KIND) or ("token_id",))
    return Look(share[0] >= 0.5, f"{share[0]:.0%} of it stands at padding, {share[1]:.0%} of the tokens")


@sign("rollouts agree with the reference, not with the policy", "mismatch.rollout_to_ref", "mismatch.rollout_to_old")
def _from_reference(scene: Scene) -> Look:
    to_ref, to_old = scene.value("mismatch.rollout_to_ref"), scene.value("mismatch.rollout_to_old")
    words = "rollouts agree with the reference, not with the policy"
    if not (math.isfinite(to_ref) and math.isfinite(to_old)):
        return Look(None, words, None, scene.missing("mismatch.rollout_to_ref") or ("rollout_logprob",))
    return Look(to_ref < 0.5 * to_old, f"rollout_logprob is {to_ref:.3g} nat from ref_logprob and {to_old:.3g} from the policy's")


_BELOW: Final = found("kl-below-zero", "the KL of its own samples is below 0 beyond their noise")
_NEGATIVE_LEADS: Final = ("kl-reversed", "kl-runaway", "kl-spike", "length-collapse", "reward-drift")

cause(
    "sampled-from-other-law", "responses are drawn from another distribution than the one that is scored",
    explains=("kl-below-zero", "kl-reversed"), leads_to=("kl-runaway", "kl-spike", "reward-drift"),
    signs=(
        _BELOW, _restricted,
        found("rollout-trainer-mismatch", "engine and trainer disagree", role="typical"),
        measured("ref.sampled_k3", over(0.0), "k3 of the same tokens is above 0", "k3 of the same tokens is {}", role="typical"),
    ),
    advice=(
        "Sample with top_k=0, top_p=1, no minimum length and the temperature that the logprobs are computed at.",
        "Or keep the settings, and put the KL in the loss as k3, which cannot be negative.",
    ),
    source="Public issue threads on negative KL with generation settings",
    doc="""The expectation of the log-ratio under the policy itself is a KL; under another distribution it is any number. Top-k,
    a minimum length or a banned end token draw from another distribution, and a policy that is penalised by k1 learns to make
    the number more negative, until responses are empty.""",
)  # fmt: skip
cause(
    "end-of-response-forced", "the end of responses is forced or banned while sampling, and scored as if it were chosen",
    explains=("kl-below-zero",), leads_to=_NEGATIVE_LEADS,
    signs=(_BELOW, _at_ends),
    advice=(
        "Remove min_length and bans of the end token from sampling, or leave forced end tokens out of the mask.",
        "Check that an end token that the engine appends, rather than samples, is not trained on.",
    ),
    source="Public issue threads on negative KL with min_length and without an end token",
    doc="""A minimum length forbids the end token until it is reached; what is sampled instead is scored as if the end had been
    possible. The contradiction stands at the ends of responses, and nowhere else.""",
)  # fmt: skip
cause(
    "padding-in-kl", "padding behind responses is counted in the KL",
    explains=("kl-below-zero",), leads_to=_NEGATIVE_LEADS,
    signs=(_BELOW, _at_padding),
    advice=("End the mask at the first end token; where the padding token is the end token, keep exactly one of them.",),
    source="Public issue threads on negative KL through padding after the end of responses",
    doc="""Nobody sampled padding. The log-ratio there has no mean that it must have, and there can be many such tokens.""",
)  # fmt: skip
cause(
    "samples-from-reference", "the engine samples with the reference's weights",
    explains=("kl-below-zero",), leads_to=("rollout-trainer-mismatch", "kl-reversed", "stale-old-logprob", "reward-flatline"),
    signs=(_BELOW, _from_reference),
    advice=(
        "Check that weights are sent to the engine after every update, and which weights are sent after a resume.",
        "Check that logprob and ref_logprob are not exchanged: the engine knows what it sampled with.",
    ),
    source="Public issue threads on engines that are never synchronised, or get the reference's weights after a resume",
    doc="""Over samples from the reference the mean log-ratio is minus the KL of the reference to the policy, below 0 and falling
    as the policy learns. The rollout's own logprobs tell: they agree with the reference.""",
)  # fmt: skip

cause(
    "padding-taken-for-text", "left padding is taken for text in one of the two passes",
    explains=("kl-grows-with-padding", "wrong-reference"),
    leads_to=("kl-penalty-dominates", "kl-below-zero", "kl-reversed", "kl-runaway", "kl-spike", "reward-flatline"),
    signs=(
        found("kl-grows-with-padding", "rows are the farther from the reference the more they are padded"),
        measured("ref.padding_corr", over(0.3), "padding tells how far a row is", "the correlation with the padding is {}",
                 role="typical"),
    ),
    advice=(
        "Pass attention_mask and position_ids (cumulative sum of the mask, less 1) to both models.",
        "Compute one padded row without padding in both passes: the pass whose numbers change is wrong.",
    ),
    source="Public issue threads on batched generation with left padding",
    doc="""Rows without padding agree to the numeric floor, rows with padding do not, and by how much depends on its length. A
    wrong reference is wrong in all rows alike.""",
)  # fmt: skip

cause(
    "kl-penalised-twice", "the KL is penalised in the reward and in the loss",
    explains=("kl-counted-twice",), leads_to=("kl-penalty-dominates", "reward-flatline"),
    signs=(
        found("kl-counted-twice", "the KL enters at two places"),
        found("kl-penalty-dominates", "the penalty outweighs the reward", role="typical"),
    ),
    advice=("Keep one of the two places.", "If both are meant, read kl_coef as the sum of the two coefficients."),
    source="Closed form: the two pull in the same direction and add up",
    doc="""Trainers have a switch for each place, and nothing forbids both. The two are the same force, spread differently over
    the tokens.""",
)  # fmt: skip
cause(
    "kl-summed-without-mask", "the KL in the reward is summed without the mask",
    explains=("kl-penalty-outside-mask", "observations-in-returns"),
    leads_to=("kl-below-zero", "kl-runaway", "kl-spike", "reward-drift"),
    signs=(
        found("kl-penalty-outside-mask", "masked tokens are penalised"),
        measured("penalty.unmasked_kl_abs", over(0.0), "masked tokens are far from the reference",
                 "the mean |logprob - ref_logprob| of masked tokens is {}"),
    ),
    advice=(
        "Select the trained tokens before the sum.",
        "With tools, check that the mask handed to the reward is that of the loss, not the attention mask.",
    ),
    source="Public issue threads on retrieved tokens in the KL penalty",
    doc="""What a tool returns has log-ratios too, often large ones. Summed into the reward they are noise in proportion to what
    the tool wrote.""",
)  # fmt: skip
cause(
    "kl-coef-too-large", "kl_coef is too large for the scale of the reward",
    explains=("kl-penalty-dominates",), leads_to=("reward-flatline", "kl-flatline"),
    signs=(
        found("kl-penalty-dominates", "the penalty outweighs the reward"),
        configured("kl_coef", lambda value: value > 0.0, "there is a KL term", "kl_coef is {}"),
        found("kl-counted-twice", "the KL enters at two places", role="against"),
        found("wrong-reference", "the KL is large before any update", role="against"),
    ),
    advice=("Lower kl_coef until the penalty is well below the spread of the reward.",),
    source="Closed form: gradient weight of the KL term against that of the advantage",
    doc="""Staying at the reference pays more than earning reward. A KL that is large for another reason, a wrong reference or
    a runaway, makes any coefficient dominate.""",
)  # fmt: skip
