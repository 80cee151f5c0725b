"""Columns of the trainer's logprobs that nobody filled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rl_doctor.report.model import Hit
from rl_doctor.rules.registry import Limits, rule
from rl_doctor.rules.spans import above
from rl_doctor.rules.view import View

COLUMNS: Final = ("old_logprob", "logprob", "ref_logprob")


@rule(
    "RLD116", "unfilled-logprob",
    severity="error", since="0.2.0",
    optional=tuple(f"data.{name}_unfilled_frac" for name in COLUMNS),
    limits={"rows": 3, "share": 0.01, "whole": 0.99},
    cause="An array of logprobs was made with zeros, and nobody wrote to it.",
    advice=(
        ("Find the pass that should have filled the column, and whether it ran for these rows: a branch that was skipped, a name "
        "that is spelled otherwise, a buffer that was allocated anew."),
        "Start such buffers with NaN: what is missing then shows at once.",
    ),
    avoids=(
        "Policies that are certain of whole rows: another logprob must be below -1 at a token of each.",
        "A copy of what the engine returned: missing-rollout-logprob tells.",
    ),
    source="An array that nobody wrote to is 0, and a logprob of 0 is probability 1",
)  # fmt: skip
def logprob_never_filled(view: View, limits: Limits) -> Iterable[Hit]:
    """A logprob of the trainer is exactly 0 over whole rows, though another one says that their tokens were not certain.

    0 is a legal logprob, that of a certain token. As a placeholder it makes the policy that it belongs to certain of all that
    was sampled: ratios are probabilities, the KL is the mean of -logprob, and both look like a policy that has run away.

    Counted are rows whose logprob (old_logprob, ref_logprob) is exactly 0 at every trained token, while another logprob of the
    same tokens is below -1 at one at least. At `rows` of them and `share` of the rows of these steps it is an error;
    for ref_logprob it is info where kl_coef is 0, so that nothing reads it. Below
    `whole` the finding says in how many rows.

    Limits: zeros in a part of a row are not told from certain tokens. Where no other logprob is recorded, or all of them are
    0, nothing is said.
    """
    for name in COLUMNS:
        found = above(view.get(f"data.{name}_unfilled_frac"), limits["share"])
        if found is None or found.items < limits["rows"] - 0.5:
            continue
        told = f"{name} was never filled: it is exactly 0 {found.when}."
        if found.value < limits["whole"]:
            told = f"{name} was not filled in {found.value:.0%} of the rows: it is exactly 0 there, {found.when}."
        yield Hit(
            f"{name} is exactly 0 at every trained token of {found.items:.0f} of {found.n} rows {found.when}, though another "
            "logprob of these tokens is below -1",
            "info" if name == "ref_logprob" and view.config.kl_coef == 0.0 else "error",
            (found.evidence(),),
            told,
            ("tokens that are certain: another logprob of the same row is below -1",),
            suspect="logprob-never-filled",
        )
