"""Rewards that are missing for a part of the prompts: a data source, or all groups of a rank but the first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Hit
from rl_doctor.rules.reading import lacking
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.spans import Breach, pooled
from rl_doctor.rules.stretch import joined, stretch
from rl_doctor.rules.view import View

_MEAN, _STD, _PLACE = "reward.mean_by.source.", "reward.std_by.source.", "reward.mean_by.place."
_RECENT: Final = 10
"""Steps before a stretch that tell how many responses a step of the source has."""


@rule(
    "RLD415", "source-without-signal",
    severity="error", since="0.2.0",
    optional=(_MEAN, _STD, "reward.min", "reward.max"),
    limits={"equal": 1e-6, "steps": 4, "rows": 32, "certain": 256, "varied": 0.5, "chance": 1e-4},
    cause="The scorer of this data source returns a constant: an exception that is swallowed, answers in another form, a missing "
    "key. Prompts that nobody solves look the same.",
    advice=(
        "Score a few stored responses of this source by hand, and run its scorer alone, with exceptions let through.",
        "Check that the scorer is chosen by the name of the source that the rows carry.",
        "If the rewards are right, the source is too hard (or solved): leave it out, or give partial credit.",
    ),
    avoids=("A source with a few responses.", "A single source: rule reward-flatline.", "A solved source: info."),
    source="Public issue threads: a verifier that needs the main thread fails elsewhere, and its exception counts as 0",
)  # fmt: skip
def source_without_signal(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """All responses to the prompts of one data source get the same reward, while those of others do not.

    The mean over all sources hides it, and the part of the batch that belongs to the source teaches nothing.

    A source counts whose rewards are equal within `equal` at a stretch of at least `steps` steps with `rows` responses (all
    of a run of 2 or 3 steps with twice as many), up to its last step, while some other source varies. It is a warning if its
    rewards varied before, at `varied` of the steps (counted with one more of either kind), and so many equal responses are
    less likely than `chance` by that; or if it never varied over `certain` responses. Else it is info. Limits: a verifier that
    fails and a source that is too hard give the same rewards; responses have to be read.
    """
    means, spreads = view.named(_MEAN), view.named(_STD)
    if not means:
        yield lacking(view, _MEAN)
        return
    flat = {name.removeprefix(_STD): _flat(series, means, limits) for name, series in spreads.items()}
    if len(flat) < 2 or all(found is not None and found[0].marked.all() for found in flat.values()):
        return
    top = view.get("reward.max")
    for name, found in flat.items():
        if found is not None:
            yield _told(name, *found, top, limits)


def _flat(spread: Series, means: Mapping[str, Series], limits: Limits) -> tuple[Breach, float] | None:
    """The stretch over which the rewards of a source are one value, and that value."""
    found = joined(spread, means.get(_MEAN + spread.metric.removeprefix(_STD)))
    if found is None:
        return None
    spread, mean = found
    last = float(mean.values[-1])
    marked = (spread.values <= limits["equal"] * max(abs(last), 1.0)) & (np.abs(mean.values - last) <= 1e-9 * max(abs(last), 1.0))
    told = stretch(spread, marked, limits["equal"], steps=int(limits["steps"]), items=int(limits["rows"]))
    return None if told is None or told.last != int(spread.steps[-1]) else (told, last)


def _told(name: str, found: Breach, level: float, top: Series | None, limits: Limits) -> Hit:
    before = found.series.steps < found.first
    varied = (float(np.sum(found.series.values[before] > 0.0)) + 1.0) / (np.count_nonzero(before) + 2.0) if before.any() else 0.0
    solved = top is not None and level > 0.0 and level >= float(top.values.max()) - 1e-9
    # A step of few responses varies less often.
    usual = float(np.median(found.series.counts[before][-_RECENT:])) if before.any() else 0.0
    broke = varied >= limits["varied"] and (1.0 - varied) ** (found.n / usual) < limits["chance"]
    certain = broke or (found.n >= limits["certain"] and not before.any())
    since = " after they had varied" if broke else ""
    return Hit(
        f"All {found.n} responses to prompts of {name} get {level:g}, {found.when}{since}, while other sources vary",
        "info" if solved or not certain else "warning",
        (found.evidence(where={"source": name}),),
        cause="Every prompt of this source is solved: nothing is left to learn from it." if solved else None,
        ruled_out=("prompts that are too hard: they were solved before",) if broke and not solved else (),
        suspect="source-solved" if solved else "verifier-of-source-fails" if broke else "source-scores-nothing",
    )


@rule(
    "RLD416", "only-first-prompt-rewarded",
    severity="error", since="0.2.0",
    optional=(_PLACE, "reward.min"),
    limits={"steps": 4, "chance": 1e-6, "equal": 1e-9},
    cause="The answers that responses are scored against are not those of their prompts: the solution of the first prompt is "
    "repeated for all prompts of a rank.",
    advice=(
        "Print prompt, response and solution of the second group of a rank as the reward function gets them.",
        "Repeat solutions exactly as prompts are repeated: each once per sample, in the same order.",
        "Join prompts and solutions by an identity, never by position.",
    ),
    avoids=("A rank with one group.", "A few steps at which only the first group has a success."),
    source="Public issue threads: a double repeat hands the solution of the first prompt to all prompts of the rank",
)  # fmt: skip
def only_first_prompt_rewarded(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """Only the first group of every rank ever earns a reward.

    The groups of a rank are prompts drawn at random: none of them can be better than the others by its place.

    By the place of the group in its rank, the mean reward is held against the smallest of the run. It fires if, over a stretch
    of at least `steps` steps, the first place earns more (by over `equal`) and no other place does, and that is less
    likely than `chance` if all places were alike.
    """
    places = [view.get(f"{_PLACE}{index}") for index in range(8)]
    floor = view.get("reward.min")
    if places[0] is None or floor is None:
        yield lacking(view, _PLACE)
        return
    others = [place for place in places[1:] if place is not None]
    if not others:
        yield Skip("data", "every rank has one group: places cannot be told apart")
        return
    least = float(floor.values.min())
    first = places[0]
    earns = first.values > least + limits["equal"]
    silent = np.ones(len(first), np.bool_)
    cells = np.zeros(len(first))
    for other in others:
        here = np.isin(first.steps, other.steps)
        silent[here] &= other.values[np.isin(other.steps, first.steps)] <= least + limits["equal"]
        cells[here] += 1.0
    found = stretch(first, earns & silent & (cells > 0), least, steps=int(limits["steps"]), items=1)
    if found is None:
        return
    inside = (first.steps >= found.first) & (first.steps <= found.last)
    share = min(float(np.mean(earns[inside])), 0.9)
    if math.log1p(-share) * float(cells[inside].sum()) > math.log(limits["chance"]) or not silent[inside].all():
        return
    yield Hit(
        f"The first group of every rank earns {pooled(first, inside):.3g} on average, and no other group ever more than "
        f"{least:g}, {found.when}",
        "error",
        (found.evidence(where={"place": 0}),),
        ruled_out=("prompts that are too hard: which prompt comes first is chance",),
        suspect="solutions-of-the-first-prompt",
    )
