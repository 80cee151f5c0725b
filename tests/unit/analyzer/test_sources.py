"""The mixture of data sources against that of the generation batch before."""

from __future__ import annotations

import math

from rl_doctor.analyzer.engine import analyze
from tests.unit.analyzer.memory import MemoryRun


def change(*mixtures: list[str | None]) -> tuple[list[int], list[float]]:
    rows = [{"step": step, "data_source": source} for step, mixture in enumerate(mixtures) for source in mixture]
    series = analyze(MemoryRun(rows, cut=1), ["data.source_change"]).series["data.source_change"]
    return series.steps.tolist(), series.values.tolist()


def test_the_share_that_comes_from_elsewhere() -> None:
    assert change(["math"] * 4, ["math"] * 2, ["math", "code"], ["code", "chat"]) == ([1, 2, 3], [0.0, 0.5, 0.5])


def test_unknown_sources_say_nothing() -> None:
    steps, values = change(["math"], [None], ["math"])
    assert steps == [1, 2]
    assert all(map(math.isnan, values))


def test_one_step_has_nothing_to_compare_with() -> None:
    assert change(["math"]) == ([], [])
