"""Runs ``rl-doctor check`` over a run that is being recorded, in a process of its own and of low priority."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any, Final

from rl_doctor.collectors.gently import started

_SECONDS: Final = 300.0


class CheckProcess:
    """One check; it is never waited for.

    Args:
        arguments: of ``rl-doctor check``, without the format of its output.
        niceness: from 0 for a priority like the training's to 19 for the lowest, which a busy machine may not get to for long.

    Raises:
        OSError: the process cannot be started.
    """

    def __init__(self, arguments: Sequence[str], niceness: int = 19) -> None:
        command = [sys.executable, "-m", "rl_doctor", "check", *arguments, "--output-format", "json"]
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - they live as long as the process
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._deadline = time.monotonic() + _SECONDS
        self._late = False
        try:
            self._process = started(command, niceness, stdout=self._output, stderr=self._said)
        except OSError:
            self._close()
            raise

    @property
    def running(self) -> bool:
        """Whether it is still at work; one that takes minutes is ended."""
        if self._process.poll() is not None:
            return False
        if time.monotonic() > self._deadline:
            self._late = True
            self._end()
            return False
        return True

    def result(self) -> tuple[int, Mapping[str, Any]]:
        """The exit code and the report of a check that has ended; to be asked once.

        Raises:
            ValueError: there is no report; says why.
            TypeError: what it printed is no report.
        """
        try:
            if self._late:
                raise ValueError(f"not done after {_SECONDS:.0f} s")
            self._output.seek(0)
            try:
                document = json.loads(self._output.read())
            except ValueError:
                self._said.seek(0)
                lines = self._said.read().decode(errors="replace").split("\n")
                why = next((line.strip() for line in reversed(lines) if line.strip()), "")
                raise ValueError(why or f"exit code {self._process.returncode}") from None
            if not isinstance(document, Mapping):
                raise TypeError("its report has another form")
            return int(self._process.returncode), document
        finally:
            self._close()

    def stop(self) -> None:
        """End it."""
        self._end()
        self._close()

    def _end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _close(self) -> None:
        self._output.close()
        self._said.close()
