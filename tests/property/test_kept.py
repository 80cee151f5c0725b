"""Whatever was kept on the way, a check says what one says that reads everything, to the bit."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from rl_doctor.analyzer.kept.places import places
from rl_doctor.store.writer import RunWriter
from tests.property.kept_runs import INFO, check, told, write


@st.composite
def cuts(draw: st.DrawFn) -> list[list[int]]:
    """Up to eight steps, cut into parts."""
    last = draw(st.integers(2, 8))
    bounds = sorted(draw(st.sets(st.integers(1, last - 1), max_size=3)))
    return [list(range(first + 1, stop + 1)) for first, stop in zip([0, *bounds], [*bounds, last], strict=True)]


@settings(max_examples=12)
@example(cut=[[1], [2, 3, 4, 5], [6]], looks=[False, True, False, True, True] + 4 * [False], per_rollout=1, ranks=2, back=False)
@given(
    cut=cuts(), looks=st.lists(st.booleans(), min_size=9, max_size=9), per_rollout=st.integers(1, 3), ranks=st.integers(1, 2),
    back=st.booleans(),
)  # fmt: skip
def test_looking_in_between_changes_nothing(
    cut: list[list[int]], looks: list[bool], per_rollout: int, ranks: int, back: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        writers = [RunWriter(path, INFO)]
        writers += [RunWriter(path, INFO, rank=rank, session=writers[0].session) for rank in range(1, ranks)]
        looking = iter(looks)
        for steps in cut:
            for writer in writers:
                write(writer, [steps], per_rollout=per_rollout, wrong=back)
                if next(looking, False):
                    check(path, keep=True, everything=len(steps) % 2 == 0)
        if back:  # a second session repeats the last part with other numbers
            write(RunWriter(path, INFO), cut[-1:], per_rollout=per_rollout, seed=7)
        for everything in (False, True):
            whole = told(check(path, keep=False, everything=everything))
            assert told(check(path, keep=True, everything=everything)) == whole
            assert told(check(path, keep=True, everything=everything)) == whole
            check(path, keep=True, everything=everything, verify=True)
        for place in places(path):
            shutil.rmtree(place, ignore_errors=True)
        assert told(check(path, keep=True)) == whole
