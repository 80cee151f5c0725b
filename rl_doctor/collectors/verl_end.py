"""The end of a training: Ray ends the workers' processes without a word, so the driver waits until they have written."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rl_doctor.collectors.written import has_written

END_SECONDS: Final = 20.0
"""How long the end of a training waits at most; a part is due two seconds after the one before."""
CUT_SECONDS: Final = 3.0
"""How long one waits that was cut short: a worker may be gone, but the last steps tell why."""
_POLL_SECONDS: Final = 0.1


def wait_until_written(folder: Path, session: int, ranks: Iterable[int], step: int, seconds: float) -> tuple[int, ...]:
    """Wait until writers have written all that they know of a step.

    Args:
        folder: the run folder.
        session: session of the writers.
        ranks: their ranks.
        step: the step.
        seconds: how long to wait at most.

    Returns:
        Ranks that have not written it by then; those that have said that they stopped are not waited for.
    """
    end = time.monotonic() + seconds
    left = tuple(ranks)
    while left := tuple(rank for rank in left if not has_written(folder, session, rank, step)):
        if time.monotonic() > end:
            break
        time.sleep(_POLL_SECONDS)
    return left
