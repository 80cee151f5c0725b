"""Where a verl process records to, and the recorders that it has open."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from rl_doctor.collectors import plugin
from rl_doctor.collectors.guard import Guard
from rl_doctor.collectors.recorder import Recorder
from rl_doctor.schema import RunInfo

BACKEND: Final = "rl_doctor"
"""Name in ``trainer.logger`` that asks for a recording."""
ENTRY: Final = "rl_doctor"
"""Name of the entry with which the driver tells the workers where they record to."""
_SESSION_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Entry:
    """What the driver tells the workers with a batch.

    Attributes:
        path: run folder.
        session: session of the driver's recorder in it.
        step: the step, as the trainer logs it.
        call: how many updates the step has made before, from 0.
        last: whether the step makes no more updates.
        options: further arguments of ``Recorder``.
        several: ``uid_session`` -> index, prompt length and response length of its sequences, where a session has several.
        padding: ``uid_session`` of rows that only fill the batch.
    """

    path: str
    session: int
    step: int
    call: int
    last: bool
    options: Mapping[str, Any]
    several: Mapping[str, list[tuple[int, int, int]]]
    padding: tuple[str, ...]

    def to_text(self) -> str:
        """As text, which costs nothing to copy: verl copies a batch's entries for each of its chunks."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def from_text(cls, text: str) -> Entry:
        """From ``to_text``."""
        return cls(**json.loads(text))


def run_path(config: Mapping[str, Any] | None) -> str | None:
    """Absolute path of the run folder that the environment or verl's configuration asks for; None where neither does."""
    path = plugin.run_path()
    trainer = (config or {}).get("trainer") or {}
    if not path and BACKEND in _names(trainer.get("logger")):
        path = str((Path(str(trainer.get("default_local_dir") or ".")) / BACKEND).absolute())
    return path


def _names(given: Any) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given or ())


@functools.cache
def process_guard() -> Guard:
    """The guard of what happens in this process outside of any recorder."""
    return Guard("verl")


@functools.cache
def worker_recorder(path: str, session: int, rank: int, options: str) -> Recorder:
    """The recorder of a worker process whose driver records too; its writer's rank is one more than its data-parallel rank."""
    return Recorder(path, rank=rank + 1, session=session, **json.loads(options))


def process_recorder(path: str, info: RunInfo, rank: int, ranks: int) -> Recorder:
    """A recorder of a loop without a driver, in each of its processes: those with a higher rank learn the session from rank 0.

    Rank 0 tells it through the store by which the processes found each other. Another rank waits for it there, as it would
    wait for rank 0 in the update that begins.

    Args:
        path: run folder.
        info: the run's description.
        rank: data-parallel rank of this process.
        ranks: number of them.
    """
    options = plugin.recorder_options()
    if ranks == 1:
        return Recorder(path, info, **options)
    store = sys.modules["torch"].distributed.distributed_c10d._get_default_store()  # noqa: SLF001
    key = f"rl_doctor {path}"
    if rank == 0:
        recorder = Recorder(path, info, **options)
        store.set(key, str(recorder.session))
        return recorder
    store.wait([key], timedelta(seconds=_SESSION_SECONDS))
    session = store.get(key).decode()
    return Recorder(path, info, rank=rank, session=int(session) if session.isdigit() else None, **options)
