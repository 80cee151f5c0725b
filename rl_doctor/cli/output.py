"""Writing to the terminal, pipes and files: encodings, widths, colours, and readers that stop reading."""

# ruff: noqa: RUF001 - signs that look like ASCII ones are what the table is about

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NoReturn, TextIO

from rl_doctor.errors import UsageError
from rl_doctor.report.wording import printable

PIPE_WIDTH: Final = 100
_MAX_WIDTH: Final = 120
_ASCII: Final = str.maketrans({
    "·": "-", "–": "-", "—": "-", "−": "-", "→": "->", "≤": "<=", "≥": ">=", "×": "x", "…": "...", "“": '"', "”": '"', "‘": "'",
    "’": "'", "Δ": "d", "²": "^2", "√": "sqrt",
})  # fmt: skip


def emit(content: str | bytes) -> None:
    """Write to standard output, text in the characters that it can take; a reader that stopped reading is no error."""
    try:
        if isinstance(content, bytes):
            sys.stdout.buffer.write(content)
        else:
            sys.stdout.write(encodable(content, sys.stdout.encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        silence_stdout()
    except OSError as error:
        raise _refused(error) from error


def stand_in_for_closed() -> None:
    """Give a process that was started without standard output or error (``>&-``) streams in their place.

    Output then refuses what is written to it, as a full disk does, and errors go nowhere. It also keeps files that are opened
    later from being handed these descriptors, which native libraries write to.
    """
    for number, name, flags in ((1, "stdout", os.O_RDONLY), (2, "stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, flags)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", closefd=False))


def check_stdout(probe: str = "") -> None:
    """Say so where standard output does not take what was written to it, by whatever part of the program.

    Args:
        probe: what to write first: an unbuffered stream shows only by it that it takes nothing.

    Raises:
        UsageError: it does not.
    """
    try:
        sys.stdout.write(probe)
        sys.stdout.flush()
    except BrokenPipeError:
        silence_stdout()
    except OSError as error:
        raise _refused(error) from error


def _refused(error: OSError) -> UsageError:
    silence_stdout()
    return UsageError(f"standard output: cannot write: {error.strerror or error}")


def encodable(text: str, encoding: str | None) -> str:
    """The text, with what the encoding cannot hold replaced: common signs by ASCII ones, others by their code."""
    encoding = encoding or "ascii"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_ASCII).encode(encoding, "backslashreplace").decode(encoding)
    return text


def silence_stdout() -> None:
    """Send what is still to be written to nowhere, so that closing a broken pipe at exit raises nothing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def command_line() -> str:
    """How this command was called, so that a hint can be copied: its path where the shell would not find it by its name."""
    called = Path(sys.argv[0])
    if called.parts[-2:] == ("rl_doctor", "__main__.py"):
        return "python -m rl_doctor"
    found = shutil.which("rl-doctor")
    return "rl-doctor" if found or called.name != "rl-doctor" else str(called)


def fail(message: str, code: int) -> NoReturn:
    """Print one line on standard error and exit."""
    complain(message)
    sys.exit(code)


def complain(message: str) -> None:
    """Print one line on standard error: what is wrong."""
    _say("error", message)


def remark(message: str) -> None:
    """Print one line on standard error: what is worth knowing, and changes nothing."""
    _say("note", message)


def _say(kind: str, message: str) -> None:
    line = printable(" ".join(message.split()))
    try:
        sys.stderr.write(encodable(f"rl-doctor: {kind}: {line}\n", sys.stderr.encoding))
        sys.stderr.flush()
    except BrokenPipeError:
        return


def width(stream: TextIO) -> int:
    """Columns to fill: those of the terminal up to 120, those of COLUMNS, or 100 in a pipe."""
    if is_terminal(stream):
        return max(40, min(shutil.get_terminal_size((PIPE_WIDTH, 24)).columns, _MAX_WIDTH))
    asked = os.environ.get("COLUMNS", "")
    return max(40, int(asked)) if asked.isdecimal() else PIPE_WIDTH


def colour(stream: TextIO) -> bool:
    """Whether to colour: only on a terminal that understands it, and never with NO_COLOR set."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def is_terminal(stream: TextIO) -> bool:
    """Whether a person reads the stream."""
    return not stream.closed and stream.isatty()


def writable(path: Path, read: Iterable[Path] = ()) -> Path:
    """The path, if a file can be put there; looked at before the work is done, not after it.

    Args:
        path: the file to write.
        read: runs that are read, and that it must not overwrite.

    Raises:
        UsageError: the folder does not exist, the path is a folder, or it belongs to a run that is read.
    """
    from rl_doctor.store.layout import keep_apart

    for run in read:
        keep_apart(path, run)
    if path.is_dir():
        raise UsageError(f"{path}: cannot write a file there: it is a folder")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path}: cannot write a file there: the folder does not exist")
    return path


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file, in UTF-8 if it is text.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        path.write_bytes(content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content)
    except OSError as error:
        raise UsageError(f"{path}: cannot write: {error.strerror or error}") from error
