"""Where diseases register: each names the rule that must find it and the rules that may speak up beside it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Final

import numpy as np

from rl_doctor.report.model import Severity
from tests.simulation.healthy import KINDS
from tests.simulation.inject import onset
from tests.simulation.logs import relogged
from tests.simulation.run import SimulatedRun
from tests.simulation.settings import Settings
from tests.simulation.world import simulate

Inject = Callable[[SimulatedRun, np.random.Generator], SimulatedRun]
Make = Callable[[int], SimulatedRun]

_DISEASES: Final[dict[str, Disease]] = {}


@dataclass(frozen=True, slots=True)
class Grade:
    """Sizes of a fault.

    Attributes:
        inject: (run, random, size, onset) -> the run with a fault of that size from the step ``onset`` on.
        sizes: sizes to try, from the smallest to the largest.
        least: the smallest that must be found.
        unit: of the sizes.
    """

    inject: Callable[[SimulatedRun, np.random.Generator, float, int], SimulatedRun]
    sizes: tuple[float, ...]
    least: float
    unit: str

    @property
    def promised(self) -> tuple[float, ...]:
        """The sizes that must be found: the least and what is worse; of a share that is left, a smaller one is."""
        sign = 1 if self.sizes[-1] > self.sizes[0] else -1
        return tuple(size for size in self.sizes if sign * size >= sign * self.least)


@dataclass(frozen=True, slots=True)
class Disease:
    """One fault.

    Attributes:
        name: what is wrong.
        rule: the rule that must find it.
        allowed: rules that may report a warning or an error beside it, each for a reason that the disease's docstring gives.
        least: the severity that the finding must at least have; info for what is worth knowing, no more.
        make: seed -> a simulated run that has the fault.
        inject: puts the fault into any run in memory; None where it has to be simulated.
        needs: columns without which it cannot be injected.
        cause: name of the cause that must come first; None where any may.
        grade: how it is put into a run at another size and from another step on; None where it has one size only.
        into: healthy kind of run that ``make`` puts it into; None where it is simulated.
        log: whether the trainer's log says what the damaged rows say.
        damage: metric that it moves step by step, whose way from the onset to the furthest point is the damage; None where all of
            it is there from its first step on.
        sooner: rules that tell it too, before its own does or in its place.
        asks: damaged rows that its rule asks for, and trained tokens of each; (0, 0) where any will do.
    """

    name: str
    rule: str
    allowed: frozenset[str]
    least: Severity
    make: Make
    inject: Inject | None
    needs: tuple[str, ...]
    cause: str | None = None
    grade: Grade | None = None
    into: str | None = None
    log: bool = True
    damage: str | None = None
    sooner: tuple[str, ...] = ()
    asks: tuple[int, int] = (0, 0)

    def damaged(
        self,
        run: SimulatedRun,
        random: np.random.Generator,
        size: float | None = None,
        at: int = 0,
        log: Callable[[SimulatedRun], SimulatedRun] = relogged,
    ) -> SimulatedRun:
        """A copy of a run with the fault; of ``size`` from the step ``at`` on, where that is given.

        ``log`` writes what an honest trainer would have logged of the damaged rows, where the fault is not in the log itself.
        """
        if size is not None and self.grade is not None:
            made = self.grade.inject(run.copy(), random, size, at)
        else:
            assert self.inject is not None, self.name
            made = self.inject(run.copy(), random)
        return log(made) if self.log else made


def injected(
    rule: str,
    *allowed: str,
    into: str = "on_policy",
    needs: tuple[str, ...] = (),
    least: Severity = "warning",
    log: bool = True,
    anywhere: bool = True,
    cause: str | None = None,
    damage: str | None = None,
    sooner: tuple[str, ...] = (),
    asks: tuple[int, int] = (0, 0),
) -> Callable[[Inject], Inject]:
    """Register a function that damages a run.

    ``log=False``: the trainer's log stays as it is or was damaged by the function. ``anywhere=False``: the function knows how the
    simulated world looks, and can damage no other run. ``damage``: metric that it moves step by step. ``sooner``: rules that tell
    it too, before its own does or in its place. ``asks``: damaged rows that its rule asks for, and trained tokens of each.
    """

    def register(inject: Inject) -> Inject:
        def make(seed: int) -> SimulatedRun:
            run = inject(KINDS[into](seed), np.random.default_rng(seed))
            return relogged(run) if log else run

        known = Disease(_name(inject), rule, frozenset(allowed), least, make, inject if anywhere else None, needs, cause)
        _add(replace(known, into=into, log=log, damage=damage, sooner=sooner, asks=asks))
        return inject

    return register


def graded(
    rule: str,
    *allowed: str,
    sizes: tuple[float, ...],
    least_size: float,
    unit: str,
    cause: str | None = None,
    into: str = "on_policy",
    needs: tuple[str, ...] = (),
    least: Severity = "warning",
    damage: str | None = None,
    sooner: tuple[str, ...] = (),
    asks: tuple[int, int] = (0, 0),
) -> Callable[[Callable[[SimulatedRun, np.random.Generator, float, int], SimulatedRun]], Inject]:
    """Register a function (run, random, size, onset) -> damaged run; the matrix has it at ``least_size`` from ``onset`` on.

    The scorecard has it at all ``sizes``. ``damage``: metric that it moves step by step. ``sooner``: rules that tell it too,
    before its own does or in its place. ``asks``: damaged rows that its rule asks for, and trained tokens of each.
    """

    def register(function: Callable[[SimulatedRun, np.random.Generator, float, int], SimulatedRun]) -> Inject:
        def inject(run: SimulatedRun, random: np.random.Generator) -> SimulatedRun:
            return function(run, random, least_size, onset(run))

        def make(seed: int) -> SimulatedRun:
            return relogged(inject(KINDS[into](seed), np.random.default_rng(seed)))

        grade = Grade(function, sizes, least_size, unit)
        known = Disease(_name(function), rule, frozenset(allowed), least, make, inject, needs, cause, grade, into)
        _add(replace(known, damage=damage, sooner=sooner, asks=asks))
        return inject

    return register


def simulated(
    rule: str, *allowed: str, least: Severity = "warning", cause: str | None = None
) -> Callable[[Callable[[int], Settings]], Make]:
    """Register a function seed -> Settings whose simulation has the fault."""

    def register(settings: Callable[[int], Settings]) -> Make:
        def make(seed: int) -> SimulatedRun:
            return simulate(settings(seed))

        _add(Disease(_name(settings), rule, frozenset(allowed), least, make, None, (), cause))
        return make

    return register


def _name(function: Callable[..., object]) -> str:
    return function.__name__.replace("_", "-")


def _add(disease: Disease) -> None:
    assert disease.name not in _DISEASES, disease.name
    _DISEASES[disease.name] = disease


@cache
def _load() -> None:
    package = importlib.import_module("tests.diseases")
    for module in sorted(info.name for info in pkgutil.iter_modules(package.__path__)):
        if not module.startswith("test_"):
            importlib.import_module(f"{package.__name__}.{module}")


def diseases() -> Mapping[str, Disease]:
    """Every disease by name."""
    _load()
    return MappingProxyType(_DISEASES)
