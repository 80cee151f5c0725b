"""Encodings, widths, colours, pipes and files."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from rl_doctor.cli import output
from rl_doctor.errors import UsageError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_text_is_kept_where_the_encoding_holds_it() -> None:
    assert output.encodable("a · b 训", "utf-8") == "a · b 训"
    assert output.encodable("a · b", "latin-1") == "a · b"


def test_text_becomes_ascii_where_it_must() -> None:
    assert output.encodable("a · b → c ≤ 训", "ascii") == "a - b -> c <= \\u8bad"
    assert output.encodable("x", None) == "x"


def test_colour_is_for_terminals_that_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert output.colour(Terminal())
    assert not output.colour(io.StringIO())
    monkeypatch.setenv("TERM", "dumb")
    assert not output.colour(Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not output.colour(Terminal())


@pytest.mark.parametrize(("columns", "piped", "terminal"), [("70", 70, 70), ("300", 300, 120), ("10", 40, 40), ("x", 100, 100)])
def test_width(monkeypatch: pytest.MonkeyPatch, columns: str, piped: int, terminal: int) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert output.width(io.StringIO()) == piped
    if columns != "x":
        assert output.width(Terminal()) == terminal


def test_a_pipe_without_columns_is_100_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert output.width(io.StringIO()) == 100


def test_errors_are_one_line_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    output.complain("a\nb\x1b[31m\tc")
    assert capsys.readouterr().err == "rl-doctor: error: a b\\x1b[31m c\n"


def test_files_are_looked_at_before_the_work(tmp_path: Path) -> None:
    assert output.writable(tmp_path / "new.json") == tmp_path / "new.json"
    with pytest.raises(UsageError, match="folder does not exist"):
        output.writable(tmp_path / "no" / "new.json")
    with pytest.raises(UsageError, match="it is a folder"):
        output.writable(tmp_path)


def test_a_file_that_cannot_be_written_is_one_line() -> None:
    with pytest.raises(UsageError, match=r"/dev/full: cannot write: No space left"):
        output.write_file(Path("/dev/full"), "x" * 100_000)


def test_a_reader_that_stops_is_no_error() -> None:
    script = "import sys; from rl_doctor.cli.output import emit; emit('x' * 10_000_000); emit('more'); sys.exit(3)"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 3
    assert errors == b""


@pytest.mark.parametrize(
    ("called", "on_path", "shown"),
    [
        (".venv/bin/rl-doctor", None, ".venv/bin/rl-doctor"),
        ("/x/bin/rl-doctor", "/x/bin/rl-doctor", "rl-doctor"),
        ("/x/rl_doctor/__main__.py", None, "python -m rl_doctor"),
    ],
)
def test_hints_can_be_copied(monkeypatch: pytest.MonkeyPatch, called: str, on_path: str | None, shown: str) -> None:
    monkeypatch.setattr(sys, "argv", [called])
    monkeypatch.setattr("shutil.which", lambda _: on_path)
    assert output.command_line() == shown
