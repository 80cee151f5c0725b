"""Advantages of a critic that do not belong to the returns, values and rewards beside them, and KL penalties of another size."""

from __future__ import annotations

from typing import Final

from rl_doctor.causes.registry import cause
from rl_doctor.causes.signs import found, measured, over, under

_FOLLOWS: Final = (
    "value-not-learning", "reward-drift", "reward-flatline", "sudden-collapse", "advantage-reversed", "entropy-collapse",
    "grad-norm-spike",
)  # fmt: skip
_HELD: Final = ("kl-runaway", "kl-penalty-dominates", "kl-spike", "kl-reversed", "reward-flatline", "entropy-explosion",
                "entropy-collapse", "sudden-collapse", "reward-drift")  # fmt: skip
_EXACT: Final = 0.01
_ADVANTAGES_FIT = measured(
    "advantage.gae_residual", under(_EXACT), "GAE from token_reward and old_value gives the advantages",
    "GAE leaves {}% of the size of the advantages over", role="typical", scale=100.0,
)  # fmt: skip
_RETURNS_FIT = measured(
    "return.gae_residual", under(_EXACT), "GAE from token_reward and old_value gives the returns",
    "GAE leaves {}% of the size of return - old_value over", role="typical", scale=100.0,
)  # fmt: skip
_RETURNS_OFF = measured(
    "return.gae_residual", over(_EXACT), "GAE from token_reward and old_value does not give the returns",
    "GAE leaves {}% of the size of return - old_value over", role="typical", scale=100.0,
)  # fmt: skip
_ADVANTAGES_OFF = measured(
    "advantage.gae_residual", over(_EXACT), "GAE from token_reward and old_value does not give the advantages",
    "GAE leaves {}% of the size of the advantages over", role="typical", scale=100.0,
)  # fmt: skip

cause(
    "returns-shifted", "the returns stand at the neighbouring tokens",
    explains=("gae-mismatch",), leads_to=_FOLLOWS,
    signs=(
        found("gae-mismatch", "one token further, returns agree with advantages and values", suspect="returns-shifted"),
        _ADVANTAGES_FIT, _RETURNS_OFF,
    ),
    advice=("Slice returns and values alike: the value before a token belongs to the return from that token on.",),
    source="Reproduced by shifting the returns by one token",
    doc="""The advantages are right, and so is what the policy learns from them; the critic is taught the return of the
    neighbour. It is told by the offset at which return - old_value gives the advantages.""",
)  # fmt: skip
cause(
    "token-advantages-shifted", "the advantages stand at the neighbouring tokens",
    explains=("gae-mismatch",), leads_to=_FOLLOWS,
    signs=(
        found("gae-mismatch", "one token further, advantages agree with returns and values", suspect="token-advantages-shifted"),
        _RETURNS_FIT, _ADVANTAGES_OFF,
    ),
    advice=("Slice advantages as the logprobs of the tokens that they are for.",),
    source="Reproduced by shifting the advantages by one token",
    doc="""Returns and values are right; each token is credited with what its neighbour did.""",
)  # fmt: skip
cause(
    "token-advantages-of-other-rows", "the advantages of the critic stand in other rows than its returns and values",
    explains=("gae-mismatch",), leads_to=_FOLLOWS,
    signs=(
        found("gae-mismatch", "the right advantages occur, in other rows", suspect="token-advantages-of-other-rows"),
        _RETURNS_FIT, _ADVANTAGES_OFF,
    ),
    advice=("Find the step that orders rows between advantage and update, and move all columns in it.",),
    source="Public issue threads on rows that are balanced or shuffled after advantages were computed",
    doc="""Sorted over the batch, advantages and return - old_value of the first tokens are the same numbers; row by row they
    have nothing in common.""",
)  # fmt: skip
cause(
    "token-advantages-unknown", "the advantages do not follow from the critic's returns and values, in any row or at any offset",
    explains=("gae-mismatch",), leads_to=_FOLLOWS,
    signs=(
        found("gae-mismatch", "returns are right and advantages are not", suspect="token-advantages-unknown"),
        _RETURNS_FIT, _ADVANTAGES_OFF,
    ),
    advice=("Compute the advantages of one row from return - old_value, and follow them through every normalisation.",),
    source="What is left where neither sign, offset nor order of rows gives them",
    doc="""The sign, neighbouring tokens, and the same numbers in other rows have been tried.""",
)  # fmt: skip
cause(
    "returns-of-another-kind", "the returns are another quantity than advantage plus value",
    explains=("gae-mismatch",), leads_to=_FOLLOWS,
    signs=(
        found("gae-mismatch", "advantages are right and returns are not theirs", suspect="returns-of-another-kind"),
        _ADVANTAGES_FIT, _RETURNS_OFF,
    ),
    advice=("If returns are normalised on purpose, ignore the rule with that reason; else look at their rows and tokens.",),
    source="What is left where the advantages are right",
    doc="""Returns that are normalised for the critic are of this kind, and so are returns of other rows.""",
)  # fmt: skip
cause(
    "gae-settings-differ", "gamma or lambda is another than is configured",
    explains=("gae-mismatch",),
    signs=(
        found("gae-mismatch", "the recursion of GAE holds with other constants", suspect="gae-settings-differ"),
        _ADVANTAGES_FIT,
    ),
    advice=(
        "Look for an option that does not reach the place where advantages are computed, or a default that wins over it.",
        "If the configuration is recorded wrongly, correct that: the training is as it was meant.",
    ),
    source="Least squares over the recursion; public issue threads on options that are not forwarded",
    doc="""The numbers themselves say which constants were used, to four digits. With another lambda advantages have another
    variance and bias; with another gamma tokens far from the reward get less of it.""",
)  # fmt: skip
cause(
    "kl-coefficient-not-configured", "the KL penalty in the reward has another coefficient than is configured",
    explains=("kl-coefficient-differs",), leads_to=_HELD,
    signs=(found("kl-coefficient-differs", "the penalty has another coefficient", suspect="kl-coefficient-not-configured"),),
    advice=(
        "Divide token_reward of a token in the middle of a response by its log-ratio to the reference: that is the coefficient.",
        "Look for a second multiplication, a setting of another name, or a default that wins over what was set.",
    ),
    source="Reproduced by multiplying the coefficient",
    doc="""The penalty is there, with the estimator that is meant, and its size is not the configured one. A coefficient that is
    adapted moves; this one does not.""",
)  # fmt: skip
cause(
    "kl-paid-for", "the KL penalty in the reward has the wrong sign: leaving the reference is paid for",
    explains=("kl-coefficient-differs",), leads_to=_HELD,
    signs=(found("kl-coefficient-differs", "the reward rises with the log-ratio to the reference", suspect="kl-paid-for"),),
    advice=("The reward of a token is minus the coefficient times logprob - ref_logprob: look for a sign that is turned.",),
    source="Reproduced by turning the sign of the penalty",
    doc="""The reward grows with the distance from the reference, and the policy learns to go there.""",
)  # fmt: skip
