"""Synchronisations of the engine's weights that did not take place, or not on one rank, until one did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.frozen import frozen
from rl_doctor.report.model import Evidence, Hit
from rl_doctor.rules.behind import Climb, climbs_of_gap, climbs_of_lag
from rl_doctor.rules.reading import lacking
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.signature import unrelated_rows
from rl_doctor.rules.spans import at, pooled
from rl_doctor.rules.view import View

_GAP: Final = "mismatch.abs"
_LAG: Final = "stale.mean"
_GAP_BY_RANK: Final = "mismatch.abs_by.rank."
_SURPRISE: Final = "mismatch.rollout_mean"
_PASSES: Final = "mismatch.first_abs"


@frozen
class _Found:
    """A climb of a series, and the rank that it is of, or ""."""

    series: Series
    climb: Climb
    rank: str = ""

    @property
    def span(self) -> tuple[int, int]:
        return int(self.series.steps[self.climb.first]), int(self.series.steps[self.climb.last])


@rule(
    "RLD124", "missed-synchronisation",
    severity="error", since="0.2.0",
    optional=(_GAP, _LAG, _GAP_BY_RANK, _SURPRISE, _PASSES, "mismatch.rows_off_frac", "mismatch.off_corr"),
    limits={"surprise": 0.7, "passes": 0.5},
    cause="The engine's weights stayed where they were for some steps: synchronisations failed, or were left out.",
    advice=(
        "Read the engine's log at these steps: a transfer that timed out, a worker that restarted, a lock that was held.",
        "Raise an error where a synchronisation does not return, and hold the engine's version against the trainer's.",
        "Weight these samples for their age, or leave them out: they are as old as the climb is long.",
    ),
    avoids=(
        "asynchronous training: lags that come and go, and were as long before",
        "a gap that is larger from one step to the next: other settings, numerics or broken weights",
        "a gap that grows since the tokens become less likely",
        "an old_logprob that falls behind, before any update: stale-old-logprob",
    ),
    source="Reproduced with an engine that keeps its weights for some steps",
)  # fmt: skip
def missed_synchronisation(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """For some steps the engine sampled with the same weights, while the trainer went on.

    The samples of these steps are older by one version at each. Where old_logprob is computed by the trainer, ratios and clipping
    do not show it, and once the engine has caught up nothing does.

    Two things tell. The mean |trainer - rollout| leaves its level, grows step by step for three steps or more to 1.4 times it
    and nine times its scatter, and falls back from one step to the next, or the run ends there. Or the recorded versions grow
    older by one at each step, to more than two beyond whatever they were before. Where all rows together do not show it, each
    rank is held against the others, which tell what is a trend of the run.

    Limits: a climb must stand out of the gap's own scatter, so that updates must move the policy. It takes eight steps before.
    It is silent where the mean rollout logprob falls to less than what `surprise` of it was, and where logprob and old_logprob
    are `passes` of the gap apart before any update: the trainer's old_logprob is behind then. Gaps say nothing where engine and
    trainer are unrelated in some rows.
    """
    if view.get(_GAP) is None and view.get(_LAG) is None:
        yield lacking(view, _GAP, _LAG)
        return
    lags = [_Found(series, climb) for series in _one(view, _LAG) for climb in climbs_of_lag(series)]
    gaps = [_Found(series, climb) for series in _one(view, _GAP) for climb in climbs_of_gap(series)]
    ranks = {name.removeprefix(_GAP_BY_RANK): series for name, series in view.named(_GAP_BY_RANK).items()}
    by_rank = [one for rank in ranks for one in _on_rank(rank, ranks)]
    told = lags or ([] if unrelated_rows(view) > 0.0 else _of_ranks(gaps, by_rank, len(ranks)))
    for found in told:
        if not _more_surprised(view, found, limits["surprise"]) and not _between_passes(view, found, limits["passes"]):
            yield _hit(view, found)


def _one(view: View, name: str) -> list[Series]:
    series = view.get(name)
    return [] if series is None else [series]


def _on_rank(rank: str, ranks: Mapping[str, Series]) -> list[_Found]:
    """Climbs of a rank: by itself, or else against the others, where one that goes on is no trend of the run."""
    own = ranks[rank]
    if climbs := climbs_of_gap(own):
        return [_Found(own, climb, rank) for climb in climbs]
    beside = _beside(own, [series for name, series in ranks.items() if name != rank])
    return [] if beside is None else [_Found(beside, climb, rank) for climb in climbs_of_gap(beside, len(beside))]


def _beside(series: Series, others: list[Series]) -> Series | None:
    """The gap of a rank where all others were measured too, less what they have in common: what they do over the run."""
    steps = series.steps
    for other in others:
        steps = np.intersect1d(steps, other.steps)
    own = at(series, steps)
    if own is None or not others:
        return None
    usual = np.median([other.values[np.isin(other.steps, steps)] for other in others], axis=0)
    return replace(own, values=own.values * float(np.median(usual)) / np.maximum(usual, np.finfo(np.float64).tiny))


def _of_ranks(gaps: list[_Found], by_rank: list[_Found], ranks: int) -> list[_Found]:
    """Climbs of all rows, or those of the ranks where only some ranks have one at these steps."""
    told = []
    for whole in gaps:
        own = [one for one in by_rank if _overlap(one, whole)]
        told += own if 0 < len({one.rank for one in own}) <= ranks // 2 else [whole]
    return told + [one for one in by_rank if not any(_overlap(one, whole) for whole in gaps)]


def _overlap(one: _Found, other: _Found) -> bool:
    return one.span[0] <= other.span[1] and other.span[0] <= one.span[1]


def _more_surprised(view: View, found: _Found, limit: float) -> bool:
    """Whether the tokens became less likely meanwhile: noise of one size in the logits is then a larger gap."""
    series = view.get(_SURPRISE)
    if series is None or found.series.metric == _LAG:
        return False
    first, last = found.span
    before = series.values[series.steps < first]
    inside = at(series, series.steps[(series.steps >= first) & (series.steps <= last)])
    return inside is not None and before.size > 0 and -pooled(inside) * limit > -float(before[-8:].mean())


def _between_passes(view: View, found: _Found, limit: float) -> bool:
    """Whether much of the gap lies between two passes of the trainer over the same weights."""
    passes = view.get(_PASSES)
    if passes is None or found.series.metric == _LAG:
        return False
    steps = found.series.steps[found.climb.first : found.climb.last + 1]
    apart, gap = at(passes, steps), at(found.series, steps)
    return apart is not None and gap is not None and pooled(apart) > limit * pooled(gap)


def _hit(view: View, found: _Found) -> Hit:
    climb, series = found.climb, found.series
    first, last = found.span
    where = {"rank": found.rank} if found.rank else None
    place = f" on rank {found.rank}" if found.rank else ""
    items = int(series.counts[climb.first : climb.last + 1].sum())
    proof = [Evidence(series.metric, first, last, climb.peak, climb.base, None, series.unit, items, where)]
    if series.metric == _LAG:
        told = f"samples get older by a version at each step, from {climb.base:.1f} to {climb.peak:.0f}"
    else:
        told = f"the mean |trainer - rollout|{place} climbs from {climb.base:.2g} to {climb.peak:.2g} nat"
        if (lag := view.get(_LAG)) is not None and (inside := at(lag, series.steps[climb.first : climb.last + 1])) is not None:
            proof.append(Evidence(_LAG, first, last, pooled(inside), None, None, inside.unit, int(inside.counts.sum())))
    told += f" at steps {first} to {last}"
    if climb.over:
        back = int(series.steps[climb.last + 1])
        told += f", and is back at step {back}"
        cause = f"The engine{place} kept its weights to step {last}: synchronisations failed, until that before step {back}."
    else:
        told += ", where the run ends"
        cause = f"The engine{place} keeps its weights since about step {first}: synchronisations fail, or are left out."
    ruled_out = ("other settings or numerics of the engine: these would come from one step to the next",)
    return Hit(told, "error", tuple(proof), cause, ruled_out, suspect="synchronisations-missed")
