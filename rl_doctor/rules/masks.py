"""What the loss covers: padding, EOS, prompts, observations, and what it leaves out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from rl_doctor.report.model import Evidence, Hit, Severity
from rl_doctor.rules.reading import lacking
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.spans import Breach, above, at, below, pooled
from rl_doctor.rules.view import View

_OBSERVED: Final = r"(observation|tool|env|feedback|retriev)"
_MASKS_OBSERVATIONS: Final = re.compile(rf"mask_?\w*{_OBSERVED}")
_TRAINS_OBSERVATIONS: Final = re.compile(rf"(train|learn|loss)\w*_on_\w*{_OBSERVED}")
_SAMPLED: Final = "mask.padding_sampled_frac"
_OPEN: Final = "mask.stop_open_frac"
_OWN: Final = "mask.written_untrained_frac"
_INVERTED_AGREEMENT = 0.1
_INVERTED_BEYOND = 0.9
AGREEMENT: Final = ("mask.role_agreement", "mask.sampled_agreement")
GAPS: Final = ("mask.unsampled_hard_frac", "mismatch.zero_fill_frac", "mismatch.nan_frac")


def inverted(view: View) -> bool:
    """Whether mask-inverted has the better name for what is wrong with the mask."""
    series = (view.get(name) for name in AGREEMENT)
    return any(found is not None and pooled(found) < _INVERTED_AGREEMENT for found in series)


def in_observations(view: View) -> float:
    """Number of trained tokens whose logprob is missing in runs that look like observations; 0 if most gaps lie elsewhere."""
    runs, zeros, nans = (_items(view, name) for name in GAPS)
    return runs if runs >= 0.5 * (zeros + nans) else 0.0


def settings(native: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Names and values of a nested configuration, without the sections' names."""
    for name, value in native.items():
        if isinstance(value, Mapping):
            yield from settings(value)
        else:
            yield str(name), value


def meant_observations(view: View) -> str | None:
    """The setting of the trainer's own configuration that has observations trained on; None where none does."""
    for name, value in settings(view.config.native or {}):
        word = name.lower()
        masks, trains = _MASKS_OBSERVATIONS.search(word), _TRAINS_OBSERVATIONS.search(word)
        if (masks and value is False) or (trains and value is True):
            return f"{name} is {str(value).lower()}"
    return None


def _items(view: View, name: str) -> float:
    found = view.get(name)
    return 0.0 if found is None else float((found.values * found.counts).sum())


@rule(
    "RLD010",
    "mask-covers-padding",
    severity="error",
    optional=("mask.beyond_length_frac", "mask.trailing_pad_row_frac", _SAMPLED, _OPEN),
    limits={"beyond": 0.0, "padding_rows": 0.02, "sampled": 0.5, "tokens": 32, "open": 0.3},
    cause="The response mask was built from the padded width, or from the first EOS in rows that have none.",
    advice=(
        "Build the mask from the real lengths (attention mask), not from token ids.",
        "Where padding and EOS share an id, keep the first EOS and mask what follows.",
    ),
    avoids=(
        "responses cut at the length limit, which fill their row and have no padding",
        "the one EOS that ends a response where EOS and padding share an id",
    ),
    source="public trainer issues on masks that run to the end of the row when no EOS was generated",
)
def mask_covers_padding(view: View, limits: Limits) -> Iterable[Hit | Skip]:
    """Padding is trained on.

    The policy learns to produce padding, the loss is diluted by tokens that nobody sampled, and entropy and KL are averaged
    over them. It shows as noise that grows with the spread of lengths, never as an exception.

    Two counts over the trained tokens: those at or beyond response_length (any is an error), and those that are the padding
    token after the last other token of the row (an error in more than ``padding_rows`` of the rows; one such token is
    allowed where EOS and padding share an id). The second works without lengths.

    Where the engine gave logprobs at more than ``sampled`` of the tokens that are padding by their ids (``tokens`` at least, in
    responses that stopped by themselves), and more than ``open`` of the responses that stopped and have no padding do not end by
    EOS, the mask is right and the ids are those of other rows, shorter and longer ones: the finding says so.

    Limits: needs response_length, or token ids and the padding id. A mask that is inverted altogether is mask-inverted's
    business.
    """
    beyond, padding = view.get("mask.beyond_length_frac"), view.get("mask.trailing_pad_row_frac")
    if beyond is None and padding is None:
        yield lacking(view, "mask.beyond_length_frac", "mask.trailing_pad_row_frac")
        return
    past = above(beyond, limits["beyond"])
    rows = above(padding, 0.0)
    if padding is not None and pooled(padding) <= limits["padding_rows"] and (rows is None or rows.value <= 0.5):
        rows = None
    if past is not None and past.value > _INVERTED_BEYOND:
        return
    found = past or rows
    if found is None:
        return
    evidence = [found.evidence()]
    if past is not None:
        message = f"{past.items:.0f} of {past.n} trained tokens ({past.value:.2%}) lie beyond the response {past.when}"
        if rows is not None:
            evidence.append(rows.evidence())
    else:
        message = f"{found.value:.1%} of the rows train padding after the last real token {found.when}"
    unchecked = () if beyond is not None else ("where the response really ends: response_length is not recorded",)
    sampled, unended = (above(at(view.get(name), found.series.steps[found.marked]), 0.0) for name in (_SAMPLED, _OPEN))
    if (
        past is None
        and sampled is not None
        and unended is not None
        and sampled.value > limits["sampled"]
        and sampled.n >= limits["tokens"]
        and unended.value > limits["open"]
    ):
        evidence += [sampled.evidence(), unended.evidence()]
        message += f"; the engine gave a logprob at {sampled.value:.0%} of {sampled.n} such tokens"
        cause = "token_id belongs to other rows than the mask and the logprobs."
        yield Hit(message, "error", tuple(evidence), cause, (), (), suspect="token-ids-of-other-rows")
        return
    yield Hit(message, "error", tuple(evidence), None, (), unchecked)


@rule(
    "RLD011",
    "mask-misses-eos",
    severity="error",
    needs=("mask.eos_missed_frac",),
    optional=AGREEMENT,
    limits={"most": 0.5, "some": 0.05, "rows": 3},
    cause="EOS is masked out together with padding, usually since both share an id.",
    advice=(
        "Mask padding by position (after the first EOS of the response), not by token id.",
        "Give the tokenizer a padding token of its own.",
        "Watch the response length: without EOS in the loss it drifts to the limit.",
    ),
    avoids=(
        "responses ended by a stop string or a tool call, which have no EOS to train",
        "responses that are masked as a whole",
        "conversations that end in a tool's message",
    ),
    source="public trainer issues and fixes on padding ids equal to EOS ids",
)
def mask_misses_eos(view: View, limits: Limits) -> Iterable[Hit | Skip]:
    """The EOS token that ends a response is not trained on.

    The policy then never learns when to stop: the decision to end gets no gradient, and lengths drift towards the limit.

    Judged are rows whose finish_reason is stop (or unknown), that end by an EOS id, and whose last token before it is
    trained. Of these the share with an untrained EOS is 0 in a healthy run and about 1 with this defect. More than ``most``
    is an error, more than ``some`` (and at least ``rows`` rows) a warning: token-level rejection may take single EOS tokens
    out.

    Limits: needs token ids and the EOS ids of the run. Where the attention mask leaves EOS out too, it was not recorded, and
    the row is not judged.
    """
    missed = above(view.series("mask.eos_missed_frac"), limits["some"])
    if missed is None or missed.items < limits["rows"] or inverted(view):
        return
    message = f"{missed.items:.0f} of {missed.n} responses that end by EOS ({missed.value:.0%}) do not train it {missed.when}"
    ruled_out = ("truncation: only responses that ended by EOS are counted",)
    yield Hit(message, "error" if missed.value > limits["most"] else "warning", (missed.evidence(),), None, ruled_out)


@rule(
    "RLD012",
    "mask-inverted",
    severity="error",
    optional=("mask.role_agreement", "mask.sampled_agreement", "mask.beyond_length_frac"),
    limits={"agreement": _INVERTED_AGREEMENT, "beyond": _INVERTED_BEYOND, "tokens": 32},
    cause="The mask has the opposite meaning: 1 where tokens are to be left out.",
    advice=(
        "Invert the mask, or the convention of the function that reads it.",
        "Check the helper that pairs turn markers: a shift by one turn has the same effect.",
    ),
    avoids=("observations that are much longer than the actions", "rows that are masked as a whole"),
    source="public agent-training issues in which only observation tokens got a gradient",
)
def mask_inverted(view: View, limits: Limits) -> Iterable[Hit | Skip]:
    """Exactly the wrong tokens are trained on.

    What the policy sampled gets no gradient and what it read, or padding, does. The loss moves, the task does not improve.

    The mask is compared with who wrote each token (role), with where the engine gave a logprob, and with where the response
    ends. A share of agreement below ``agreement``, or a share of trained tokens beyond the response above ``beyond``, over
    at least ``tokens`` tokens, is an inverted mask. Anything in between is another rule's business.
    """
    series = {name: view.get(name) for name in ("mask.role_agreement", "mask.sampled_agreement")}
    beyond = view.get("mask.beyond_length_frac")
    if all(found is None for found in series.values()) and beyond is None:
        yield lacking(view, "mask.role_agreement", "mask.sampled_agreement", "mask.beyond_length_frac")
        return
    words = {"mask.role_agreement": "who wrote the tokens", "mask.sampled_agreement": "where the engine gave a logprob"}
    found: list[tuple[Breach, str]] = []
    for name, one in series.items():
        breach = below(one, limits["agreement"])
        if breach is not None and breach.n >= limits["tokens"]:
            found.append(
                (breach, f"the mask agrees with {words[name]} at only {breach.value:.1%} of {breach.n} tokens {breach.when}")
            )
    past = above(beyond, limits["beyond"])
    if past is not None and past.n >= limits["tokens"]:
        found.append((past, f"{past.value:.0%} of the trained tokens lie beyond the response {past.when}"))
    if found:
        yield Hit(found[0][1], "error", tuple(breach.evidence() for breach, _ in found))


@rule(
    "RLD013",
    "prompt-in-loss",
    severity="error",
    needs=("mask.prompt_loss_tokens", "mask.prompt_loss_frac"),
    cause="The loss mask covers the whole sequence, prompt included.",
    advice=(
        "Use the mask of the response, or cut logits and mask to the last response_length positions alike.",
        "If the mask is full-width on purpose, check that the loss really slices it.",
    ),
    avoids=("a full-width attention mask that the loss does not use",),
    source="public trainer issues on loss masks equal to the attention mask",
)
def prompt_in_loss(view: View, _: Limits) -> Iterable[Hit | Skip]:
    """Prompt tokens are trained on.

    The advantage of the response then pushes the probability of the question up or down; the policy drifts on text that it
    did not write, and lengths of prompts weigh in the loss. prompt_loss_tokens counts prompt positions that the loss covers:
    0 is right.
    """
    rows = above(view.series("mask.prompt_loss_frac"), 0.0)
    if rows is None:
        return
    tokens = above(view.series("mask.prompt_loss_tokens"), 0.0)
    evidence = (rows.evidence(),) if tokens is None else (rows.evidence(), tokens.evidence())
    mean = 0.0 if tokens is None else tokens.value
    yield Hit(f"{rows.value:.0%} of {rows.n} rows train prompt tokens, {mean:.1f} on average, {rows.when}", "error", evidence)


@rule(
    "RLD014",
    "observation-in-loss",
    severity="error",
    optional=(
        "mask.observation_frac",
        "mask.observation_trained_frac",
        "mask.unsampled_frac",
        *GAPS,
        *AGREEMENT,
    ),
    limits={"share": 0.01},
    cause="Tokens that the policy did not write are in the loss: tool output, user turns, or glue of the chat template.",
    advice=(
        "Build the mask while the conversation is put together (token in, token out), not by searching for markers in text.",
        "Check the turn boundaries: the header and the newline after the end of a turn are the template's, not the policy's.",
        "If observations are trained on purpose, ignore this rule for the run.",
    ),
    avoids=("forced prefixes that the engine gives logprobs for", "observations that are masked out"),
    source="public agent-training issues: retrieved text or template glue in the loss, and early collapse",
)
def observation_in_loss(view: View, limits: Limits) -> Iterable[Hit | Skip]:
    """Tool output, user text or template glue is trained on.

    Their probability under the policy is low and not its doing; the gradient there dominates, KL turns strongly negative,
    and runs collapse early.

    With roles, trained tokens that a tool, a user or the system wrote are counted. Without, trained tokens for which the
    engine gave no logprob (NaN, or 0 where the trainer finds them improbable), in runs of three or more, between tokens that
    have one. More than ``share`` of the trained tokens is an error, less a warning (turn boundaries off by a few tokens).

    Limits: without roles and with a placeholder other than NaN or 0 it sees nothing. Missing logprobs at the end of a row,
    or scattered, are missing-rollout-logprob's business.
    """
    by_role, by_engine = view.get("mask.observation_frac"), view.get("mask.unsampled_frac")
    if by_role is None and by_engine is None:
        yield lacking(view, "mask.observation_frac", "mask.unsampled_frac")
        return
    if inverted(view):
        return
    scattered = _items(view, "mask.unsampled_hard_frac") > 0 and in_observations(view) == 0
    yield from _observed(view, limits, above(by_role, 0.0), None if scattered else above(by_engine, 0.0))


def _observed(view: View, limits: Limits, role: Breach | None, engine: Breach | None) -> Iterator[Hit]:
    found = role or engine
    if found is None:
        return
    who = "were written by a tool, a user or the system" if role is not None else "have no logprob from the engine"
    message = f"{found.items:.0f} of {found.n} trained tokens ({found.value:.1%}) {who} {found.when}"
    evidence = [found.evidence()]
    covered = at(view.get("mask.observation_trained_frac"), found.series.steps[found.marked])
    if role is not None and covered is not None:
        share = pooled(covered)
        evidence.append(Evidence(covered.metric, found.first, found.last, share, n=int(covered.counts.sum())))
        message += f"; {share:.0%} of such tokens are trained"
    if role is not None and engine is not None:
        evidence.append(engine.evidence())
    unchecked = () if role is not None else ("who wrote the tokens: role is not recorded",)
    severity: Severity = "error" if found.value > limits["share"] else "warning"
    if (setting := meant_observations(view)) is not None:
        cause = f"Observations are trained on since the configuration says so: {setting}."
        yield Hit(message, "info", tuple(evidence), cause, (), unchecked, suspect="observations-trained-on-purpose")
        return
    yield Hit(message, severity, tuple(evidence), None, (), unchecked)


@rule(
    "RLD015",
    "advantage-outside-mask",
    severity="error",
    needs=("mask.adv_outside_frac",),
    optional=("mask.adv_inside_zero_frac", "mask.adv_broadcast_frac", "masked.advantage_frac", _OWN, *AGREEMENT),
    limits={"share": 0.005, "misplaced": 0.25, "before": 0.02, "after": 0.5, "always": 0.9},
    cause="Advantages were computed or whitened without the mask that the loss uses.",
    advice=(
        "Compute returns and whitening over the mask of the loss, and set advantages to 0 elsewhere.",
        "If advantages stand beside the mask, check for a shift by one between them.",
        "Check that the loss multiplies by the mask: only then do such values do no harm.",
    ),
    avoids=("one advantage per response, repeated up to the end of the row: the loss masks it", "NaN at masked tokens"),
    source="public trainer issues on advantage statistics over masked positions",
)
def advantage_outside_mask(view: View, limits: Limits) -> Iterable[Hit | Skip]:
    """Advantages stand at tokens that are not trained.

    Either they were computed over other tokens than the loss covers (then whitening and returns are off at the trained tokens
    too), or mask and advantage are shifted against each other (then part of the signal is lost).

    In rows that hold untrained tokens the share of the sum of |advantage| that lies outside the mask is taken. A row that
    repeats its one advantage everywhere is left out: that is how several trainers store it. More than ``share`` is a warning;
    it is an error if in those rows more than ``misplaced`` of the trained tokens have advantage 0, since then the signal itself
    is displaced. If rows had no advantage outside the mask at first (a share below ``before``) and later more than ``after`` of
    them repeat it there, a warning names the step. Where more than ``always`` repeat it from the start, also at observed tokens
    between those that the policy wrote, that is worth knowing.
    """
    if inverted(view):
        return
    outside = above(view.series("mask.adv_outside_frac"), limits["share"])
    if outside is not None:
        steps = outside.series.steps[outside.marked]
        zeros = at(view.get("mask.adv_inside_zero_frac"), steps)
        lost = pooled(zeros) if zeros is not None else 0.0
        misplaced = lost > limits["misplaced"]
        evidence = [outside.evidence()]
        message = f"{outside.value:.1%} of the sum of |advantage| lies at untrained tokens {outside.when}"
        cause = None
        if zeros is not None and misplaced:
            evidence.append(
                Evidence(zeros.metric, outside.first, outside.last, lost, None, limits["misplaced"], "1", int(zeros.counts.sum()))
            )
            message += f", while {lost:.0%} of the trained tokens have none"
            cause = "Mask and advantage are displaced against each other."
        suspect = "advantage-displaced" if misplaced else ""
        yield Hit(message, "error" if misplaced else "warning", tuple(evidence), cause, suspect=suspect)
        return
    yield from _turned(view, limits)


def _turned(view: View, limits: Limits) -> Iterator[Hit]:
    """Advantages that were 0 outside the mask at first and are repeated there later."""
    repeated = view.get("mask.adv_broadcast_frac")
    later = above(repeated, limits["after"])
    if repeated is None or later is None:
        return
    before = repeated.values[repeated.steps < later.first]
    if len(before) >= 3 and before.max() <= limits["before"]:
        message = f"{later.value:.0%} of the rows repeat their advantage at untrained tokens {later.when}, and none did before"
        yield Hit(message, "warning", (later.evidence(),))
        return
    observed = above(view.get("masked.advantage_frac"), 0.0)
    if observed is None or _items(view, _OWN) > 0.5 * observed.items:  # the policy wrote them: it is the mask that is off
        return
    if pooled(repeated) >= limits["always"]:
        yield Hit(
            f"{pooled(repeated):.0%} of the rows repeat their advantage at tokens that the policy did not write "
            f"({observed.items:.0f} tokens), {observed.when}",
            "info",
            (observed.evidence(),),
            suspect="advantage-repeated-over-observations",
        )
