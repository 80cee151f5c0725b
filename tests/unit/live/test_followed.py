"""A run is followed as it is written: only what is new is read, and what goes wrong is told once and got over."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from rl_doctor.errors import DoctorError, InputError
from rl_doctor.live.followed import Followed
from rl_doctor.live.pace import LEAST, UNKNOWN
from rl_doctor.store import part as parts
from rl_doctor.store.growing import Growing
from rl_doctor.store.part_index import PartIndex
from rl_doctor.store.rows import Rows
from rl_doctor.store.writer import RunWriter
from tests.property import kept_runs
from tests.property.kept_runs import check, document, told, write

INFO = replace(kept_runs.INFO, status="running")


@pytest.fixture(autouse=True)
def judging_is_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict is renewed at every refresh, however busy the machine is."""
    monkeypatch.setattr("rl_doctor.live.followed._CHEAP", 60.0)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Steps of which anything was decoded."""
    found: set[int] = set()
    original: Callable[..., Iterator[Rows]] = parts.PartFragment.read

    def read(self: parts.PartFragment, columns: Sequence[str], start: int, stop: int) -> Iterator[Rows]:
        found.add(self.part.steps[self.group])
        return original(self, columns, start, stop)

    monkeypatch.setattr(parts.PartFragment, "read", read)
    return found


def status(folder: Path, word: str) -> None:
    path = folder / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "status": word}))


def test_only_new_parts_are_read_and_the_end_is_what_check_says(tmp_path: Path, reads: set[int]) -> None:
    folder = tmp_path / "run"
    writer = RunWriter(folder, INFO)
    write(writer, [[1, 2], [3, 4]])
    followed = Followed(folder)
    assert followed.opened.judged == 4
    assert not followed.refresh()
    for steps in ([5, 6], [7]):
        write(writer, [steps])
        reads.clear()
        assert followed.refresh()
        assert reads == set(steps)
        assert followed.opened.series["adv.mean"].steps[-1] == steps[-1]
    writer.close()
    assert followed.refresh()
    found = told(check(folder, keep=False))
    opened = followed.opened
    ours = {name: [array.tobytes() for array in (one.steps, one.values, one.counts)] for name, one in opened.series.items()}
    assert ours == found["series"]
    assert {name: {step: one.to_row() for step, one in stack.items()} for name, stack in opened.histograms.items()} == found[
        "histograms"
    ]
    assert document(opened.report) == document(check(folder, keep=False).report)
    assert opened.judged == 7


def test_a_run_that_is_opened_again_reads_nothing(tmp_path: Path, reads: set[int]) -> None:
    folder = tmp_path / "run"
    writer = RunWriter(folder, INFO)
    write(writer, [[1, 2], [3, 4]])
    writer.close()
    first = Followed(folder).opened
    reads.clear()
    again = Followed(folder).opened
    assert not reads
    assert document(again.report) == document(first.report)
    assert set(again.series) == set(first.series)


def test_steps_count_once_all_ranks_have_completed_them(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = RunWriter(folder, INFO)
    second = RunWriter(folder, INFO, rank=1, session=first.session)
    write(first, [[1, 2], [3]])
    write(second, [[1], [2]])
    followed = Followed(folder)
    assert followed.opened.series["adv.mean"].steps.tolist() == [1, 2]
    assert followed.opened.report.run.last_step == 2
    write(second, [[3]])
    assert followed.refresh()
    assert followed.opened.series["adv.mean"].steps.tolist() == [1, 2, 3]
    status(folder, "complete")
    write(first, [[4]])
    followed.refresh()
    assert followed.opened.series["adv.mean"].steps.tolist() == [1, 2, 3, 4]


def test_what_is_not_there_yet_is_told_and_got_over(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    followed = Followed(folder)
    with pytest.raises(InputError, match="no such file"):
        followed.refresh()
    with pytest.raises(InputError, match="no such file"):
        _ = followed.opened
    folder.mkdir()
    with pytest.raises(DoctorError):
        followed.refresh()
    writer = RunWriter(folder, INFO)
    with pytest.raises(DoctorError):
        followed.refresh()
    write(writer, [[1, 2]])
    assert followed.refresh()
    assert followed.opened.judged == 2


def test_a_run_that_is_deleted_is_told_and_comes_back(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write(RunWriter(folder, INFO), [[1, 2]])
    followed = Followed(folder)
    before = followed.opened
    shutil.rmtree(folder)
    with pytest.raises(InputError):
        followed.refresh()
    assert followed.opened is before
    write(RunWriter(folder, INFO), [[1], [2], [3]], seed=4)
    assert followed.refresh()
    assert followed.opened.judged == 3
    whole = told(check(folder, keep=False))["series"]["adv.mean"]
    series = followed.opened.series["adv.mean"]
    assert [array.tobytes() for array in (series.steps, series.values, series.counts)] == whole


def test_a_part_that_is_half_written_is_left_out_until_it_is_whole(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    writer = RunWriter(folder, INFO)
    write(writer, [[1, 2]])
    followed = Followed(folder)
    assert followed.opened.judged == 2
    write(writer, [[3]])
    path = folder / "sequences-s1-r0-1.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    followed.refresh()
    assert followed.opened.series["adv.mean"].steps.tolist() == [1, 2]
    path.write_bytes(whole)
    assert followed.refresh()
    assert followed.opened.series["adv.mean"].steps.tolist() == [1, 2, 3]
    assert not followed.opened.report.run.skipped_parts


def test_a_part_that_is_replaced_in_its_place_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_doctor.store.growing.RECHECK_SECONDS", 0.0)
    for name, seed in (("run", 0), ("other", 9)):
        write(RunWriter(tmp_path / name, INFO), [[1, 2], [3, 4]], seed=seed)
    followed = Followed(tmp_path / "run")
    _ = followed.opened
    for table in ("sequences", "tokens"):
        shutil.copy(tmp_path / "other" / f"{table}-s1-r0-0.parquet", tmp_path / "run")
    assert followed.refresh()
    series = followed.opened.series["adv.mean"]
    found = told(check(tmp_path / "run", keep=False))["series"]["adv.mean"]
    assert [array.tobytes() for array in (series.steps, series.values, series.counts)] == found


def test_a_run_that_stops_writing_is_stalled(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write(RunWriter(folder, INFO), [[1, 2]])
    assert Followed(folder).stalled is None
    long_ago = time.time() - 2 * UNKNOWN
    for path in folder.iterdir():
        if path.is_file():
            os.utime(path, (long_ago, long_ago))
    quiet = Followed(folder).stalled
    assert quiet is not None
    assert quiet > UNKNOWN
    status(folder, "complete")
    assert Followed(folder).stalled is None


def test_a_run_that_writes_often_is_stalled_sooner(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write(RunWriter(folder, INFO), [[step] for step in range(1, 12)])
    ages = {1: 2 * LEAST, 2: LEAST / 2}
    for count, age in ages.items():
        for number in range(11):
            when = time.time() - age - 2.0 * (10 - number)
            os.utime(folder / f"sequences-s1-r0-{number}.parquet", (when, when))
        for name in ("run.json", "writer-s1-r0.json"):
            os.utime(folder / name, (when, when))
        for path in [*folder.glob("tokens-*"), *folder.glob("metrics-*")]:
            os.utime(path, (when, when))
        quiet = Followed(folder, keep=False, everything=False).stalled
        assert (quiet is not None) == (count == 1)


def test_parts_are_opened_once(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    writer = RunWriter(folder, INFO)
    write(writer, [[1, 2], [3, 4]])
    index = PartIndex()
    growing = Growing(folder, index)
    assert growing.refresh()
    assert index.parts_read == 2
    write(writer, [[5]])
    assert growing.refresh()
    assert index.parts_read == 3
    assert not growing.refresh()


def test_where_judging_is_dear_series_go_ahead_of_the_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_doctor.live.followed._CHEAP", 0.0)
    folder = tmp_path / "run"
    writer = RunWriter(folder, INFO)
    write(writer, [[1, 2]])
    followed = Followed(folder)
    assert followed.opened.judged == 2
    write(writer, [[3]])
    assert followed.refresh()
    assert followed.opened.judged == 2
    assert followed.opened.series["adv.mean"].steps.tolist() == [1, 2, 3]
    monkeypatch.setattr(followed, "_next_judged", 0.0)
    assert followed.refresh()
    assert followed.opened.judged == 3
    assert document(followed.opened.report) == document(check(folder, keep=False).report)
