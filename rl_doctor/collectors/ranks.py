"""One recorder per process of a distributed training, in one session of one run folder."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from os import PathLike
from typing import Any

from rl_doctor.collectors.recorder import Recorder


def open_ranks(path: str | PathLike[str], options: Mapping[str, Any]) -> Recorder:
    """A recorder for this process; the processes of a distributed run share the folder and the session.

    Rank 0 opens the run and tells the others its session. It tells them too if it failed, so that nobody waits in vain.
    """
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return Recorder(path, **options)
    rank = int(distributed.get_rank())
    recorder = Recorder(path, **options) if rank == 0 else None
    agreed = [None if recorder is None else recorder.session]
    distributed.broadcast_object_list(agreed, src=0)
    return recorder or Recorder(path, **{**options, "rank": rank, "session": agreed[0]})
