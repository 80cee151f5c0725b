"""The progress bar: only for a person, and only where it takes long."""

from __future__ import annotations

import io
import sys

import pytest

from rl_doctor.cli import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "patience", "drawn"), [(Terminal(), 0.0, True), (Terminal(), 60.0, False), (io.StringIO(), 0.0, False)]
)
def test_when_a_bar_is_drawn(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, patience: float, *, drawn: bool) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "PATIENCE", patience)
    monkeypatch.setenv("TERM", "xterm")
    with progress.Progress("runs/a [b]") as told:
        for done in (1, 5, 10):
            told(done, 10)
    assert ("runs/a [b]" in stream.getvalue()) is drawn
    assert bool(stream.getvalue()) is drawn


def test_the_bar_goes_when_the_work_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setenv("TERM", "xterm")

    def work() -> None:
        with progress.Progress("x") as told:
            told(1, 2)
            raise ValueError("torn")

    with pytest.raises(ValueError, match="torn"):
        work()
    assert stream.getvalue().rstrip().endswith("\x1b[2K")
