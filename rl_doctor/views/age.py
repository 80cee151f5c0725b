"""Whether a run still grows, and when it was last written to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from rl_doctor.views.opened import Opened

Condition = Literal["live", "stalled", "complete", "detached", "unknown", "gone"]

_FRESH_SECONDS: Final = 600.0
"""What was written to so recently may still grow, whatever it says of itself."""


@dataclass(frozen=True, slots=True)
class Age:
    """How fresh what is shown is.

    Attributes:
        condition: live (it says that it is running), stalled (so it says, but nothing comes), complete, detached (recording it
            was given up), unknown (a log, which does not say), or gone (what was read is not there any more).
        quiet: seconds since it was last written to.
        growing: whether it is worth looking often for more.
        last_step: last step that is known of; None if none is.
    """

    condition: Condition
    quiet: float
    growing: bool
    last_step: int | None


def age(opened: Opened, now: float, stalled: float | None) -> Age:
    """The age of what is known of a run.

    Args:
        opened: the run.
        now: Unix time.
        stalled: seconds without a sign of life, where that is too long.
    """
    seconds = max(now - opened.written, 0.0)
    told = opened.run.info.status
    condition: Condition = "stalled" if stalled is not None else _CONDITIONS.get(told or "", "unknown")
    if gone(opened.path):
        condition = "gone"
    growing = condition in {"live", "stalled", "gone"} or (condition == "unknown" and seconds < _FRESH_SECONDS)
    return Age(condition, seconds, growing, opened.report.run.last_step)


_CONDITIONS: Final[dict[str, Condition]] = {"running": "live", "complete": "complete", "detached": "detached"}


def gone(path: Path) -> bool:
    """Whether a run that was read is not there any more; ``FILE#RUN`` is one of a file, an address is never gone."""
    file = path.with_name(path.name.partition("#")[0] or path.name)
    return not (path.parts[0].endswith(":") or path.exists() or file.exists())
