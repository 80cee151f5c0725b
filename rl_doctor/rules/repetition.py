"""Responses that repeat themselves."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Hit, Severity
from rl_doctor.rules.reading import PROGRESS, TRUNCATION, evidence, first_of, lacking, progress
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.spans import pooled
from rl_doctor.rules.view import View


@rule(
    "RLD022",
    "looping-responses",
    severity="error",
    optional=("repeat.loop_frac", "repeat.loop_cut_frac", "repeat.rows", *TRUNCATION, *PROGRESS),
    limits={"share": 0.1, "many": 0.3, "most": 0.5, "responses": 24, "few": 16, "loops": 5, "sigmas": 3.0, "cut": 0.3},
    cause="The policy, or what generates for it, falls into a circle and does not come out of it.",
    advice=(
        "Read the samples named: they show whether it is text that repeats, or one token from the first position on.",
        "If it is so from the first step on, generate with the engine alone: its weights or its cache are broken.",
        "If it came later, go back to a checkpoint before; a repetition penalty only hides it.",
    ),
    avoids=("short responses", "lists and numbers that repeat a few tokens: 24 tokens must repeat at the very end"),
    source="arXiv:1904.09751; a public run whose generation looped from step 0 on with rewards, KL and gradients of 0",
    since="0.2.0",
)
def looping_responses(view: View, limits: Limits) -> Iterable[Hit | Skip]:
    """Responses end in a circle: the same few tokens again and again.

    In scalars it looks like any run whose responses are cut at the limit: full length, no reward. Only the tokens tell.

    A response of 32 tokens or more loops if its last 24 tokens or more repeat those before them with a period of 16 or less.
    Fires if in the last fifth of the run, or as far back as there are ``responses`` of them, at least ``share`` of these
    responses do (``loops`` at least), by ``sigmas`` standard errors above half of that: an error where it is above ``most`` by
    as many (``few`` responses do for that), else a warning, or info if the reward rises all the same. Where ``cut`` of all
    responses are cut for their length, it is a warning from ``many`` on whatever the reward does: loops are then why they are
    cut, and a longer limit does not help. Below, length-truncation tells, with loops as one of its causes, and this is info.
    """
    series = view.get("repeat.loop_frac")
    if series is None:
        yield lacking(view, "repeat.loop_frac")
        return
    number = int(series.counts.sum())
    if number < limits["few"]:
        yield Skip("length", f"inconclusive: {number} responses of 32 tokens or more, and {limits['few']:.0f} are needed")
        return
    share, count = at_the_end(series, limits["responses"])
    error = np.sqrt(max(share * (1.0 - share), 1.0 / max(count, 1)) / max(count, 1))
    loops = share * count
    if share < limits["share"] or loops < limits["loops"] or share - limits["sigmas"] * error < 0.5 * limits["share"]:
        return
    reward = progress(view)
    most = share - limits["sigmas"] * error >= limits["most"]
    if number < limits["responses"] and not most:
        yield Skip("length", f"inconclusive: {number} responses of 32 tokens or more, and {limits['responses']:.0f} are needed")
        return
    severity: Severity = "error" if most else "warning"
    shortened = first_of(view, *TRUNCATION)
    told = shortened is not None and at_the_end(shortened, limits["responses"])[0] >= limits["cut"]
    if not most and (share < limits["many"] if told else reward.good):
        severity = "info"
    cut = view.get("repeat.loop_cut_frac")
    begin = int(np.argmax(series.values >= 0.5 * share))
    among = "" if cut is None else f"; of those cut for their length {pooled(cut):.0%}"
    message = f"{share:.0%} of {count} long responses end in a circle, from step {series.steps[begin]} on{among}"
    found = evidence(series, begin, -1, value=share, limit=limits["share"])
    samples = view.samples("repeat.rows", int(series.steps[begin]), int(series.steps[-1]))
    yield Hit(f"{message}; {reward.words()}", severity, (found,), samples=samples)


def at_the_end(series: Series, least: float) -> tuple[float, int]:
    """Share over the last fifth of the steps, further back until there are ``least`` responses, and their number."""
    late = _late(series.counts, least)
    return pooled(series, late), int(series.counts[late].sum())


def _late(counts: NDArray[np.int64], least: float) -> NDArray[np.bool_]:
    """The last fifth of the steps, and as many before as it takes to have ``least`` responses."""
    enough = np.flatnonzero(np.cumsum(counts[::-1]) >= least)
    steps = max(len(counts) // 5, 1, int(enough[0]) + 1 if enough.size else len(counts))
    marked = np.zeros(len(counts), np.bool_)
    marked[-steps:] = True
    return marked
