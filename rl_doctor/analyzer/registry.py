"""Where metrics register. A module in ``analyzer/metrics`` is found by being there; nothing is listed by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

from numpy.typing import NDArray

from rl_doctor.analyzer.states import State, Sum, mean
from rl_doctor.discovery import import_modules
from rl_doctor.frozen import frozen
from rl_doctor.store.batch import Batch
from rl_doctor.store.rows import is_token

Level = Literal["token", "rollout", "logged"]

_METRICS: Final[dict[str, Metric]] = {}
_FAMILIES: Final[list[Family]] = []
_SEQUENCE_VALUES: Final[dict[str, SequenceValue]] = {}

PER_SEQUENCE_PREFIX: Final = "per_sequence."
LOGGED_FAMILIES: Final[Mapping[str, str]] = MappingProxyType(
    {"reward.component.": "reward", "part.": "1", "val.source.": "reward"}
)
"""Metrics that depend on what the trainer calls things: what their names start with -> unit.

``part.<part>.<metric>`` is a metric of a part of the batch, ``val.source.<source>`` a score on one source of held-out prompts.
"""


@frozen(eq=False)
class Reduction:
    """One pass over batches, shared by every metric that reads its state.

    Attributes:
        partial: Batch -> State. A "token" reduction sees the batches of one step, a "rollout" reduction sees all
            sequence rows of one generation batch at once (each uid once, no token columns), a "logged" reduction reads
            sequence columns that stand in the rows of a step or, failing that, in the trainer's own log.
        zero: the identity state.
        needs: columns without which it is skipped; ``a|b`` for either of two (both are read), ``config.<field>`` for
            configuration, ``per_sequence.<name>`` for a SequenceValue.
        optional: columns that it reads where the run has them.
        level: "token", "rollout" or "logged".
    """

    partial: Callable[[Batch], State]
    zero: State
    needs: tuple[str, ...]
    optional: tuple[str, ...]
    level: Level

    @property
    def reads_tokens(self) -> bool:
        """Whether it looks at tokens, itself or through values computed from them."""
        names = (part for name in (*self.needs, *self.optional) for part in name.split("|"))
        return any(name.startswith(PER_SEQUENCE_PREFIX) or is_token(name) for name in names)


@frozen(eq=False)
class Metric:
    """One number per step.

    Attributes:
        name: canonical name, ``topic.quantity[_stat]``; one that ends in a dot stands for a metric of each name that its
            state, a ``Named``, has.
        unit: unit of the value.
        reduction: what is summed; where it is a ``Top``, the sequences themselves are told as well.
        final: State -> float (with ``change`` two states -> float), of the part that ``part`` names where it is set.
        source: where the definition comes from (paper, trainer and version).
        doc: one or two sentences: the formula, what it covers.
        version: raised when the value changes for the same data.
        part: index of the sum in a ``Sums`` that the metric reads, and whose count is the metric's; None for the whole state.
        change: whether ``final`` takes two states, that of the step before and that of the step.
        formula: one line of mathematics, in the letters of ``notation.NOTATION``.
    """

    name: str
    unit: str
    reduction: Reduction
    final: Callable[..., float]
    source: str
    doc: str
    version: int = 1
    part: int | None = None
    change: bool = False
    formula: str = ""

    @property
    def needs(self) -> tuple[str, ...]:
        """Columns and configuration without which the metric is skipped."""
        return self.reduction.needs

    @property
    def keyed(self) -> bool:
        """Whether it stands for a metric of each name of its state."""
        return self.name.endswith(".")


@frozen(eq=False)
class SequenceValue:
    """A number per sequence computed from its tokens, for rollout reductions to use as a column."""

    name: str
    function: Callable[[Batch], NDArray[Any]]
    needs: tuple[str, ...]
    optional: tuple[str, ...]


@frozen(eq=False)
class Family:
    """Metrics that depend on which columns a run has.

    Attributes:
        prefix: what the names of its metrics start with.
        columns: what the names of the columns start with.
        make: (columns of the run with that prefix, in order) -> metrics; these are not registered by name.
    """

    prefix: str
    columns: str
    make: Callable[[tuple[str, ...]], Iterable[Metric]]


def reduction(
    *, zero: State, needs: tuple[str, ...] = (), optional: tuple[str, ...] = (), level: Level = "token"
) -> Callable[[Callable[[Batch], State]], Reduction]:
    """Decorate a function Batch -> State as a Reduction."""
    return lambda function: Reduction(function, zero, needs, optional, level)


def metric(  # noqa: PLR0913 - a declaration: every field of a metric has a name here
    name: str,
    of: Reduction,
    final: Callable[..., float],
    *,
    unit: str,
    source: str,
    formula: str,
    doc: str,
    version: int = 1,
    part: int | None = None,
    change: bool = False,
) -> Metric:
    """Register a metric over the reduction ``of`` and return it."""
    if name in _METRICS:
        raise ValueError(f"metric {name} is registered twice")
    made = Metric(name, unit, of, final, source, doc, version, part, change, formula)
    _METRICS[name] = made
    return made


def logged_metric(name: str, *, unit: str, source: str, formula: str, doc: str) -> Metric:
    """Register a metric that only the trainer's log has, and return it; it lacks itself where it was not logged."""

    @reduction(zero=Sum(), needs=(name,), level="logged")
    def total(batch: Batch) -> Sum:
        return Sum.of(batch.columns[name])

    return metric(name, total, mean, unit=unit, source=source, formula=formula, doc=doc)


def family(
    prefix: str, columns: str
) -> Callable[[Callable[[tuple[str, ...]], Iterable[Metric]]], Callable[[tuple[str, ...]], Iterable[Metric]]]:
    """Register a function columns -> metrics for the columns of a run that start with ``columns``."""

    def register(make: Callable[[tuple[str, ...]], Iterable[Metric]]) -> Callable[[tuple[str, ...]], Iterable[Metric]]:
        _FAMILIES.append(Family(prefix, columns, make))
        return make

    return register


def sequence_value(
    name: str, *, needs: tuple[str, ...] = (), optional: tuple[str, ...] = ()
) -> Callable[[Callable[[Batch], NDArray[Any]]], Callable[[Batch], NDArray[Any]]]:
    """Register a function Batch -> array ``[n_sequences]`` under ``per_sequence.<name>``."""

    def register(function: Callable[[Batch], NDArray[Any]]) -> Callable[[Batch], NDArray[Any]]:
        _SEQUENCE_VALUES[PER_SEQUENCE_PREFIX + name] = SequenceValue(PER_SEQUENCE_PREFIX + name, function, needs, optional)
        return function

    return register


def metrics() -> Mapping[str, Metric]:
    """Every registered metric by name."""
    import_modules("rl_doctor.analyzer.metrics")
    return MappingProxyType(_METRICS)


def sequence_values() -> Mapping[str, SequenceValue]:
    """Every registered per-sequence value by its ``per_sequence.`` name."""
    import_modules("rl_doctor.analyzer.metrics")
    return MappingProxyType(_SEQUENCE_VALUES)


def families() -> tuple[Family, ...]:
    """Every registered family."""
    import_modules("rl_doctor.analyzer.metrics")
    return tuple(_FAMILIES)


def metrics_for(columns: Iterable[str]) -> Mapping[str, Metric]:
    """Every registered metric and those that the families make for a run with these columns, by name."""
    found = dict(metrics())
    present = sorted(columns)
    for known in families():
        chosen = tuple(name for name in present if name.startswith(known.columns))
        if chosen:
            found |= {made.name: made for made in known.make(chosen)}
    return MappingProxyType(found)
