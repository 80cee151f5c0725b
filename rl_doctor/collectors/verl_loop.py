"""Loops of verl's workers without its driver: one process, or one per data-parallel rank, that calls ``TrainingWorker``."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rl_doctor.collectors.recorder import Recorder
from rl_doctor.collectors.verl_config import Model, describe
from rl_doctor.collectors.verl_rows import plain
from rl_doctor.collectors.verl_run import process_recorder, run_path
from rl_doctor.store.layout import CRITIC_NAME

_EARLY_LOGS: Final = 1000
"""Logs that are kept until the first update opens the run."""


class Loop:
    """What is known of such a loop in this process: its recorders, and the step that it is in.

    The step is one more than the one that ``Tracking`` logged last in this process; where nothing tracks, updates are counted. A
    batch may also say it, as ``global_steps``.
    """

    def __init__(self) -> None:
        self.config: Mapping[str, Any] | None = None
        self.tracked = False
        self._logged = 0
        self._made = {False: 0, True: 0}
        self._in_step = {False: 0, True: 0}
        self._recorders: dict[bool, Recorder] = {}
        self._early: deque[tuple[int, Mapping[str, Any]]] = deque(maxlen=_EARLY_LOGS)

    def recorder(self, worker: Any, config: Any, data: Any, *, critic: bool) -> tuple[Recorder | None, int, int]:
        """The recorder of a worker, the step that it is in, and how many updates it has made in it before.

        Args:
            worker: the ``TrainingWorker``.
            config: its ``ActorConfig`` or ``CriticConfig``, as far as its loss was bound to one.
            data: the batch.
            critic: whether it trains the critic.
        """
        path = run_path(self.config)
        if path is None:
            return None, 0, 0
        if critic not in self._recorders:
            self._recorders[critic] = self._open(path, worker, config, data, critic=critic)
        given = plain(data, "global_steps")
        if isinstance(given, int):
            return self._recorders[critic], given, 0
        if self.tracked:
            return self._recorders[critic], self._logged + 1, self._in_step[critic]
        return self._recorders[critic], self._made[critic] + 1, 0

    def _open(self, path: str, worker: Any, config: Any, data: Any, *, critic: bool) -> Recorder:
        ranks = int(worker.engine.get_data_parallel_size())
        model = Model.of(getattr(worker.model_config, "hf_config", None), getattr(worker.model_config, "tokenizer", None))
        own = {"critic": config} if critic else {"actor": config}
        rollout = {"temperature": plain(data, "temperature")}
        settings = {"critic": own.get("critic"), "actor_rollout_ref": {"actor": own.get("actor"), "rollout": rollout}}
        info = describe(settings | dict(self.config or {}), model, ranks, tuple(range(ranks)), critic=critic)
        folder = str(Path(path) / CRITIC_NAME) if critic else path
        recorder = process_recorder(folder, info, int(worker.engine.get_data_parallel_rank()), ranks)
        if not critic:
            while self._early:
                recorder.log_metrics(*self._early.popleft())
        return recorder

    def update_made(self, *, critic: bool) -> None:
        """An update was made."""
        self._made[critic] += 1
        self._in_step[critic] += 1

    def log(self, data: Mapping[str, Any], step: int) -> None:
        """Record what ``Tracking`` logs; the step ends with it."""
        self._logged = step
        self._in_step = {False: 0, True: 0}
        main = self._recorders.get(False)
        if main is None:
            self._early.append((step, dict(data)))
        else:
            main.log_metrics(step, data)
        for recorder in self._recorders.values():
            recorder.end_step(step)


LOOP: Final = Loop()
"""The loop of this process."""
