"""Where diseases register: each names the rule that must find it and the rules that may speak up beside it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Final

import numpy as np

from rl_doctor.report.model import Severity
from tests.simulation.healthy import KINDS
from tests.simulation.logs import relogged
from tests.simulation.run import SimulatedRun
from tests.simulation.settings import Settings
from tests.simulation.world import simulate

Inject = Callable[[SimulatedRun, np.random.Generator], SimulatedRun]
Make = Callable[[int], SimulatedRun]

_DISEASES: Final[dict[str, Disease]] = {}


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
    """

    name: str
    rule: str
    allowed: frozenset[str]
    least: Severity
    make: Make
    inject: Inject | None
    needs: tuple[str, ...]


def injected(
    rule: str,
    *allowed: str,
    into: str = "on_policy",
    needs: tuple[str, ...] = (),
    least: Severity = "warning",
    log: bool = True,
    anywhere: bool = True,
) -> Callable[[Inject], Inject]:
    """Register a function that damages a run.

    ``log=False``: the trainer's log stays as it is or was damaged by the function. ``anywhere=False``: the function knows how the
    simulated world looks, and can damage no other run.
    """

    def register(inject: Inject) -> Inject:
        def make(seed: int) -> SimulatedRun:
            run = inject(KINDS[into](seed).copy(), np.random.default_rng(seed))
            return relogged(run) if log else run

        _add(Disease(_name(inject), rule, frozenset(allowed), least, make, inject if anywhere else None, needs))
        return inject

    return register


def simulated(rule: str, *allowed: str, least: Severity = "warning") -> Callable[[Callable[[int], Settings]], Make]:
    """Register a function seed -> Settings whose simulation has the fault."""

    def register(settings: Callable[[int], Settings]) -> Make:
        def make(seed: int) -> SimulatedRun:
            return simulate(settings(seed))

        _add(Disease(_name(settings), rule, frozenset(allowed), least, make, None, ()))
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
