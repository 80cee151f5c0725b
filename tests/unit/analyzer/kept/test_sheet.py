"""The form of a file of states: what was written comes back, and nothing else is taken for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rl_doctor.analyzer.kept import sheet as module
from rl_doctor.analyzer.kept.sheet import DamagedError, NewerError, Sheet, read, write


def small() -> Sheet:
    return Sheet(
        {"a": [1, None, "\u00e9"]}, {"x": np.array([1.5, -np.inf, np.nan]), "y": np.array([True, False]), "z": np.arange(0)}
    )


def test_what_was_packed_comes_back_to_the_bit() -> None:
    found = Sheet.unpack(small().pack())
    assert found.document == small().document
    assert {name: (array.dtype, array.tobytes()) for name, array in found.arrays.items()} == {
        name: (array.dtype, array.tobytes()) for name, array in small().arrays.items()
    }


def test_any_changed_byte_is_noticed() -> None:
    data = small().pack()
    for at in range(len(data)):
        for mask in (0x01, 0xFF):
            changed = bytearray(data)
            changed[at] ^= mask
            with pytest.raises(DamagedError):
                Sheet.unpack(bytes(changed))


def test_any_cut_is_noticed() -> None:
    data = small().pack()
    for size in range(len(data)):
        with pytest.raises(DamagedError):
            Sheet.unpack(data[:size])
    with pytest.raises(DamagedError):
        Sheet.unpack(data + b"\0")


def test_a_newer_form_is_told_from_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, "FORMAT", module.FORMAT + 1)
        data = small().pack()
    with pytest.raises(NewerError):
        Sheet.unpack(data)


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.states", small())
    before = (tmp_path / "a.states").read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path / "a.states", Sheet({"b": 2}))
    assert [path.name for path in tmp_path.iterdir()] == ["a.states"]
    assert (tmp_path / "a.states").read_bytes() == before
    assert read(tmp_path / "none.states") is None
