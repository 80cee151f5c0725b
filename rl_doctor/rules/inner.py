"""Engine and trainer that part in the midst of a response."""

from __future__ import annotations

from collections.abc import Iterable

from rl_doctor.report.model import Hit
from rl_doctor.rules.alignment import ALIGNMENT, shift_of
from rl_doctor.rules.reading import lacking
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.signature import ROLLOUT, unrelated_rows
from rl_doctor.rules.spans import above, at, pooled
from rl_doctor.rules.view import View


@rule(
    "RLD021",
    "mismatch-within-response",
    severity="error",
    optional=(
        "inner.parted_frac",
        "inner.start_mean",
        "inner.abs",
        "inner.rows",
        "mismatch.shifted_frac",
        "mismatch.lag_corr",
        "mismatch.rows_off_frac",
        "mismatch.off_corr",
    ),
    limits={"share": 0.002, "rows": 3, "most": 0.05},
    cause="From some token on the trainer scores other tokens than the engine sampled, or reads them in another context.",
    advice=(
        "Train on the ids that were sampled (token in, token out); do not decode to text and tokenise again.",
        "Compare the sampled ids with those that were trained, around the first token at which the two part.",
        "Check turn by turn that the ids so far are a prefix of the ids of the next request.",
    ),
    avoids=(
        "rows whose logprobs agree when they are moved by some positions: misaligned logprobs have a rule of their own",
        "weights that change during a response: the logprobs stay related there",
        "single improbable tokens",
    ),
    source="public issues and posts on text that is tokenised again: logprobs agree up to the first token that differs",
    since="0.2.0",
)
def mismatch_within_response(view: View, limits: Limits) -> Iterable[Hit | Skip]:
    """Within a response the engine's and the trainer's logprobs agree up to some token and are unrelated after it.

    What was sampled and what is trained are then not the same tokens. The ratios behind that point are noise, and importance
    weights throw the rest of the row away.

    Let d be the size of trainer - rollout. Rows of 24 tokens or more whose mean d is above .1 nat are looked at token by token:
    the stretch with the largest sum of d - .25 must hold eight tokens or more, with a mean above .4, eight or more must come
    before it, the mean outside be below .1, and the two logprobs inside it correlate by less than .5. More than ``share`` of the
    rows, and at least ``rows`` of them, are a warning, more than ``most`` an error. Where twice as many rows are unrelated as a
    whole, these are told: mismatch-in-some-rows.

    Limits: which of the two sides is wrong, only the ids tell.
    """
    series = view.get("inner.parted_frac")
    if series is None:
        yield lacking(view, "inner.parted_frac")
        return
    if shift_of(view, ROLLOUT, ALIGNMENT) is not None:
        return
    found = above(series, 0.0)
    if found is None or found.items < limits["rows"] or found.value < limits["share"]:
        return
    if pooled(series) < 0.5 * unrelated_rows(view):
        return  # chance, in rows that are unrelated from their first token on
    steps = series.steps[found.marked]
    start, size = at(view.get("inner.start_mean"), steps), at(view.get("inner.abs"), steps)
    where = "" if start is None else f", after {pooled(start):.0f} tokens on average"
    level = "" if size is None else f" (mean |trainer - rollout| {pooled(size):.2f} nat there)"
    message = f"In {found.items:.0f} of {found.n} responses engine and trainer part{where}{level} {found.when}"
    yield Hit(
        message, "error" if found.value > limits["most"] else "warning", (found.evidence(),), None,
        ("a shift of the whole row: the tokens before agree",), suspect="retokenised",
        samples=view.samples("inner.rows", found.first, found.last),
    )  # fmt: skip
