"""Machine code of the loops is made once and kept; what is damaged is made again, and code that needs numba is not kept."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba", reason="the compiled passes need numba: pip install 'rl-doctor[fast]'")

from rl_doctor.analyzer import compiled, machine
from rl_doctor.analyzer.stretches import Stretches

PROGRAM = """
import sys
import numpy as np
from rl_doctor.analyzer import compiled
from rl_doctor.analyzer.stretches import Stretches
print(compiled.column(np.arange(5, dtype=np.float32), Stretches.whole(np.array([0, 2, 5]))).tolist(), "numba" in sys.modules)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    machine.loop.cache_clear()
    yield tmp_path
    machine.loop.cache_clear()


def sums() -> list[float]:
    return compiled.column(np.arange(5, dtype=np.float32), Stretches.whole(np.array([0, 2, 5]))).tolist()


def test_a_later_process_needs_no_numba(folder: Path) -> None:
    told = [subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert told == ["[1.0, 9.0] True\n", "[1.0, 9.0] False\n"]
    assert [file.suffix for file in folder.iterdir()] == [".code"]


@pytest.mark.parametrize("damage", [lambda code: code[:-7], lambda _: b"", lambda code: code[:20] + b"\0" + code[21:]])
def test_what_is_damaged_is_made_again(folder: Path, damage: object) -> None:
    assert sums() == [1.0, 9.0]
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))  # type: ignore[operator]
    machine.loop.cache_clear()
    assert sums() == [1.0, 9.0]
    assert file.read_bytes()[:8] == machine.source_hash(file.read_bytes()[8:])


def test_code_that_calls_something_outside_is_left_to_numba(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "%y = call double @other(double %x)\n  ret double %y"
    outside = f"declare double @other(double)\ndefine double @made(double %x) {{\n  {body}\n}}\n"
    assert machine._alone(outside, "made") is None
    monkeypatch.setattr(machine, "_alone", lambda *_: None)
    assert sums() == [1.0, 9.0]
    assert not list(folder.iterdir())


def test_where_nothing_can_be_kept_it_is_made_every_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = tmp_path / "file"
    nowhere.write_text("")
    monkeypatch.setattr(machine, "_folders", lambda: iter([nowhere]))
    machine.loop.cache_clear()
    assert sums() == [1.0, 9.0]
    machine.loop.cache_clear()
