"""What becomes of sheets that are damaged, and of places that take none."""

from __future__ import annotations

from pathlib import Path

from rl_doctor.analyzer.kept.cupboard import SUFFIX, Cupboard
from rl_doctor.analyzer.kept.sheet import Sheet


def test_a_damaged_sheet_is_told_once_and_cleared_away_by_the_next_that_is_saved(tmp_path: Path) -> None:
    damaged = tmp_path / f"run2{SUFFIX}"
    Cupboard([tmp_path]).save("run2", Sheet({"a": 1}))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    cupboard = Cupboard([tmp_path])
    assert cupboard.load("run2", lambda sheet: sheet) is None
    assert cupboard.notes == [f"{damaged}: damaged; what it held is computed anew"]
    cupboard.save("run0", Sheet({"a": 1}))
    assert not damaged.exists()
    again = Cupboard([tmp_path])
    assert again.load("run2", lambda sheet: sheet) is None
    assert again.notes == []


def test_a_place_that_takes_nothing_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cupboard = Cupboard([tmp_path / "file" / "states"])
    for name in ("run0", "run1", "facts"):
        cupboard.save(name, Sheet({"a": 1}))
    (note,) = cupboard.notes
    assert note.startswith("states are not kept (")
