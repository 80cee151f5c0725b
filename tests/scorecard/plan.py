"""Which runs the scorecard is made of."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tests.diseases.catalogue import Disease, diseases
from tests.diseases.complaints import complaints
from tests.diseases.recorded import RECORDED
from tests.scorecard.outcome import Job
from tests.scorecard.sensitivity import FAULTS
from tests.simulation.families import FAMILIES


@dataclass(frozen=True, slots=True)
class Size:
    """How many runs of each sort.

    Attributes:
        healthy: of each family.
        complaints: of each complaint.
        simulated: of each fault in the run that it belongs to.
        families: other families that each fault is put into.
        sizes: of each size of a fault that has several.
        sensitivity: of each small fault.
        timed: of the runs of a fault, how many are asked how soon it was found.
    """

    healthy: int = 600
    complaints: int = 10
    simulated: int = 2
    families: int = 1
    sizes: int = 3
    sensitivity: int = 10
    timed: int = 1


SMALL: Final = Size(healthy=10, complaints=1, simulated=1, families=0, sizes=0, sensitivity=1, timed=0)
"""What the tests run; the matrix of diseases has their recall."""


def jobs(size: Size, only: str = "") -> list[Job]:
    """All of them; of the faults those whose names contain ``only``."""
    return [*_faults(size, only), *_sensitivity(size), *_healthy(size)]


def _healthy(size: Size) -> Iterator[Job]:
    yield from (Job("healthy", name, recorded=True) for name in RECORDED)
    yield from (Job("healthy", name, seed=seed) for seed in range(size.healthy) for name in FAMILIES)
    yield from (Job("complaint", name, seed=seed) for name in complaints() for seed in range(size.complaints))


def _faults(size: Size, only: str) -> Iterator[Job]:
    for name, disease in diseases().items():
        if only not in name:
            continue
        yield from (Job("fault", name, seed=seed, timed=seed < size.timed) for seed in range(size.simulated))
        if disease.inject is None:
            continue
        yield from (Job("fault", name, host, recorded=True) for host in RECORDED if size.simulated)
        yield from (Job("fault", name, host, seed) for seed, host in enumerate(_families(disease, size.families)))
        if disease.grade is not None:
            grows = size.timed if disease.damage else 0
            for part in disease.grade.sizes:
                yield from (Job("size", name, seed=seed, size=part, timed=seed < grows) for seed in range(size.sizes))


def _families(disease: Disease, count: int) -> list[str]:
    """Families to put a fault into, others for each fault; those with several passes where it needs them.

    None with a critic: faults of advantages are made for one advantage per response.
    """
    every = tuple(name for name in FAMILIES if name != "ppo")
    fit = {"two_epochs": ("grpo", "rloo", "gspo", "dynamic"), "agentic": ("agentic",)}.get(disease.into or "", every)
    start = zlib.crc32(disease.name.encode())
    return [fit[(start + index) % len(fit)] for index in range(count)]


def _sensitivity(size: Size) -> Iterator[Job]:
    yield from (Job("sensitivity", name, seed=seed) for name in FAULTS for seed in range(size.sensitivity))
