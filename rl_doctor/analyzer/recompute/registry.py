"""Dialects: how each trainer arrives at the numbers it logs. A module here that declares one is found by being there."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal

from rl_doctor.analyzer.dialects.recognise import find_trainer
from rl_doctor.analyzer.dialects.registry import Version, bounds_of, dotted
from rl_doctor.analyzer.registry import Metric, Reduction
from rl_doctor.discovery import import_modules
from rl_doctor.frozen import frozen
from rl_doctor.schema import RunInfo

EPSILON32: Final = 2.0**-23
"""Spacing of float32 at 1."""
TOLERANCE: Final = 1e-6
"""Error that a float32 reduction may make, in units of the mean absolute summand."""


@frozen
class Entries:
    """What a trainer appends to the list that it averages when it logs.

    Attributes:
        total: sum of the entries; NaN where the recording is incomplete, so that nothing can be compared.
        number: number of entries; an entry that is NaN in the trainer is left out, as the trainer leaves it out.
        tolerance: sum of what rounding can change in each entry.
    """

    total: float = 0.0
    number: int = 0
    tolerance: float = 0.0

    @property
    def count(self) -> int:
        """Number of entries."""
        return self.number

    def __add__(self, other: Entries, /) -> Entries:
        return Entries(self.total + other.total, self.number + other.number, self.tolerance + other.tolerance)

    def to_row(self) -> dict[str, Any]:
        """A JSON-compatible form that loses nothing."""
        return {"total": self.total.hex(), "number": self.number, "tolerance": self.tolerance.hex()}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Entries:
        """Read what ``to_row`` wrote."""
        return cls(float.fromhex(row["total"]), row["number"], float.fromhex(row["tolerance"]))


NEWEST: Final[Mapping[str, Version]] = {"verl": (0, 9), "trl": (1, 16), "openrlhf": (0, 11)}
"""The newest version whose definitions are known, of the trainers whose definitions depend on it."""
UNKNOWN: Final = Entries(math.nan, 1)
"""An entry that the recording is too incomplete to give."""


def entry(value: float, tolerance: float = 0.0) -> Entries:
    """One entry; none where the trainer's value is NaN."""
    return Entries() if math.isnan(value) else Entries(value, 1, tolerance)


Window = Literal["mean", "per_step", "step"]


@frozen(eq=False)
class Hypothesis:
    """A way in which a trainer may arrive at another number than its definition says.

    Attributes:
        name: a few words, unique for its key.
        sentence: what the logged number then is or does; follows "the logged <key>".
        reduction: what is folded, at the same level as the key's own.
        entries: as those of the key.
    """

    name: str
    sentence: str
    reduction: Reduction
    entries: Callable[[Any], Entries]


@frozen(eq=False)
class Logged:
    """One native key of a trainer.

    Attributes:
        name: native name, as the trainer logs it.
        metric: canonical metric that it corresponds to most closely, or None.
        unit: unit of the value.
        reduction: what is folded per step or per generation batch.
        entries: State -> Entries of that step or generation batch.
        window: how the entries since the last log become one number: "mean" over entries, "per_step" their sum over the
            number of steps, "step" the mean over entries of the logged step alone.
        hypotheses: makes known ways to get it wrong, the most specific first; asked only where the logged number is another.
        instead: the same key as other versions define it, where the run's description leaves open which it was. Of all these
            the first is compared that is equal to what was logged at every step; where none is, the key is not.
        open: why else it is open what it is, such as a setting that is not known: it is then compared like one with ``instead``,
            even where it has no other meaning that can be recomputed. "" for nothing.
    """

    name: str
    metric: str | None
    unit: str
    reduction: Reduction
    entries: Callable[[Any], Entries]
    window: Window = "mean"
    hypotheses: Callable[[], tuple[Hypothesis, ...]] = tuple
    instead: tuple[Logged, ...] = ()
    open: str = ""


Keys = Callable[[RunInfo, Collection[str], Collection[str]], tuple[Logged, ...]]
"""(Run's description, its columns, names that it logged) -> what can be recomputed."""


@frozen(eq=False)
class Dialect:
    """What one trainer logs.

    Attributes:
        name: for messages, e.g. "TRL GRPO".
        applies: whether a run was written by this trainer, in a version whose definitions are known.
        logged: lists the keys that can be recomputed.
        source: where the definitions come from.
        missing_rows: how many rows a step lacks: with any, nothing is compared at it. None where the keys see to it themselves.
        settings: what of the run's description the keys depend on: a session whose number of ranks or configuration gives others
            has its steps judged by them. None where all sessions are judged by the newest one's.
        doubts: what of the run's description does not fit or says two things, a sentence each.
    """

    name: str
    applies: Callable[[RunInfo], bool]
    logged: Keys
    source: str
    missing_rows: Metric | None = None
    settings: Callable[[RunInfo], object] | None = None
    doubts: Callable[[RunInfo], Iterable[str]] = lambda _: ()


_DIALECTS: Final[dict[str, Dialect]] = {}


def dialect(
    name: str, applies: Callable[[RunInfo], bool], *, source: str, missing_rows: Metric | None = None,
    settings: Callable[[RunInfo], object] | None = None, doubts: Callable[[RunInfo], Iterable[str]] = lambda _: (),
) -> Callable[[Keys], Dialect]:  # fmt: skip
    """Decorate the function that lists what a trainer logs, and register it as a dialect."""

    def register(logged: Keys) -> Dialect:
        if name in _DIALECTS:
            raise ValueError(f"dialect {name} is registered twice")
        _DIALECTS[name] = Dialect(name, applies, logged, source, missing_rows, settings, doubts)
        return _DIALECTS[name]

    return register


def dialects() -> Mapping[str, Dialect]:
    """Every dialect by name."""
    import_modules("rl_doctor.analyzer.recompute")
    return _DIALECTS


def find_dialect(info: RunInfo) -> Dialect | None:
    """The dialect of the trainer that wrote the run, or None where it is unknown.

    It lists the keys that the trainer's own module recomputes, and those beside them that its table has recipes for. A version
    that is newer than all that are known is taken to log as the newest of them does, as long as its major number is the same.
    """
    if not info.trainer:  # what recomputes need not be loaded
        return None
    trainer, bounds = find_trainer(info.trainer), bounds_of(info.trainer_version)
    newest = None if trainer is None else NEWEST.get(trainer.name)
    if newest is not None and bounds.low is not None and bounds.low[0] > newest[0]:
        return None
    coded = next((known for known in dialects().values() if known.applies(info)), None)
    if coded is not None and newest is not None and bounds.low is not None and bounds.low[:2] > newest:
        coded = replace(coded, doubts=partial(_with_newer, coded, newest))
    if trainer is None or not any(item.definition and item.definition.recipes for item in trainer.names):
        return coded
    from rl_doctor.analyzer.recompute.configured import misfits
    from rl_doctor.analyzer.recompute.recipes import keys_of

    def logged(described: RunInfo, columns: Collection[str], names: Collection[str]) -> tuple[Logged, ...]:
        first = coded.logged(described, columns, names) if coded else ()
        taken = {item.name for item in first}
        return (*first, *(item for item in keys_of(trainer, described, names, columns) if item.name not in taken))

    def doubts(described: RunInfo) -> Iterable[str]:
        return dict.fromkeys((*(coded.doubts(described) if coded else ()), *misfits(trainer, described)))

    if coded is not None:
        return replace(coded, logged=logged, doubts=doubts)
    return Dialect(trainer.label, lambda _: True, logged, trainer.source, doubts=doubts)


def _with_newer(known: Dialect, newest: Version, info: RunInfo) -> Iterator[str]:
    """The doubts of a dialect, and that the version is newer than those that are known."""
    yield f"trainer_version {info.trainer_version} is newer than {dotted(newest)}: judged by what that one logs"
    yield from known.doubts(info)


def at_least(version: str | None, *wanted: int) -> bool:
    """Whether every version that is possible is not older than ``wanted``, with the same major number.

    Args:
        version: one, or bounds of it (``>=0.8``), as in ``RunInfo.trainer_version``; None where it is unknown.
        wanted: the version to compare with.
    """
    bounds = bounds_of(version)
    return bounds.low is not None and bounds.low[0] == wanted[0] and bounds.at_least(wanted)


def before(version: str | None, *wanted: int) -> bool:
    """Whether every version that is possible is older than ``wanted``; see ``at_least``."""
    return bounds_of(version).before(wanted)
