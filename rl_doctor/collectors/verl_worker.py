"""Hooks into verl's ``TrainingWorker`` (0.9): what the loss saw, micro-batch by micro-batch."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, Final

import numpy as np

from rl_doctor.collectors import verl_run
from rl_doctor.collectors.plugin import wrap
from rl_doctor.collectors.recorder import Recorder
from rl_doctor.collectors.verl_loop import LOOP
from rl_doctor.collectors.verl_rows import (
    ALL_TOKENS,
    CRITIC_TOKENS,
    ROW,
    Lengths,
    Padder,
    lengths_of,
    per_row,
    plain,
    sequence_columns,
    token_columns,
)
from rl_doctor.collectors.verl_run import ENTRY, Entry, process_guard

_UPDATE: Final = "_rl_doctor_update"
"""Attribute of a worker, while it makes an update, that holds what is known of the update."""


@dataclass(slots=True)
class _Update:
    """An update that a worker makes: one call of ``train_mini_batch``.

    ``per_epoch`` is the number of mini-batches of an epoch, where it is known; ``made`` counts those that were made. Without an
    entry, ``silent`` says that there is a driver, and that it does not record.
    """

    entry: Entry | None
    silent: bool
    per_epoch: int | None
    made: int = 0


@dataclass(slots=True)
class _MiniBatch:
    """A mini-batch under way, and the columns that are the same in all of its micro-batches or known per row."""

    recorder: Recorder
    step: int
    shared: dict[str, Any]
    rows: dict[str, Any]
    lengths: Lengths
    at: dict[Any, int]
    loss_scale_factor: Any
    micro_batches: int = 0


def patch_worker(module: ModuleType) -> None:
    """Wrap the methods of ``TrainingWorker``, and of whatever derives from it."""
    wrap(module.TrainingWorker, "train_mini_batch", _around_train_mini_batch)
    wrap(module.TrainingWorker, "train_batch", _around_train_batch)


def _around_train_mini_batch(original: Callable[..., Any], worker: Any, *args: Any, **kwargs: Any) -> Any:
    data = kwargs.get("data", args[0] if args else None)
    with process_guard()("prepare an update"):
        setattr(worker, _UPDATE, _begin_update(worker, data))
    try:
        return original(worker, *args, **kwargs)
    finally:
        with process_guard()("end an update"):
            update = vars(worker).pop(_UPDATE, None)
            if update is not None:
                _end_update(worker, data, update)


def _begin_update(worker: Any, data: Any) -> _Update | None:
    text = _take_entry(data)
    entry = Entry.from_text(text) if text else None
    if text is not None and entry is None:
        return _Update(entry=None, silent=True, per_epoch=None)
    if entry is None and verl_run.run_path(LOOP.config) is None:
        return None
    given = getattr(data, "extra_info", None)
    if given is None:
        given = {name: plain(data, name) for name in ("mini_batch_size", "num_mini_batch")}
        if type(data).__module__.partition(".")[0] == "tensordict":
            _number_rows(data)
    size, number = given.get("mini_batch_size"), given.get("num_mini_batch")
    ranks = int(worker.engine.get_data_parallel_size())
    per_epoch = len(data) * ranks // int(size) if size else int(number) if number else None
    return _Update(entry=entry, silent=False, per_epoch=per_epoch)


def _take_entry(data: Any) -> str | None:
    """The driver's entry, taken out of the batch: empty where it says that nothing is recorded, None where there is no driver."""
    given = getattr(data, "extra_info", None)
    text = data.pop(ENTRY, None) if given is None else given.pop(ENTRY, None)
    text = getattr(text, "data", text)
    return text if isinstance(text, str) else None


def _number_rows(data: Any) -> None:
    kinds = import_module("tensordict.tensorclass")
    data[ROW] = kinds.NonTensorStack.from_list([kinds.NonTensorData(row) for row in range(len(data))])


def _end_update(worker: Any, data: Any, update: _Update) -> None:
    if getattr(data, "extra_info", None) is None:
        data.pop(ROW, None)
    entry = update.entry
    if entry is None and not update.silent:
        LOOP.update_made(critic=_is_critic(worker))
    elif entry is not None and entry.last and worker.engine.is_mp_src_rank_with_outputs():
        _of_driver(worker, entry).end_step(entry.step)


def _is_critic(worker: Any) -> bool:
    return str(getattr(worker.config, "model_type", "")) == "value_model"


def _of_driver(worker: Any, entry: Entry) -> Recorder:
    options = json.dumps(dict(entry.options), sort_keys=True)
    return verl_run.worker_recorder(entry.path, entry.session, int(worker.engine.get_data_parallel_rank()), options)


def _around_train_batch(original: Callable[..., Any], worker: Any, *args: Any, **kwargs: Any) -> Any:
    data: Any = kwargs.get("data", args[0] if args else None)
    under_way, own, numbered = None, getattr(worker, "loss_fn", None), False
    with process_guard()("prepare a mini-batch"):
        under_way = None if own is None else _begin_mini_batch(worker, data)
        if own is not None and under_way is not None:
            numbered = ROW not in data.keys()  # noqa: SIM118 - a batch iterates over rows
            if numbered:
                _number_rows(data)
            under_way.at = {row: at for at, row in enumerate(per_row(data, ROW) or [])}
            worker.loss_fn = _tap(own, under_way)
    try:
        return original(worker, *args, **kwargs)
    finally:
        if under_way is not None:
            worker.loss_fn = own
            if numbered:
                data.pop(ROW, None)


def _tap(loss: Callable[..., Any], under_way: _MiniBatch) -> Callable[..., Any]:
    """The loss function, which hands on what it saw."""

    @functools.wraps(loss, assigned=(), updated=())
    def tapped(*args: Any, **kwargs: Any) -> Any:
        result = loss(*args, **kwargs)
        output, data = kwargs.get("model_output"), kwargs.get("data")
        if output is not None and data is not None and under_way.recorder.recording:
            with under_way.recorder.guard("record a micro-batch"):
                _record(under_way, output, data)
        return result

    return tapped


def _begin_mini_batch(worker: Any, data: Any) -> _MiniBatch | None:
    update: _Update | None = getattr(worker, _UPDATE, None)
    if not worker.engine.is_mp_src_rank_with_outputs() or (update is not None and update.silent):
        return None
    keys = set(data.keys())
    critic = _is_critic(worker)
    if not {"prompts", "responses", "response_mask", *(("returns",) if critic else ("old_log_probs", "advantages"))} <= keys:
        return None
    entry = None if update is None else update.entry
    if entry is None:
        recorder, step, call = LOOP.recorder(worker, _config_of(worker.loss_fn), data, critic=critic)
    else:
        recorder, step, call = _of_driver(worker, entry), entry.step, entry.call
    if recorder is None or not recorder.recording:
        return None
    with recorder.guard("prepare a mini-batch"):
        return _mini_batch(worker, data, recorder, step, call, update)
    return None


def _mini_batch(worker: Any, data: Any, recorder: Recorder, step: int, call: int, update: _Update | None) -> _MiniBatch:
    rank = int(worker.engine.get_data_parallel_rank())
    shared: dict[str, Any] = {
        "rank": rank,
        "policy_version": step - 1,
        "prompt_loss_tokens": 0,
        "grad_accumulation": _accumulation(worker, data),
    }
    if update is not None and update.per_epoch:
        shared["epoch"] = update.made // update.per_epoch
        shared["minibatch"] = call * update.per_epoch + update.made % update.per_epoch
        update.made += 1
    lengths = lengths_of(data)
    rows = sequence_columns(data, lengths, None if update is None else update.entry, rank)
    factor = getattr(_config_of(worker.loss_fn), "loss_scale_factor", None)
    return _MiniBatch(recorder, step, shared, rows, lengths, {}, factor)


def _config_of(loss: Any) -> Any:
    """The configuration that a loss was bound to."""
    return getattr(loss, "keywords", {}).get("config")


def _accumulation(worker: Any, data: Any) -> int | None:
    """Micro-batches of a mini-batch, where their size is fixed."""
    settings = worker.engine_config
    size = plain(data, "micro_batch_size_per_gpu", settings.micro_batch_size_per_gpu)
    dynamic = plain(data, "use_dynamic_bsz", settings.use_dynamic_bsz)
    return None if dynamic or not size else len(data) // int(size)


def _record(under_way: _MiniBatch, output: Mapping[str, Any], data: Any) -> None:
    numbers = per_row(data, ROW)
    if numbers is None:
        raise ValueError("its rows have lost their numbers")
    at = np.array([under_way.at[number] for number in numbers], np.int64)
    lengths = under_way.lengths.take(at)
    width = int(plain(data, "max_response_len", -1))
    if width < 0:
        width = int(data["responses"].shape[1]) if not data["responses"].is_nested else int(lengths.response.max(initial=0))
    key = "log_probs" if output.get("log_probs") is not None else "values"
    current = output.get(key)
    if current is None:
        return
    padder = Padder(lengths, width, current.device)
    columns = token_columns(data, padder, ALL_TOKENS if key == "log_probs" else CRITIC_TOKENS)
    columns["logprob" if key == "log_probs" else "value"] = padder(current)
    columns["entropy"] = padder(output.get("entropy")) if key == "log_probs" else None
    rows = {name: values[at] for name, values in under_way.rows.items() if name != "reward_components"}
    components = {name: values[at] for name, values in under_way.rows.get("reward_components", {}).items()}
    contexts = {
        "padded_width": width,
        "batch_num_tokens": plain(data, "batch_num_tokens"),
        "global_batch_size": plain(data, "global_batch_size"),
        "loss_scale_factor": under_way.loss_scale_factor,
        "microbatch": under_way.micro_batches,
    }
    under_way.micro_batches += 1
    columns |= under_way.shared | contexts | rows
    if columns["grad_accumulation"] is None:
        columns["grad_accumulation"] = plain(data, "num_micro_batch")
    returns = columns.pop("return", None)
    given = {name: value for name, value in columns.items() if value is not None}
    under_way.recorder.log_batch(step=under_way.step, returns=returns, reward_components=components or None, **given)
