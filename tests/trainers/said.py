"""What a process said of rl-doctor itself: paths of a checkout or an environment may have the name in them too."""

from __future__ import annotations

import re

_OURS = re.compile(r"\brl-doctor[ ,:]")


def of_ours(output: str) -> list[str]:
    """The lines that the recording wrote into the output of a training."""
    return [line for line in output.splitlines() if _OURS.search(line)]
