"""Keeps the states of a run as it is now, for what opens it later: ``python -m rl_doctor.live.keep RUN``.

A recorder starts this beside the training. It prints nothing: whatever is wrong with the run, its check will say.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from rl_doctor.errors import DoctorError
from rl_doctor.live.followed import Followed


def keep(path: Path) -> None:
    """Compute every metric of the complete steps of a run that is not kept yet, and keep it."""
    followed = Followed(path)
    with suppress(DoctorError):
        followed.refresh()
        followed.close()


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
