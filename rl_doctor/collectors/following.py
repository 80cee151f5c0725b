"""Stops all ranks of a ``torch.distributed`` training after the same step, without making them wait for each other."""

from __future__ import annotations

import sys
from typing import Any, Final

from rl_doctor.collectors.guard import one_line
from rl_doctor.collectors.recorder import Recorder

_GO_ON: Final = -1


class Followers:
    """Rank 0 decides, and the others learn of it through the store by which the processes found each other.

    Rank 0 decides at the end of a step that the next one is the last. Another rank cannot end that next step before rank 0 has
    taken part in it, so that all of them know by then.

    Args:
        recorder: of this process.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._last: int | None = None
        self._rank, self._store = _processes()
        self._key = "" if self._store is None else f"rl_doctor stop {recorder.guard.path} {recorder.session}"

    @property
    def promised(self) -> bool:
        """Whether the ranks have been told to stop, so that this one has to."""
        return self._last is not None and self._last != _GO_ON

    def stops(self, step: int) -> bool:
        """Whether the training is to end with this step, which has been made; to be asked at the end of each step."""
        if self._last is None:
            try:
                self._learn(step)
            except Exception as error:  # noqa: BLE001 - a store that is gone is no reason to stop
                self._last = _GO_ON
                self._recorder.guard.tell(f"cannot agree with the other ranks on stopping ({one_line(error)}): training goes on")
        return self._last is not None and self._last != _GO_ON and step >= self._last

    def _learn(self, step: int) -> None:
        if self._store is not None and self._rank != 0:
            if self._store.check([self._key]):
                self._last = int(self._store.get(self._key))
            return
        if self._recorder.should_stop:
            self._last = step if self._store is None else step + 1
        elif self._recorder.stop_decided:
            self._last = _GO_ON
        if self._last is not None and self._store is not None:
            self._store.set(self._key, str(self._last))
            self._store.get(self._key)  # answered after what was set has arrived


def _processes() -> tuple[int, Any]:
    """This process's rank, and the store of its process group; None where there is one process only."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 0, None
    if int(distributed.get_world_size()) == 1:
        return 0, None
    return int(distributed.get_rank()), distributed.distributed_c10d._get_default_store()  # noqa: SLF001
