"""Hooks into verl's driver (0.9): its trainers tell the workers where to record to, its ``Tracking`` gives the metrics."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from rl_doctor.collectors import verl_end
from rl_doctor.collectors.guard import logger
from rl_doctor.collectors.plugin import recorder_options, without_stop, wrap
from rl_doctor.collectors.recorder import Recorder
from rl_doctor.collectors.verl_config import Model, at, describe
from rl_doctor.collectors.verl_loop import LOOP
from rl_doctor.collectors.verl_run import BACKEND, ENTRY, Entry, process_guard, run_path
from rl_doctor.store.layout import CRITIC_NAME


class Driver:
    """A trainer that records: its recorders, and what it has told the workers in this step.

    Args:
        path: run folder.
        trainer: verl's trainer.
        settings: its configuration as plain mappings.
    """

    def __init__(self, path: str, trainer: Any, settings: Mapping[str, Any]) -> None:
        self._path = path
        self._trainer = trainer
        self._settings = settings
        self._options = recorder_options()
        self._recorders: dict[bool, Recorder] = {}
        self._calls: Counter[tuple[bool, int]] = Counter()
        self._ranks: dict[bool, int] = {}
        self._ending: dict[bool, int] = {}
        self.recorder(critic=False)

    def recorder(self, *, critic: bool) -> Recorder:
        """The driver's recorder of the run, or of the critic's passes."""
        if critic not in self._recorders:
            group = getattr(self._trainer, "critic_wg" if critic else "actor_rollout_wg", None)
            ranks = _data_parallel_size(group, "train" if critic else "actor")
            model = Model.of(_model_config(self._trainer), getattr(self._trainer, "tokenizer", None))
            writing = None if ranks is None else tuple(range(ranks + 1))
            self._ranks[critic] = ranks or 0
            info = describe(self._settings, model, ranks, writing, critic=critic)
            folder = str(Path(self._path) / CRITIC_NAME) if critic else self._path
            self._recorders[critic] = Recorder(folder, info, **(without_stop(self._options) if critic else self._options))
        return self._recorders[critic]

    def entry(self, batch: Any, *, critic: bool) -> str:
        """What the workers are told with a batch; empty where the recording has ended."""
        recorder = self.recorder(critic=critic)
        if not recorder.recording or recorder.session is None:
            return ""
        step = int(self._trainer.global_steps)
        call = self._calls[critic, step]
        self._calls[critic, step] += 1
        last = call + 1 >= int(getattr(self._trainer, "parameter_sync_step", 1) or 1)
        if last:
            self._ending[critic] = step
        keys = [_split(key) for key in getattr(batch, "keys", ()) if isinstance(key, str)] if _is_meta(batch) else []
        tags = batch.tags if keys else []
        sizes = Counter(key for key, _ in keys)
        several: dict[str, list[tuple[int, int, int]]] = {}
        for (key, index), tag in zip(keys, tags, strict=True):
            if sizes[key] > 1:
                several.setdefault(key, []).append((index, int(tag.get("prompt_len", -1)), int(tag.get("response_len", -1))))
        return Entry(
            path=recorder.guard.path,
            session=recorder.session,
            step=step,
            call=call,
            last=last,
            options=without_stop(self._options) if critic else self._options,
            several=several,
            padding=tuple(key for (key, _), tag in zip(keys, tags, strict=True) if tag.get("is_padding")),
        ).to_text()

    def log(self, data: Mapping[str, Any], step: int) -> None:
        """Record what the trainer logs; the step ends with it."""
        self._recorders[False].log_metrics(step, data)
        for recorder in self._recorders.values():
            recorder.end_step(step)
        for key in [key for key in self._calls if key[1] < step]:
            del self._calls[key]
        if self._recorders[False].should_stop:
            self._end_with(step + 1)

    def _end_with(self, step: int) -> None:
        """Make a step the last one, after which the trainer saves and validates as it does at every end."""
        if step < int(getattr(self._trainer, "total_training_steps", step)):
            self._trainer.total_training_steps = step

    def close(self, status: str | None) -> None:
        """The training has ended; wait for what the workers have still to write.

        Args:
            status: final status of the run; None for a training that was cut short.
        """
        for critic, recorder in self._recorders.items():
            with recorder.guard("wait for the workers"):
                self._wait(recorder, critic=critic, cut=status is None)
            recorder.close(status)

    def _wait(self, recorder: Recorder, *, critic: bool, cut: bool) -> None:
        step = self._ending.get(critic)
        if step is None or not recorder.recording or recorder.session is None:
            return
        ranks, seconds = range(1, self._ranks[critic] + 1), verl_end.CUT_SECONDS if cut else verl_end.END_SECONDS
        for rank in verl_end.wait_until_written(Path(recorder.guard.path), recorder.session, ranks, step, seconds):
            logger.warning(
                "rl-doctor, recording %s: writer %d had not written step %d %.0f s after the end, it may be lost",
                recorder.guard.path, rank, step, seconds,
            )  # fmt: skip


_drivers: dict[int, Driver] = {}
"""Drivers of this process by the identity of their trainers; there is at most one at a time."""


def patch_tracking(module: ModuleType) -> None:
    """Let ``trainer.logger`` name the recorder, and record what is logged."""
    tracking = module.Tracking
    if BACKEND not in tracking.supported_backend:
        tracking.supported_backend = [*tracking.supported_backend, BACKEND]
    wrap(tracking, "__init__", _around_tracking)
    wrap(tracking, "log", _around_log)


def patch_trainer(module: ModuleType) -> None:
    """Wrap the methods of ``PPOTrainer`` (the default), and of whatever derives from it."""
    wrap(module.PPOTrainer, "fit", _around_fit)
    wrap(module.PPOTrainer, "_update_actor", functools.partial(_around_update, critic=False))
    wrap(module.PPOTrainer, "_update_critic", functools.partial(_around_update, critic=True))


def patch_ray_trainer(module: ModuleType) -> None:
    """Wrap the methods of ``RayPPOTrainer`` (``trainer.use_v1=False``), and of whatever derives from it."""
    wrap(module.RayPPOTrainer, "fit", _around_fit)
    wrap(module.RayPPOTrainer, "_update_actor", functools.partial(_around_update, critic=False))
    wrap(module.RayPPOTrainer, "_update_critic", functools.partial(_around_update, critic=True))


def _around_tracking(original: Callable[..., Any], tracking: Any, *args: Any, **kwargs: Any) -> Any:
    result = original(tracking, *args, **kwargs)
    with process_guard()("note the tracker"):
        config = kwargs.get("config", args[3] if len(args) > 3 else None)
        named = kwargs.get("default_backend", args[2] if len(args) > 2 else ())
        settings = dict(config) if isinstance(config, Mapping) else {}
        if named == BACKEND or (not isinstance(named, str) and BACKEND in named):
            settings["trainer"] = {**(at(settings, "trainer") or {}), "logger": [BACKEND]}
        LOOP.config = settings or None
        LOOP.tracked = True
    return result


def _around_log(original: Callable[..., Any], tracking: Any, data: Any, step: Any, *args: Any, **kwargs: Any) -> Any:
    result = original(tracking, data, step, *args, **kwargs)
    with process_guard()("record the log"):
        driver = next(iter(_drivers.values()), None)
        (LOOP if driver is None else driver).log(data, int(step))
    return result


def _around_fit(original: Callable[..., Any], trainer: Any, *args: Any, **kwargs: Any) -> Any:
    with process_guard()("open the run"):
        _driver(trainer)
    with _closing(trainer):
        return original(trainer, *args, **kwargs)


@contextmanager
def _closing(trainer: Any) -> Iterator[None]:
    status = None
    try:
        yield
        status = "complete"
    finally:
        with process_guard()("close the run"):
            driver = _drivers.pop(id(trainer), None)
            if driver is not None:
                driver.close(status)


def _driver(trainer: Any) -> Driver | None:
    if id(trainer) not in _drivers:
        settings = _settings(trainer.config)
        path = run_path(settings)
        if path is None:
            return None
        _drivers.clear()
        _drivers[id(trainer)] = Driver(path, trainer, settings)
    return _drivers[id(trainer)]


def _around_update(original: Callable[..., Any], trainer: Any, batch: Any, *args: Any, critic: bool, **kwargs: Any) -> Any:
    told, driver = None, None
    with process_guard()("open the run"):
        driver = _driver(trainer)
    if driver is not None:
        text = ""
        with driver.recorder(critic=critic).guard("tell the workers where to record to"):
            text = driver.entry(batch, critic=critic)
        with process_guard()("tell the workers where to record to"):
            told = batch.extra_info if _is_meta(batch) else batch.meta_info
            told[ENTRY] = text
    try:
        return original(trainer, batch, *args, **kwargs)
    finally:
        if told is not None:
            told.pop(ENTRY, None)


def _is_meta(batch: Any) -> bool:
    """Whether the batch is metadata of verl's transfer queue; else it holds the data."""
    return hasattr(batch, "extra_info") and hasattr(batch, "tags")


def _split(key: str) -> tuple[str, int]:
    """``uid_session`` and index of a key of the transfer queue."""
    name, _, index = key.rpartition("_")
    return (name, int(index)) if name and index.isdigit() else (key, 0)


def _settings(config: Any) -> Mapping[str, Any]:
    """A configuration as plain mappings; interpolations that cannot be resolved are left as they stand."""
    if type(config).__module__.partition(".")[0] != "omegaconf":
        return config if isinstance(config, Mapping) else {}
    to_container = import_module("omegaconf").OmegaConf.to_container
    try:
        resolved = to_container(config, resolve=True)
    except Exception:  # noqa: BLE001 - a setting that nobody uses may refer to one that is missing
        resolved = to_container(config, resolve=False)
    return resolved if isinstance(resolved, Mapping) else {}


def _data_parallel_size(group: Any, mesh: str) -> int | None:
    """Data-parallel size of a worker group, as verl itself asks for it."""
    known = getattr(group, "_dispatch_info", None)
    ranks = known.get(mesh) if isinstance(known, Mapping) else None
    if ranks is None and hasattr(group, "_query_dispatch_info"):
        ranks = group._query_dispatch_info(mesh)  # noqa: SLF001
    return max(ranks) + 1 if ranks else None


def _model_config(trainer: Any) -> SimpleNamespace | None:
    """The model's configuration, where it lies in a local folder."""
    path = Path(str(at(_settings(trainer.config), "actor_rollout_ref.model.path") or "")) / "config.json"
    return SimpleNamespace(**json.loads(path.read_text())) if path.is_file() else None
