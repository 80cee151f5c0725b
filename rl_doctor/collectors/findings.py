"""Asks rl-doctor, in a process of its own and of low priority, which steps of a run that is being recorded have findings."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Final

from rl_doctor.store.thinning import Spans

_SECONDS: Final = 300.0
_SEVERITIES: Final = ("error", "warning")


class FindingsCheck:
    """One check of a run folder at a time; it is never waited for.

    Args:
        tell: logs a line, once.
    """

    def __init__(self, tell: Callable[[str], object]) -> None:
        self._tell = tell
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._deadline = 0.0
        self._taken = True

    def start(self, folder: Path) -> None:
        """Start a check of a run folder, unless one runs or its result was not taken yet."""
        if not self._taken:
            return
        self._taken = False
        gently = [nice, "-n", "19"] if (nice := shutil.which("nice")) else []
        command = [sys.executable, "-m", "rl_doctor", "check", str(folder), "--output-format", "json", "--fail-on", "never"]
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [*gently, *command],
                stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.DEVNULL, env=environment,
            )  # fmt: skip
        except OSError as error:
            self._failed(str(error))
        self._deadline = time.monotonic() + _SECONDS

    @property
    def running(self) -> bool:
        """Whether its result may still come."""
        if self._process is None or self._process.poll() is not None:
            return False
        if time.monotonic() > self._deadline:
            self._failed(f"not done after {_SECONDS:.0f} s")
            self.stop()
            return False
        return True

    def take(self) -> Spans:
        """Steps that warnings and errors of the finished check rest on, errors first; none where there is none, which is said."""
        if self.running:
            return ()
        self._taken = True
        process, output = self._process, self._output
        self._process = self._output = None
        if process is None or output is None:
            return ()
        with output:
            output.seek(0)
            try:
                return spans_of_findings(json.loads(output.read()))
            except (ValueError, KeyError, TypeError):
                self._failed(f"exit code {process.returncode}")
                return ()

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._output is not None:
            self._output.close()
            self._output = None

    def _failed(self, why: str) -> None:
        self._tell(
            f"could not look for findings before thinning ({why}): only a regular subset of the old steps keeps its tokens"
        )


def spans_of_findings(document: Mapping[str, Any]) -> Spans:
    """First and last step of each piece of evidence of errors, then of warnings, in a report as JSON."""
    found = [finding for result in document["results"] for finding in result["findings"]]
    spans = [
        (int(item["first_step"]), int(item["last_step"]))
        for severity in _SEVERITIES
        for finding in found
        if finding["severity"] == severity
        for item in finding["evidence"]
        if item["first_step"] is not None and item["last_step"] is not None
    ]
    return tuple(dict.fromkeys(spans))
