"""A difference between engine and trainer that is that of one rank, data source or turn."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rl_doctor.report.model import Evidence, Hit, Severity
from rl_doctor.rules.alignment import engine_bins
from rl_doctor.rules.reading import lacking
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.signature import ROLLOUT_METRICS, kinds
from rl_doctor.rules.some_rows import mismatch_in_some_rows
from rl_doctor.rules.spans import pooled
from rl_doctor.rules.standing_out import ALIKE, APART, FAR, REST, SIGMAS, SIZE, STANDING, TIMES, TOKENS, UNLIKE, standing_out
from rl_doctor.rules.view import View

_WORDS: Final = {"rank": "rank", "microbatch": "place in the micro-batch", "source": "data source", "turn": "turn"}


@rule(
    "RLD115",
    "mismatch-by-part",
    severity="error",
    needs=("mismatch.abs",),
    optional=(*ROLLOUT_METRICS, *STANDING, "stale.max", "mismatch.zero_fill_frac"),
    limits={
        "times": TIMES, "apart": APART, "size": SIZE, "far": FAR, "sigmas": SIGMAS, "tokens": TOKENS, "rest": REST,
        "zeros": 0.001, "error": 0.1,
    },
    cause="One part of the batch is sampled or scored otherwise than the rest: by an engine with settings or weights of its own.",
    advice=(
        "Compare sampling settings, weights and versions of the engine that serves this part with those of the others.",
        "Score one prompt with both engines: their logprobs must agree.",
    ),
    avoids=(
        "data sources and turns whose tokens are merely less certain: they must stand out more than ranks",
        "rows whose samples are older than others, where versions are recorded",
        "differences of all parts alike",
    ),
    source="a mean over the batch hides a part; public trainer issues on single ranks",
    since="0.2.0",
)  # fmt: skip
def mismatch_by_part(view: View, limits: Limits) -> Iterable[Hit | Skip]:
    """Engine and trainer differ on one rank (or place in the micro-batch, data source, turn) and agree on the others.

    Over the whole batch the difference is diluted and looks like noise. The part's gradient and importance weights are wrong all
    the same, and its samples come from another distribution.

    The mean |d|, d = trainer - rollout, of each part is held against that of all others, step by step. Ranks and places in a
    micro-batch hold the same kind of tokens: ``times`` the others and ``size`` nat are enough. Data sources and turns differ in
    how certain their tokens are, and the difference with it: ``apart`` times and ``far`` nat. The logarithm of the ratio must
    be ``sigmas`` standard errors above 0 over the steps (where there are fewer than four: above twice the limit at each), the
    part must hold ``tokens`` tokens and at most ``rest`` of all.

    From ``error`` nat on it is an error. It is silent where the difference has a shape of its own in most rows, is large over the
    whole batch or in some rows, which other rules tell with where it sits, where samples are of several versions, and where more
    than ``zeros`` of the engine's logprobs were filled with 0.

    Limits: parts that are always on one rank cannot be told from the rank.
    """
    found = engine_bins(view)
    if isinstance(found, Skip):
        yield found
        return
    if not any(view.named(prefix) for prefix in STANDING):
        yield lacking(view, *STANDING)
        return
    lag, zeros = view.get("stale.max"), view.get("mismatch.zero_fill_frac")
    if (lag is not None and lag.values.max() > 0) or (zeros is not None and pooled(zeros) > limits["zeros"]):
        return
    sort = kinds(found, view.config.top_p)
    if sort.shaped.mean() > 0.5 or (sort.broken | sort.raised).mean() > 0.2 or _rows_tell(view):
        return
    for by in (*ALIKE, *UNLIKE):
        part = standing_out(view, by)
        if part is not None:
            times = TIMES if by in ALIKE else APART
            first, last = int(part.series.steps[0]), int(part.series.steps[-1])
            message = (
                f"mean |trainer - rollout| is {part.inside:.3f} nat on {_WORDS[by]} {part.name} and {part.outside:.3f} on the "
                f"others, at steps {first} to {last}"
            )
            proof = Evidence(
                part.series.metric, first, last, part.inside, part.outside, times * part.outside, "nat", part.tokens,
                {by: part.name},
            )  # fmt: skip
            ruled_out = ("noise of one size in all rows: the others agree", "stale weights of all engines: the others agree")
            severity: Severity = "error" if part.inside > limits["error"] else "warning"
            yield Hit(message, severity, (proof,), None, ruled_out, suspect="part-apart")
            return


def _rows_tell(view: View) -> bool:
    """Whether mismatch-in-some-rows finds the difference row by row."""
    if any(view.get(name) is None for name in mismatch_in_some_rows.needs):
        return False
    return any(isinstance(hit, Hit) for hit in mismatch_in_some_rows.check(view, mismatch_in_some_rows.limits))
