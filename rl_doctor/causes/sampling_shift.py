"""Logprobs that belong to neighbouring tokens."""

from __future__ import annotations

from typing import Final

from rl_doctor.causes.registry import cause
from rl_doctor.causes.sampling_signs import CONSEQUENCES
from rl_doctor.causes.signs import found, measured, over, under

_SHIFT: Final = "logprob-misaligned"
_FOLLOWS: Final = (
    *CONSEQUENCES, "stale-old-logprob", "missing-rollout-logprob", "temperature-mismatch", "observation-in-loss",
    "mismatch-within-response", "kl-below-zero", "unfilled-logprob", "exponent-overflow", "entropy-collapse", "looping-responses",
    "length-truncation", "zero-variance-groups",
)  # fmt: skip
_SOURCE: Final = "public trainer issues; a shift keeps the mean log-ratio near 0, only the correlation at another offset shows it"
_SHARE: Final = "mismatch.shifted_frac"
_ONE: Final = "mismatch.lag_share"
_AS_COPIES: Final = measured(
    "mismatch.lag_corr", over(0.95), "at their offset the two are almost copies", "at their offset they correlate with {}",
    role="typical",
)  # fmt: skip
_BY_HAND: Final = "Compare one row by hand, token by token."

cause(
    "logprobs-shifted",
    "engine's and trainer's logprobs are shifted against each other",
    explains=(_SHIFT,),
    leads_to=_FOLLOWS,
    signs=(
        measured(_SHARE, over(0.3), "many rows are shifted", "{}% of the rows are shifted", scale=100.0),
        found(_SHIFT, "most rows agree at one other offset only", suspect="logprobs-shifted"),
        _AS_COPIES,
    ),
    advice=(
        "Check the shift between logits and labels: logits at t predict the token at t + 1.",
        "Check whether the engine's list begins with the prompt's last token, or lacks the first or the last token.",
        _BY_HAND,
    ),
    source=_SOURCE,
    doc="""Every ratio is that of two unrelated tokens: weights near 3 in the mean, clipped at random.""",
)

cause(
    "some-rows-shifted",
    "in some rows the logprobs are shifted, always by the same offset",
    explains=(_SHIFT,),
    leads_to=_FOLLOWS,
    signs=(
        measured(_SHARE, under(0.6), "most rows are in place", "{}% of the rows are shifted", scale=100.0),
        found(_SHIFT, "some rows agree at one other offset only", suspect="some-rows-shifted"),
        _AS_COPIES,
    ),
    advice=(
        "Find what these rows share: tool calls, a resumed or continued generation, a special token that was skipped, packing.",
        _BY_HAND,
    ),
    source=_SOURCE,
    doc="""The usual path is right, and another one drops or adds a token: the means over all rows hardly show it.""",
)

cause(
    "columns-cut-by-row",
    "logprobs are shifted by an offset that differs from row to row",
    explains=(_SHIFT,),
    leads_to=_FOLLOWS,
    signs=(
        found(_SHIFT, "rows agree at different offsets", suspect="columns-cut-by-row"),
        measured(_ONE, under(0.95), "the rows' offsets differ", "{}% of the shifted rows of a step share one offset",
                 scale=100.0, role="typical"),
        _AS_COPIES,
    ),
    advice=("Cut both columns by the row's own prompt length and padding, not by the batch's.", _BY_HAND),
    source=_SOURCE,
    doc="""A column was cut or padded with another row's lengths, or with the batch's: the offset follows prompt or padding.""",
)  # fmt: skip

cause(
    "trainer-passes-shifted",
    "the trainer's two passes are shifted against each other",
    explains=(_SHIFT,),
    leads_to=_FOLLOWS,
    signs=(
        found(_SHIFT, "logprob and old_logprob agree at another offset only", suspect="trainer-passes-shifted"),
        measured("mismatch.pass_shifted_frac", over(0.0), "rows of the two passes are shifted",
                 "{}% of the rows of the two passes are shifted", scale=100.0, role="typical"),
    ),
    advice=(
        "Take logprobs in both passes with the same function, shifting logits against labels once.",
        "Check that both passes see the same left padding and the same packing.",
    ),
    source=_SOURCE,
    doc="""The ratio is that of two unrelated tokens, whatever the engine does.""",
)  # fmt: skip
