"""Which session of a run each step was recorded in, and how the run was described then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.registry import Metric
from rl_doctor.analyzer.series import Series
from rl_doctor.errors import InputError
from rl_doctor.frozen import frozen
from rl_doctor.schema import RunConfig, RunInfo
from rl_doctor.store.info import info_from_json

Steps = NDArray[np.int64]


@frozen(eq=False)
class Sessions:
    """The sessions of a run.

    Attributes:
        info: the run's description, which is that of the newest session.
        steps: int64 ``[n]``, recorded steps in increasing order.
        numbers: int64 ``[n]``, the session that the rows of each come from.
        infos: the run's description in each session that differs from ``info``; None where it is not known.
    """

    info: RunInfo = RunInfo()
    steps: Steps = field(default_factory=lambda: np.empty(0, np.int64))
    numbers: Steps = field(default_factory=lambda: np.empty(0, np.int64))
    infos: Mapping[int, RunInfo | None] = field(default_factory=dict)

    @classmethod
    def of(cls, info: RunInfo, recorded: Mapping[int, int] | None = None) -> Sessions:
        """From the run's description, and the session that each step was recorded in as far as that is known."""
        steps = np.array(sorted(recorded or ()), np.int64)
        numbers = np.array([(recorded or {})[step] for step in steps.tolist()], np.int64)
        infos: dict[int, RunInfo | None] = {}
        config: RunConfig | None = info.config
        for at, entry in enumerate(reversed(info.sessions)):
            if "config" in entry:
                config = _config(entry["config"])
            size, number = entry.get("world_size"), entry.get("session")
            if at == 0 and size is None:  # the newest session is what the run's description is of
                size = info.world_size
            if not isinstance(number, int) or (size == info.world_size and config is info.config):
                continue
            known = config is not None and (size == info.world_size or (isinstance(size, int) and size > 0))
            infos[number] = _described(info, size, config) if known and config is not None else None
        return cls(info, steps, numbers, infos)

    def described(self) -> Iterator[tuple[RunInfo | None, Steps]]:
        """Descriptions that differ from ``info``, each with the steps that were recorded so."""
        for number in np.unique(self.numbers).tolist():
            if number in self.infos:
                yield self.infos[number], self.steps[self.numbers == number]

    def ranks_at(self, steps: Steps) -> NDArray[np.float64]:
        """World size at each of ``steps`` ``[n]``, NaN where it is not known."""
        own = np.nan if self.info.world_size is None else float(self.info.world_size)
        found = np.full(len(steps), own)
        for info, at in self.described():
            found[np.isin(steps, at)] = np.nan if info is None or info.world_size is None else info.world_size
        return found

    def resumed_after(self) -> Steps:
        """The last step before each session that follows an earlier one: trainers begin to average anew there."""
        begins = np.flatnonzero(np.diff(self.numbers) > 0) + 1
        return self.steps[begins] - 1

    def mixed(self, starts: Steps, ends: Steps) -> NDArray[np.bool_]:
        """Whether the steps after ``starts[i]`` up to ``ends[i]`` come from several sessions, ``[n]``."""
        changes = np.concatenate([[0], np.cumsum(np.diff(self.numbers) != 0)]) if len(self.numbers) else np.zeros(1, np.int64)
        first = np.searchsorted(self.steps, starts, side="right")
        last = np.searchsorted(self.steps, ends, side="right") - 1
        inside = last > first
        top = len(changes) - 1
        return np.asarray(inside & (changes[np.minimum(first, top)] != changes[np.clip(last, 0, top)]))


def _config(document: Any) -> RunConfig | None:
    """The configuration of a session; None where it cannot be read."""
    try:
        return info_from_json({"config": document}, "sessions").config
    except InputError:
        return None


def _described(info: RunInfo, size: int | None, config: RunConfig) -> RunInfo:
    """The description with another number of ranks, all of which write if all of the newest session's do."""
    if size is None or size == info.world_size:
        return replace(info, config=config)
    whole = info.writing_ranks is not None and not info.partial
    ranks = tuple(range(size)) if whole else info.writing_ranks
    return replace(info, world_size=size, writing_ranks=ranks, config=config)


@frozen(eq=False)
class Other:
    """Metrics that stand for those of the run at the steps of sessions with other settings.

    Attributes:
        settings: what differs.
        steps: int64 ``[n]``, these steps.
        metrics: metrics for the engine's pass, by the name of the one that each stands for.
    """

    settings: object
    steps: Steps
    metrics: Mapping[str, Metric]


def others_of(
    sessions: Sessions, settings_of: Callable[[RunInfo], object] | None, metrics_of: Callable[[RunInfo], Iterable[Metric]]
) -> tuple[tuple[Other, ...], Steps | None]:
    """What has to be folded beside, and the steps of which the settings are known (None for all).

    Args:
        sessions: the run's sessions.
        settings_of: what of a description the metrics depend on; None where they depend on nothing that a session changes.
        metrics_of: the metrics as they are by a description.
    """
    if settings_of is None or not sessions.infos:
        return (), None
    judged = sessions.steps
    own = settings_of(sessions.info)
    found: list[Other] = []
    for info, steps in sessions.described():
        if info is None:
            judged = np.setdiff1d(judged, steps)
            continue
        settings = settings_of(info)
        if settings == own:
            continue
        same = next((at for at, other in enumerate(found) if other.settings == settings), None)
        if same is not None:
            found[same] = replace(found[same], steps=np.union1d(found[same].steps, steps))
            continue
        mark = f" @{len(found)}"
        found.append(Other(settings, steps, {one.name: replace(one, name=one.name + mark) for one in metrics_of(info)}))
    return tuple(found), judged


def with_others(series: Mapping[str, Series], others: Sequence[Other]) -> Mapping[str, Series]:
    """The series of the run's metrics, with the values of those that stand for them at the steps of other sessions."""
    found = dict(series)
    for other in others:
        for name, stand_in in other.metrics.items():
            if name in found and stand_in.name in found:
                found[name] = _at_steps(found[name], found[stand_in.name], other.steps)
    return found


def _at_steps(own: Series, other: Series, steps: Steps) -> Series:
    """``own`` with the values of ``other`` at ``steps``; both have the same steps, as they read the same rows."""
    values = np.where(np.isin(own.steps, steps), other.values, own.values)
    return replace(own, values=values)
