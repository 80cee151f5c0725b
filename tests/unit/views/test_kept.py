"""What was made of a run is kept as long as the run is there, and no longer."""

from __future__ import annotations

import dataclasses
import gc

from rl_doctor.views import kept as module
from rl_doctor.views.kept import kept
from rl_doctor.views.opened import Opened


def test_it_is_made_once_for_each_run_and_arguments(stale: Opened) -> None:
    made: list[int] = []

    @kept
    def tripled(opened: Opened, number: int = 1) -> int:
        made.append(number)
        return 3 * number if opened.series else 0

    other = dataclasses.replace(stale)
    assert [tripled(stale, 2), tripled(stale, 2), tripled(stale, number=2), tripled(stale), tripled(other, 2)] == [6, 6, 6, 3, 6]
    assert made == [2, 2, 1, 2]


def test_a_run_that_is_gone_leaves_nothing(stale: Opened) -> None:
    @kept
    def name(opened: Opened) -> str:
        return opened.path.name

    other = dataclasses.replace(stale)
    name(other)
    before = len(module._KEPT)
    del other
    gc.collect()
    assert len(module._KEPT) == before - 1
