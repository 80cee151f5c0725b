"""The index of parts: footers are read once, and again where a part is not what it was."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_doctor.analyzer.kept import footers, sheet
from rl_doctor.analyzer.kept.places import FOLDER
from rl_doctor.checking.keeping import Keep
from rl_doctor.errors import NothingToJudgeError
from rl_doctor.store import part_index
from rl_doctor.store.growing import Growing
from rl_doctor.store.layout import parse_part
from rl_doctor.store.part import Part, open_metrics, open_part
from rl_doctor.store.run import Run, open_run
from rl_doctor.store.thinning import thin_part
from rl_doctor.store.writer import RunWriter
from tests.property.kept_runs import INFO, check, rows, told, write

SHEET = f"{FOLDER}/parts.states"
CHANGES = ("touched", "replaced", "torn", "gone", "orphaned", "thinned", "metrics")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the parts whose footers are read."""
    found: list[str] = []

    def watched(original: Callable[..., Any], name: Callable[..., str]) -> Callable[..., Any]:
        def read(*arguments: Any) -> Any:
            found.append(name(*arguments))
            return original(*arguments)

        return read

    monkeypatch.setattr(part_index, "open_part", watched(open_part, lambda _, name, __: str(name)))
    monkeypatch.setattr(part_index, "open_metrics", watched(open_metrics, lambda path: path.name))
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    write(RunWriter(path, INFO), [[1, 2], [3, 4], [5, 6]])
    return path


def keep(folder: Path) -> Run:
    """Open a run with what is kept of its parts, and keep what there is to know of them."""
    kept = Keep(folder)
    run = kept.opened()
    _ = run.digests, run.metrics()
    for one in (kept.footers, kept.critic_footers):
        assert one is not None
        one.save()
    return run


def document(run: Run) -> Any:
    """All that a run says of itself."""
    log = {key: [array.tolist() for array in points] for key, points in run.metrics().points.items()}
    segments = [(one.step, one.fragment, one.start, one.stop, one.tokens) for one in run._segments]
    parts = [_part(one.part, one.group) for one in run._fragments]  # type: ignore[attr-defined]
    return run.columns, run.facts, dict(run.digests), log, dict(run.recorded_in), segments, parts


def _part(part: Part, group: int) -> Any:
    members = (
        "folder", "name", "rows", "tokens", "steps", "completes", "attempt", "columns", "unknown", "tokens_version", "tables"
    )  # fmt: skip
    return {name: getattr(part, name) for name in members}, group


def test_a_run_that_is_opened_again_reads_no_footer(folder: Path, reads: list[str]) -> None:
    first = document(keep(folder))
    assert len(reads) > 5
    reads.clear()
    assert document(keep(folder)) == first == document(open_run(folder))
    reads.clear()
    write(RunWriter(folder, INFO), [[7]])
    assert document(keep(folder)) == document(open_run(folder))
    reads.clear()
    keep(folder)
    assert not reads


def test_only_what_is_new_is_read(folder: Path, reads: list[str]) -> None:
    keep(folder)
    write(RunWriter(folder, INFO), [[7, 8]])
    reads.clear()
    run = keep(folder)
    assert set(reads) == {"sequences-s2-r0-0.parquet", "metrics-s2-r0-0.parquet"}
    assert document(run) == document(open_run(folder))


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_a_part_that_changed_is_read_again(
    folder: Path, change: str, settled: bool, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_index, "FRESH_SECONDS", 0.0 if settled else 1e6)
    keep(folder)
    changed(folder, change)
    reads.clear()
    run = keep(folder)
    assert all("s1-r0-1" in name or (change == "metrics" and name.startswith("metrics")) for name in reads), reads
    assert document(run) == document(open_run(folder))
    assert document(keep(folder)) == document(run)


def changed(folder: Path, change: str) -> None:
    """Change the second part."""
    tokens, sequences, metrics = (folder / f"{table}-s1-r0-1.parquet" for table in ("tokens", "sequences", "metrics"))
    other = folder.with_name("other")
    if change == "touched":
        os.utime(tokens)
    elif change in {"replaced", "metrics"}:
        write(RunWriter(other, INFO), [[1, 2], [3, 9], [5, 6]], seed=5)
        for path in (tokens, sequences) if change == "replaced" else (metrics,):
            when = path.stat()
            shutil.copy(other / path.name, path)
            os.utime(path, ns=(when.st_atime_ns, when.st_mtime_ns))
    elif change == "torn":
        tokens.write_bytes(tokens.read_bytes()[:-7])
    elif change == "gone":
        tokens.unlink()
    elif change == "orphaned":
        sequences.unlink()
    else:
        name = parse_part(sequences.name)
        assert name is not None
        thin_part(folder, name, {1, 2}.__contains__)


def test_of_a_time_that_may_hide_a_change_the_last_bytes_tell(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_index, "_is_fresh", lambda _: True)
    same = part_index.signature_of
    monkeypatch.setattr(part_index, "signature_of", lambda path, names: tuple(one % 1 for one in same(path, names)))
    keep(folder)
    changed(folder, "replaced")
    changed_log = folder / "metrics-s1-r0-1.parquet"
    shutil.copy(folder.with_name("other") / changed_log.name, changed_log)
    assert document(keep(folder)) == document(open_run(folder))


@pytest.mark.parametrize("damage", ["cut", "byte", "nonsense", "empty"])
def test_an_index_that_is_damaged_is_made_anew(folder: Path, damage: str, reads: list[str]) -> None:
    first = document(keep(folder))
    path = folder / SHEET
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes({"cut": bytes(data[:-9]), "byte": bytes(data), "nonsense": b"nonsense", "empty": b""}[damage])
    reads.clear()
    kept = Keep(folder)
    assert document(kept.opened()) == first
    assert len(reads) > 5
    assert any("damaged" in note for note in kept.notes)
    keep(folder)
    reads.clear()
    keep(folder)
    assert not reads


def test_an_index_of_another_version_is_not_used(folder: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sheet, "FORMAT", sheet.FORMAT + 1)
        first = document(keep(folder))
    newer = (folder / SHEET).read_bytes()
    reads.clear()
    assert document(keep(folder)) == first
    assert len(reads) > 5
    assert (folder / SHEET).read_bytes() == newer
    (folder / SHEET).unlink()
    with monkeypatch.context() as patch:
        patch.setattr(footers, "SCHEMA_VERSION", 0)
        keep(folder)
    reads.clear()
    assert document(keep(folder)) == first
    assert len(reads) > 5


def test_where_nothing_is_kept_everything_is_read(folder: Path, reads: list[str]) -> None:
    keep(folder)
    reads.clear()
    open_run(folder)
    assert reads
    reads.clear()
    Keep(folder, verify=True).opened()
    assert reads


def test_a_folder_that_was_copied_is_read_anew_and_its_states_hold(folder: Path, tmp_path: Path) -> None:
    first = told(check(folder, keep=True))
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    run = keep(copy)
    assert document(run) == document(open_run(copy))
    assert {item.part.folder for item in run._fragments} == {copy}  # type: ignore[attr-defined]
    assert told(check(copy, keep=True))["series"] == first["series"]


@pytest.mark.parametrize("seed", range(12))
def test_a_run_that_grows_is_at_every_moment_what_a_fresh_reading_says(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    folder = tmp_path / "run"
    writers = [RunWriter(folder, INFO, rank=0)]
    if seed % 3:
        writers.append(RunWriter(folder, INFO, rank=1, session=writers[0].session))
    at = [0 for _ in writers]
    growing = Growing(folder)
    for _ in range(14):
        for _ in range(int(rng.integers(1, 4))):
            rank = int(rng.integers(len(writers)))
            if seed % 4 == 3 and rng.random() < 0.1:
                writers, at = [RunWriter(folder, INFO)], [max(0, min(at) - 2)]
                rank = 0
            at[rank] += 1
            step = at[rank]
            writers[rank].write_part(rows(step, rank=rank), completes=[step])
        assert seen(growing) == seen(Growing(folder))


def seen(growing: Growing) -> Any:
    """What a run that grows says now, or why it says nothing."""
    growing.refresh()
    try:
        return document(growing.run())
    except NothingToJudgeError as error:
        return str(error)
