"""The command on a terminal and in a pipe."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.bad_input import rows, write


def on_terminal(arguments: list[str], **variables: str) -> tuple[int, str]:
    """Run ``rl-doctor`` with its output on a terminal; returns its exit code and what the terminal got."""
    mine, theirs = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key not in {"NO_COLOR", "COLUMNS", "TERM"}}
    process = subprocess.Popen(
        [sys.executable, "-m", "rl_doctor", *arguments],
        stdout=theirs,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment | {"TERM": "xterm", "COLUMNS": "90"} | variables,
    )
    os.close(theirs)
    parts: list[bytes] = []
    while True:
        try:
            part = os.read(mine, 65536)
        except OSError:  # the other side was closed
            break
        if not part:
            break
        parts.append(part)
    os.close(mine)
    return process.wait(120), b"".join(parts).decode()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write(tmp_path_factory.mktemp("terminal") / "run.parquet", rows()))


def test_colour_on_a_terminal_unless_asked_not_to(run: str) -> None:
    code, shown = on_terminal(["check", run])
    assert code == 0
    assert "\x1b[1m" in shown
    code, shown = on_terminal(["check", run], NO_COLOR="1")
    assert code == 0
    assert "\x1b" not in shown
    assert max(map(len, shown.splitlines())) <= 90


def test_explain_is_laid_out_on_a_terminal(run: str) -> None:
    del run
    code, shown = on_terminal(["explain", "kl-spike"], NO_COLOR="1")
    assert code == 0
    assert "# RLD203" not in shown
    assert "RLD203 kl-spike" in shown


def test_parquet_is_not_written_to_a_terminal(run: str) -> None:
    assert on_terminal(["metrics", run, "--output-format", "parquet"]) == (2, "")


def test_ascii_where_the_terminal_knows_nothing_else(run: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rl_doctor", "check", run],
        capture_output=True,
        check=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        timeout=120,
    )
    assert b"trainer unknown - algorithm unknown - steps 0-39" in done.stdout
    assert done.stdout.isascii()


def test_a_closed_pipe_changes_neither_output_nor_exit_code(run: str, tmp_path: Path) -> None:
    missing = str(tmp_path / "no.parquet")
    line = f'"{sys.executable}" -m rl_doctor check "{run}" "{missing}" | true; exit "${{PIPESTATUS[0]}}"'
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [f"rl-doctor: error: {missing}: no such file or folder"]
