"""Where the trainers' names register. A module in ``analyzer/dialects`` that declares a trainer is found by being there.

Names are compared in their plain form, since tables write ``/`` as ``_`` and reporters put ``train/`` before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.dialects.recipes import Definition
from rl_doctor.discovery import import_modules
from rl_doctor.frozen import frozen
from rl_doctor.schema import RunConfig
from rl_doctor.store.metric_log import Points

Version = tuple[int, ...]
Lookup = Callable[[str], Points | None]
"""Native name -> what was logged under it; None where that is nothing or, for a family, more than one name."""

_SEPARATORS: Final = str.maketrans("/. ", "___")
_PREFIX: Final = "train_"
LONGEST: Final = 200
"""Longer names than any trainer writes are not held against patterns: that could take for ever."""
_REMEMBERED: Final = 8192
"""Names whose form is kept: more than the logs of a run hold beside the tables."""
_PLACE: Final = re.compile(r"\\\{(\w+)\\\}")
_NUMBERED: Final = re.compile(r"@\(\?P<(\w+)>\.\+\)")
AT: Final = r"(?:@|_(?=\d))"
"""What stands between a statistic and the number of answers: tensorboardX writes ``mean@8`` as ``mean_8``."""


@lru_cache(_REMEMBERED)
def spelled(name: str) -> str:
    """A native name with one separator and without the prefix of the training split, in its own case."""
    made = name.replace(" / ", "/").translate(_SEPARATORS)
    while made.lower().startswith(_PREFIX):
        made = made[len(_PREFIX) :]
    return made


@lru_cache(_REMEMBERED)
def plain(name: str) -> str:
    """The form in which native names are compared: ``spelled``, in lower case."""
    return spelled(name).lower()


@frozen(eq=False)
class Name:
    """What a trainer calls a number.

    Attributes:
        native: as the trainer writes it; ``{word}`` stands for any text, as in ``rewards/{function}/mean``.
        metric: canonical metric, with the same ``{word}`` for a family; None where the number is known and means none.
        factor: value of the metric = factor * logged value + offset.
        offset: see ``factor``.
        since: first version with this meaning, or None.
        until: first version without it, or None.
        algorithms: the algorithms whose logs have this meaning; empty for all, "" for one that is not known.
        holds: whether the logged numbers bear the meaning out, where the name alone does not tell; None for always.
        measured: whether it is logged only where it is measured, so that 0 in every row is a value.
        note: what the reader must know where the number is not what its name says.
        note_by: the same from the run's configuration, "" for nothing; None where that does not tell, so that ``note`` stands.
        definition: what the number is and whether it can be recomputed; None where that was not looked up.
    """

    native: str
    metric: str | None
    factor: float = 1.0
    offset: float = 0.0
    since: Version | None = None
    until: Version | None = None
    algorithms: frozenset[str] = frozenset()
    holds: Callable[[Lookup], bool] | None = None
    measured: bool = False
    note: str = ""
    note_by: Callable[[RunConfig], str | None] | None = None
    definition: Definition | None = None

    def told(self, config: RunConfig) -> str:
        """What the reader must know in a run of this configuration."""
        found = None if self.note_by is None else self.note_by(config)
        return self.note if found is None else found

    @property
    def family(self) -> bool:
        """Whether it stands for several names."""
        return "{" in self.native

    def value(self, logged: NDArray[np.float64]) -> NDArray[np.float64]:
        """Logged values in the metric's terms."""
        if self.factor == 1.0 and self.offset == 0.0:
            return logged
        return np.asarray(self.factor * logged + self.offset)


@frozen
class Bounds:
    """What is known of a version: ``low`` <= version < ``high``; None where that side is open."""

    low: Version | None = None
    high: Version | None = None

    def at_least(self, version: Version) -> bool:
        """Whether every version that is possible is this one or newer."""
        return self.low is not None and _whole(self.low) >= _whole(version)

    def before(self, version: Version) -> bool:
        """Whether every version that is possible is older than this one."""
        return self.high is not None and _whole(self.high) <= _whole(version)

    def within(self, item: Name) -> bool:
        """Whether every version that is possible has the meaning ``item``."""
        return (item.since is None or self.at_least(item.since)) and (item.until is None or self.before(item.until))

    def meets(self, other: Bounds) -> Bounds:
        """Both bounds at once."""
        lows = [one for one in (self.low, other.low) if one is not None]
        highs = [one for one in (self.high, other.high) if one is not None]
        return Bounds(max(lows, default=None, key=_whole), min(highs, default=None, key=_whole))

    @property
    def exact(self) -> bool:
        """Whether one version is possible."""
        return self.low is not None and self.high is not None and self.high == _next(self.low)

    @property
    def possible(self) -> bool:
        """Whether a version is."""
        return self.low is None or self.high is None or _whole(self.low) < _whole(self.high)

    def __str__(self) -> str:
        """As ``bounds_of`` reads it: ``>=0.17,<0.27``; "" where nothing is known."""
        low = [] if self.low is None else [f">={dotted(self.low)}"]
        return ",".join([*low, *([] if self.high is None else [f"<{dotted(self.high)}"])])

    @property
    def words(self) -> str:
        """In words; "" where nothing is known."""
        if self.exact and self.low is not None:
            return dotted(self.low)
        low = "" if self.low is None else f"{dotted(self.low)} or later"
        high = "" if self.high is None else f"before {dotted(self.high)}"
        return ", ".join(filter(None, (low, high)))


_PART: Final = re.compile(r"\s*(>=|<|)\s*v?(\d+)\.(\d+)(?:\.(\d+))?")


def bounds_of(version: str | None) -> Bounds:
    """Bounds that a version gives: ``0.9.1`` itself alone, ``>=0.17,<0.27`` says them; an unreadable one gives none."""
    found = Bounds()
    told = version or ""
    for part in told.split(",") if told.startswith((">", "<")) else [told]:
        read = _PART.match(part)
        if read is None:
            return Bounds()
        sign, *numbers = read.groups()
        one = tuple(int(number or 0) for number in numbers)
        found = found.meets({">=": Bounds(one), "<": Bounds(None, one)}.get(sign, Bounds(one, _next(one))))
    return found


def dotted(version: Version) -> str:
    """A version as it is written, without a last 0 beyond the second number."""
    return ".".join(map(str, version[:2] if len(version) > 2 and not any(version[2:]) else version))


def _whole(version: Version) -> Version:
    """With three numbers at least, so that versions compare."""
    return version + (0,) * (3 - len(version))


def _next(version: Version) -> Version:
    whole = _whole(version)
    return (*whole[:2], whole[2] + 1)


@frozen(eq=False)
class Trainer:
    """One trainer: its names, and by which of them it is recognised.

    Attributes:
        name: as in ``RunInfo.trainer``.
        label: for pages and messages.
        source: where the names were read, with versions.
        names: in the order in which they are preferred for the same metric.
        marks: names that speak for this trainer; it is recognised by at least ``least`` of them.
        least: see ``marks``.
        kinds: algorithm -> names; the first of which any combination (names joined by ``+``) is there is the algorithm.
        refine: (algorithm by the names, what was logged) -> algorithm; None where that leaves it open.
        dated: plain names -> what they tell of the version.
        validation: tiers of names of scores on held-out prompts, the best first; ``{source}`` is the data source.
        best: the same for the best of several answers.
        settings: field of ``RunConfig`` -> names under which its constant value is logged, the surest first.
        caps: metric -> settings of its own (dots for nested ones), the largest of which that is known no value of it exceeds.
        loss_adds_up: whether its total loss is its policy loss - entropy_coef * entropy + kl_coef * KL, each as it is logged.
        leaves_one_out: whether it divides an advantage by the deviation of the others of its group.
        reads: members of ``config.native``, dotted, that recomputation reads in code of its own, beside those of the recipes.
        stages: name -> what it stands for in the formulas, where it is written between asterisks; told once for all of them.
    """

    name: str
    label: str
    source: str
    names: tuple[Name, ...]
    marks: tuple[str, ...] = ()
    least: int = 2
    kinds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    refine: Callable[[str, Lookup], str | None] = lambda algorithm, _: algorithm
    dated: Callable[[Collection[str]], Bounds] = lambda _: Bounds()
    validation: tuple[tuple[str, ...], ...] = ()
    best: tuple[tuple[str, ...], ...] = ()
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    caps: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    loss_adds_up: bool = False
    leaves_one_out: bool = False
    reads: tuple[str, ...] = ()
    stages: Mapping[str, str] = field(default_factory=dict)


class Names:
    """A list of names, ready to be looked up.

    Args:
        items: entries in the order of preference.
    """

    def __init__(self, items: Iterable[Name]) -> None:
        self._metrics: set[str | None] = set()
        self._exact: dict[str, list[tuple[int, Name]]] = {}
        self._families: list[tuple[int, Name, tuple[str, str]]] = []
        for rank, item in enumerate(items):
            self._metrics.add(item.metric)
            if item.family:
                self._families.append((rank, item, ends(item.native)))
            else:
                self._exact.setdefault(plain(item.native), []).append((rank, item))

    def means(self, metric: str) -> bool:
        """Whether some name means the metric."""
        return metric in self._metrics

    def find(self, native: str) -> list[tuple[int, Name, str | None]]:
        """Entries for a native name, exact ones alone where there are any, each with its rank and its metric."""
        native = native.replace(" / ", "/")
        made = spelled(native)
        if exact := self._exact.get(made.lower()):
            return [(rank, item, item.metric) for rank, item in exact]
        if len(made) > LONGEST:
            return []
        found = []
        lower = made.lower()
        for rank, item, outer in self._families:
            if may_fit(lower, outer) and (match := pattern(item.native).fullmatch(made)):
                start = len(native) - len(made)
                words = {word: native[start + match.start(word) : start + match.end(word)] for word in match.groupdict()}
                found.append((rank, item, None if item.metric is None else item.metric.format(**words)))
                break
        return found


@cache
def pattern(native: str) -> re.Pattern[str]:
    """A native name as a pattern on ``spelled`` names; each ``{word}`` is a group."""
    made = _PLACE.sub(r"(?P<\1>.+)", re.escape(spelled(native)))
    return re.compile(_NUMBERED.sub(lambda found: rf"{AT}(?P<{found[1]}>\d+)", made), re.IGNORECASE)


@cache
def ends(native: str) -> tuple[str, str]:
    """What every plain name of a family begins and ends with; a pattern is compiled only where both are there."""
    made = plain(native)
    return made[: made.index("{")].partition("@")[0], made[made.rindex("}") + 1 :].rpartition("@")[2]


def may_fit(name: str, outer: tuple[str, str]) -> bool:
    """Whether a plain name has the ``ends``; of letters outside ASCII some count as another one, and only the pattern tells."""
    return (name.startswith(outer[0]) and name.endswith(outer[1])) or not name.isascii()


def matching(native: str, names: Collection[str]) -> list[str]:
    """Those of the plain ``names`` that ``native`` stands for."""
    if "{" not in native:
        return [made] if (made := plain(native)) in names else []
    outer = ends(native)
    return [name for name in names if len(name) <= LONGEST and may_fit(name, outer) and pattern(native).fullmatch(name)]


def together(natives: str, names: Collection[str]) -> bool:
    """Whether all of several native names, joined by ``+``, are among the plain ``names``."""
    return all(matching(native, names) for native in natives.split("+"))


_TRAINERS: Final[dict[str, Trainer]] = {}


def trainer(declared: Trainer) -> Trainer:
    """Register a trainer and return it."""
    if declared.name in _TRAINERS:
        raise ValueError(f"trainer {declared.name} is registered twice")
    _TRAINERS[declared.name] = declared
    return declared


def trainers() -> Mapping[str, Trainer]:
    """Every trainer by name."""
    import_modules("rl_doctor.analyzer.dialects")
    return MappingProxyType(_TRAINERS)
