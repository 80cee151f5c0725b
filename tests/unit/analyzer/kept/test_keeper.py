"""What is read again, and what is not: by part, by metric, by configuration."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from rl_doctor.analyzer import registry
from rl_doctor.analyzer.engine import analyze
from rl_doctor.analyzer.kept import sheet
from rl_doctor.analyzer.kept.places import FOLDER, places
from rl_doctor.analyzer.registry import metrics
from rl_doctor.checking.keeping import Keep
from rl_doctor.store import part as parts
from rl_doctor.store.layout import parse_part
from rl_doctor.store.pack import pack
from rl_doctor.store.rows import Rows, is_token
from rl_doctor.store.run import open_run
from rl_doctor.store.run_file import ListFragment
from rl_doctor.store.thinning import thin_part
from rl_doctor.store.writer import RunWriter
from tests.property.kept_runs import CONFIG, INFO, check, told, write

Read = list[tuple[int, frozenset[str]]]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Read:
    """Step and token columns of every row group that is decoded."""
    found: Read = []

    def watched(original: Callable[..., Iterator[Rows]], step: Callable[[object], int]) -> Callable[..., Iterator[Rows]]:
        def read(self: object, columns: Sequence[str], start: int, stop: int) -> Iterator[Rows]:
            if tokens := frozenset(name for name in columns if is_token(name)):
                found.append((step(self), tokens))
            return original(self, columns, start, stop)

        return read

    monkeypatch.setattr(
        parts.PartFragment,
        "read",
        watched(parts.PartFragment.read, lambda one: one.part.steps[one.group]),  # type: ignore[attr-defined]
    )
    monkeypatch.setattr(ListFragment, "read", watched(ListFragment.read, lambda one: one.group))  # type: ignore[attr-defined]
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    write(RunWriter(path, INFO), [[1, 2], [3, 4], [5, 6]])
    return path


def steps(reads: Read) -> set[int]:
    return {step for step, _ in reads}


def test_a_second_check_reads_no_token(folder: Path, reads: Read) -> None:
    first = told(check(folder, keep=True))
    assert steps(reads) == {1, 2, 3, 4, 5, 6}
    reads.clear()
    assert told(check(folder, keep=True)) == first
    assert not reads


def test_what_is_asked_for_twice_is_kept(folder: Path, reads: Read) -> None:
    keep, run = Keep(folder), open_run(folder)
    keep.begin(run, run.info, run.metrics())
    whole = analyze(run, ["policy."], keep=keep.states)
    part = analyze(run, ["policy.entropy"], keep=keep.states)
    assert part.series.keys() == {"policy.entropy"}
    assert part.series["policy.entropy"].values.tolist() == whole.series["policy.entropy"].values.tolist()
    keep.save(run)
    reads.clear()
    keep = Keep(folder)
    keep.begin(run, run.info, run.metrics())
    again = analyze(run, ["policy."], keep=keep.states).series
    assert {name: one.values.tobytes() for name, one in again.items()} == {
        name: one.values.tobytes() for name, one in whole.series.items()
    }
    assert not reads


def test_what_was_found_wrong_with_a_log_is_not_looked_into_again(tmp_path: Path, reads: Read) -> None:
    folder = tmp_path / "run"
    write(RunWriter(folder, INFO), [[1, 2], [3, 4], [5, 6]], wrong=True)
    first = told(check(folder, keep=True))
    assert len(reads) > len(steps(reads))
    reads.clear()
    assert told(check(folder, keep=True)) == first
    assert not reads


def test_a_second_check_of_a_file_reads_no_token_and_leaves_nothing_beside_it(folder: Path, tmp_path: Path, reads: Read) -> None:
    file = tmp_path / "ci" / "run.parquet"
    file.parent.mkdir()
    pack(open_run(folder), file)
    first = told(check(file, keep=True))
    reads.clear()
    assert told(check(file, keep=True)) == first
    assert not reads
    assert [path.name for path in file.parent.iterdir()] == ["run.parquet"]


def test_of_a_run_that_grew_only_the_new_part_is_read(folder: Path, reads: Read) -> None:
    check(folder, keep=True)
    write(RunWriter(folder, INFO), [[7, 8]])
    reads.clear()
    grown = told(check(folder, keep=True))
    assert steps(reads) == {7, 8}
    assert grown == told(check(folder, keep=False))


@pytest.mark.parametrize("change", ["touched", "replaced", "torn", "gone", "thinned"])
def test_a_part_that_changed_is_noticed(folder: Path, change: str) -> None:
    check(folder, keep=True)
    tokens = folder / "tokens-s1-r0-1.parquet"
    assert tokens.exists()
    if change == "touched":
        os.utime(tokens)
    elif change == "replaced":
        other = folder.with_name("other")
        write(RunWriter(other, INFO), [[1, 2], [3, 4], [5, 6]], seed=5)
        for path in (tokens, folder / "sequences-s1-r0-1.parquet"):
            when = path.stat()
            shutil.copy(other / path.name, path)
            os.utime(path, ns=(when.st_atime_ns, when.st_mtime_ns))
    elif change == "torn":
        tokens.write_bytes(tokens.read_bytes()[:-7])
    elif change == "gone":
        tokens.unlink()
    else:
        name = parse_part("sequences-s1-r0-1.parquet")
        assert name is not None
        thin_part(folder, name, {1, 2}.__contains__)
    assert told(check(folder, keep=True)) == told(check(folder, keep=False))
    assert told(check(folder, keep=True)) == told(check(folder, keep=False))


def test_a_changed_version_computes_that_metric_alone(folder: Path, reads: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    first = told(check(folder, keep=True))
    old = metrics()["adv.max"]
    monkeypatch.setitem(registry._METRICS, "adv.max", replace(old, version=old.version + 1))
    reads.clear()
    assert told(check(folder, keep=True)) == first
    assert {name for _, names in reads for name in names} == {"advantage", "response_mask"}
    reads.clear()
    assert told(check(folder, keep=True)) == first
    assert not reads


def test_another_configuration_is_noticed(folder: Path, reads: Read) -> None:
    check(folder, keep=True)
    path = folder / "run.json"
    path.write_text(path.read_text().replace('"clip_low": 0.2', '"clip_low": 0.01'))
    assert open_run(folder).info.config == replace(CONFIG, clip_low=0.01)
    reads.clear()
    assert told(check(folder, keep=True)) == told(check(folder, keep=False))
    assert steps(reads) == {1, 2, 3, 4, 5, 6}


def test_states_of_another_version_are_left_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sheet, "FORMAT", sheet.FORMAT + 1)
        check(folder, keep=True)
    before = {path.name: path.read_bytes() for path in (folder / FOLDER).iterdir()}
    assert told(check(folder, keep=True)) == told(check(folder, keep=False))
    after = {path.name: path.read_bytes() for path in (folder / FOLDER).iterdir()}
    assert {name: after[name] for name in before} == before


def test_where_the_folder_takes_no_states_they_go_to_the_cache(folder: Path, reads: Read) -> None:
    (folder / FOLDER).write_text("in the way")
    first = told(check(folder, keep=True))
    reads.clear()
    assert told(check(folder, keep=True)) == first
    assert not reads
    assert places(folder)[1].is_dir()
