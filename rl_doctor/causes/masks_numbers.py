"""Numbers at tokens that are not trained: advantages, rewards, returns and KL terms outside the mask."""

from __future__ import annotations

from rl_doctor.causes.masks import EMPTY_BY_RANK, EMPTY_BY_SOURCE
from rl_doctor.causes.registry import cause
from rl_doctor.causes.signs import between, found, measured, over, under

cause(
    "advantage-without-mask",
    "advantages are computed or whitened without the mask that the loss uses",
    explains=("advantage-outside-mask",),
    leads_to=("advantage-mismatch", "logged-metric-mismatch"),
    signs=(
        found("advantage-outside-mask", "advantages stand at tokens that are not trained"),
        measured(
            "mask.adv_inside_zero_frac", under(0.25), "trained tokens have theirs too",
            "{}% of the trained tokens have none", scale=100,
        ),
        found(
            "advantage-outside-mask", "each row repeats one advantage", suspect="advantage-repeated-over-observations",
            role="against",
        ),
    ),
    advice=(
        "Compute returns and whitening over the mask of the loss, and set advantages to 0 elsewhere.",
        "Check that the loss multiplies by the mask: only then do such values do no harm.",
    ),
    source="public trainer issues on advantage statistics over masked positions",
    doc="""Mean and standard deviation are then those of other tokens too. A shift between mask and advantage leaves trained
    tokens without one instead.""",
)  # fmt: skip

cause(
    "advantage-repeated-over-observations",
    "the advantage of a response is repeated at the observations inside it",
    explains=("advantage-outside-mask",),
    signs=(
        found(
            "advantage-outside-mask", "observed tokens have the advantage of their row",
            suspect="advantage-repeated-over-observations",
        ),
    ),
    advice=("Check that the loss, and whatever whitens advantages, multiplies by the mask: only then does it do no harm.",),
    source="a common way to spread one number over a row",
    doc="""Harmless as long as every later step masks. A mean or a deviation over all stored tokens counts long observations as
    if the policy had written them.""",
)  # fmt: skip

cause(
    "advantage-displaced",
    "mask and advantage are displaced against each other",
    explains=("advantage-outside-mask",),
    leads_to=("advantage-mismatch", "logged-metric-mismatch", "reward-flatline"),
    signs=(
        found("advantage-outside-mask", "advantages stand at tokens that are not trained", suspect="advantage-displaced"),
        measured(
            "mask.adv_inside_zero_frac", over(0.25), "trained tokens have none",
            "{}% of the trained tokens have none", scale=100,
        ),
    ),
    advice=(
        "Check the padding of advantages and mask: left against right, full width against response.",
        "Print both around the first trained token of a row.",
    ),
    source="public trainer issues on masks that are shifted by one",
    doc="""Part of the signal is lost at trained tokens and stands where nothing is trained.""",
)  # fmt: skip

for _name, _label, _words, _advice, _doc in (
    (
        "responses-filtered", "a filter removes most responses", "many responses have no trained token",
        "Count what each filter removes (length, stale samples, duplicates), and log it.",
        "A filter that matches nearly everything leaves little to train on.",
    ),
    (
        "mask-empty-in-some-rows", "the mask of some responses is empty", "some responses have no trained token",
        "Print the masks of such rows as they are built, and what the row shares with the others: rank, turns, last token.",
        "They cost a rollout, count in the baseline of their group, and are not trained on. So do those that a filter takes out.",
    ),
    (
        "mask-never-set", "the mask is never set", "no response has a trained token at any step",
        "Check that masks of tools, completion and loss are combined once, and with the right shapes.",
        "A mask of zeros gives a loss of 0 (or 0/0), and no gradient.",
    ),
    (
        "all-filtered-by-length", "every response of a step is filtered as cut, aborted or rejected",
        "no response of some steps is left, and each was cut, aborted or rejected",
        "Raise the length limit, or keep responses that were cut, until some end.",
        "Overlong filtering does what it says; when nothing ends in time, nothing is trained.",
    ),
    (
        "correction-rejects", "rollout correction rejects most of the responses", "most responses were rejected as a whole",
        "Find out why engine and trainer differ; rejecting only hides it.",
        "Sequence-level rejection grows with length. The cause is the mismatch, or its threshold.",
    ),
):  # fmt: skip
    cause(
        _name, _label, explains=("empty-mask",),
        leads_to=("reward-flatline", "grad-vanished", "grad-zero", "logged-metric-mismatch", "zero-variance-groups"),
        signs=(found("empty-mask", _words, suspect=_name), EMPTY_BY_RANK, EMPTY_BY_SOURCE),
        advice=(_advice,), source="masks combined over truncation, tools and rejection can leave nothing", doc=_doc,
    )  # fmt: skip

cause(
    "observations-rewarded",
    "penalties at observed tokens are summed into the returns of the actions before them",
    explains=("observations-in-returns",),
    leads_to=("advantage-mismatch", "reward-drift", "reward-flatline", "length-explosion"),
    signs=(
        found("observations-in-returns", "returns change over what the policy did not write"),
        measured(
            "masked.rewarded_frac", over(0.5), "observed tokens have rewards of their own",
            "{}% of them have a reward", role="typical", scale=100,
        ),
    ),
    advice=("Multiply token rewards by the mask before returns are summed, not after.",),
    source="public trainer issue: REINFORCE++ returns drift with the length of tool outputs",
    doc="""An action before a long tool output looks worse than one before a short output.""",
)  # fmt: skip

cause(
    "kl-over-observations",
    "the KL term covers tokens that the policy did not write",
    explains=("observations-in-kl", "logged-metric-mismatch"),
    leads_to=("kl-spike", "kl-runaway", "kl-reversed", "logged-metric-mismatch"),
    signs=(
        found("observations-in-kl", "the logged KL is that of all tokens"),
        measured("masked.kl_k1", under(0.0), "it is negative there", "the mean log-ratio there is {} nat", role="typical"),
    ),
    advice=(
        "Mask the KL term with the mask of the policy loss, before it is summed and in its denominator.",
        "Then compare the logged KL with the one that is recomputed.",
    ),
    source="public agent-training issue: retrieved text in the KL",
    doc="""Sampling settings make KL slightly negative too, but there the trained tokens themselves are.""",
)  # fmt: skip


cause(
    "last-index-ignores-left-padding",
    "the last token of a response is looked up without the padding to the left",
    explains=("outcome-off-last-token",),
    leads_to=("value-not-learning", "reward-flatline", "advantage-mismatch", "advantage-outside-mask"),
    signs=(
        found(
            "outcome-off-last-token", "the reward is off by the padding to the left", suspect="last-index-ignores-left-padding",
        ),
        measured(
            "mask.reward_off_unpadded_frac", under(0.02), "rows without padding to the left are right",
            "{}% of the rows without padding to the left are off", role="typical", scale=100,
        ),
    ),
    advice=("Take the last index from the positions of the mask (the largest position with mask 1), not from its sum.",),
    source="public fix: the last index was mask.sum() - 1",
    doc="""The sum of a mask is the last index plus one only where padding stands to the right.""",
)  # fmt: skip

cause(
    "outcome-reward-misplaced",
    "the outcome's reward stands at another token than the last",
    explains=("outcome-off-last-token",),
    leads_to=("value-not-learning", "reward-flatline", "advantage-mismatch"),
    signs=(
        found("outcome-off-last-token", "the reward is not at the last trained token"),
        measured(
            "mask.reward_off_padded_frac", between(0.02, 1.0), "rows with padding to the left are off",
            "{}% of the rows with padding to the left are off", role="typical", scale=100,
        ),
    ),
    advice=("Print token_reward and mask of a row around the end of the response.",),
    source="an outcome reward stands at the last token of the response",
    doc="""Tokens behind it get no credit.""",
)  # fmt: skip
