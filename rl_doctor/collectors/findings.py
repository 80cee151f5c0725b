"""Asks rl-doctor, in a process of its own and of low priority, which steps of a run that is being recorded have findings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from rl_doctor.collectors.check_process import CheckProcess
from rl_doctor.store.thinning import Spans

_SEVERITIES: Final = ("error", "warning")


class FindingsCheck:
    """One check of a run folder at a time; it is never waited for.

    Args:
        tell: logs a line, once.
    """

    def __init__(self, tell: Callable[[str], object]) -> None:
        self._tell = tell
        self._process: CheckProcess | None = None

    def start(self, folder: Path) -> None:
        """Start a check of a run folder, unless one runs or its result was not taken yet."""
        if self._process is not None:
            return
        try:
            self._process = CheckProcess([str(folder), "--fail-on", "never"])
        except OSError as error:
            self._failed(str(error))

    @property
    def running(self) -> bool:
        """Whether its result may still come."""
        return self._process is not None and self._process.running

    def take(self) -> Spans:
        """Steps that warnings and errors of the finished check rest on, errors first; none where there is none, which is said."""
        if self._process is None or self._process.running:
            return ()
        process, self._process = self._process, None
        try:
            return spans_of_findings(process.result()[1])
        except (ValueError, KeyError, TypeError) as error:
            self._failed(str(error))
            return ()

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.stop()
            self._process = None

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
