"""Record a training run by hand, and what every trainer's adapter uses."""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

from rl_doctor.collectors.backlog import Backlog, Flush, Logged, LogprobDtype, Rollout, Stop, UnknownColumn
from rl_doctor.collectors.copies import Plan, copy_values
from rl_doctor.collectors.device import DeviceCopier, NoRoomError
from rl_doctor.collectors.guard import Guard, one_line
from rl_doctor.collectors.halting import Halt
from rl_doctor.collectors.memory import Memory
from rl_doctor.collectors.naming import named
from rl_doctor.collectors.options import QUEUE_BYTES, check, codes_of, folder_of, mapping, room, whole
from rl_doctor.collectors.progress import Progress
from rl_doctor.collectors.sampling import GroupSampler
from rl_doctor.collectors.snapshot import dtype_of, is_number, local
from rl_doctor.collectors.states import StatesProcess
from rl_doctor.collectors.thinning import QUOTA, Thinner
from rl_doctor.collectors.torch_state import compiling, why_not_now
from rl_doctor.collectors.worker import Worker
from rl_doctor.errors import UsageError
from rl_doctor.schema import REWARD_COMPONENT_PREFIX, RunInfo
from rl_doctor.store import encode
from rl_doctor.store.aliases import ATTENTION_MASK
from rl_doctor.store.info import described, doubts
from rl_doctor.store.writer import RunWriter

_POLL_SECONDS: Final = 0.1
_CLOSE_SECONDS: Final = 60.0
_NOWHERE: Final = -1
_NAMED: Final = 5
_GRACE_SECONDS: Final = 10.0
_OPEN_SECONDS: Final = 60.0
_P = ParamSpec("_P")
_R = TypeVar("_R")


def _guarded(
    doing: str, otherwise: _R
) -> Callable[[Callable[Concatenate[Recorder, _P], _R]], Callable[Concatenate[Recorder, _P], _R]]:
    """Decorate a method so that nothing leaves it, not even the error of a call with wrong arguments.

    Args:
        doing: what the method does, for the log.
        otherwise: what it returns after a failure.
    """

    def decorate(method: Callable[Concatenate[Recorder, _P], _R]) -> Callable[Concatenate[Recorder, _P], _R]:
        @functools.wraps(method)
        def call(self: Recorder, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
            if compiling():
                self.called_by_compiled_code = True
                return otherwise
            try:
                return method(self, *args, **kwargs)
            except Exception as error:  # noqa: BLE001 - neither a wrong call nor a defect of the recorder may reach the training
                if self.recording:
                    self.guard.fault(f"could not {doing}, recording goes on", error)
            return otherwise

        return call

    return decorate


class Recorder:
    """Records a training run into a run folder, from a thread of its own.

    Nothing here raises into the training, and nothing makes it wait but ``flush``, ``close`` and ``blocking=True``. A step that
    cannot be recorded as it was given is left out, counted and logged, once for each kind of fault. The first failure to write
    is logged in one line, marks the run as detached and ends the recording. A wrong value of an option is logged, too; only an
    argument that ``Recorder(...)`` does not have raises, Python's own TypeError. Call it from one thread.

    Args:
        path: the run folder on this machine, ``~`` for the home folder; created if need be, continued as a new session if it
            exists. None, as an unset environment variable gives, records nothing, which is said once.
        info: the run's description: a ``RunInfo``, or a mapping like ``run.json``. What JSON cannot hold is kept as its text.
        rank: this process's data-parallel rank. Every rank records into the same folder; where there are several, by ``info`` or
            by this, it is the column ``rank`` of what is logged without one.
        session: the session that rank 0 got (its ``session``); leave it out on rank 0 and without ranks.
        on_part: called in the writer thread after each part, with the steps that the part completes.
        record_token_ids: whether to keep ``token_id``.
        blocking: wait for the writer where it is slower than the training, instead of dropping whole steps.
        queue_bytes: how many bytes of snapshots and of unwritten rows may be held; a step that takes more is dropped.
        sampling: share of the groups whose tokens are kept, whole groups in turn; rewards, lengths and groups of all stay. None
            keeps all.
        quota: bytes that the run's files may take, or, below 1, that share of the space free at the start; beyond it old steps
            lose their tokens. None for no quota. Rank 0's holds for all ranks.
        stop_on: codes or names of rules; where one of them finds an error in the first steps, ``should_stop`` becomes true. None
            or empty checks nothing. The same on all ranks, as with the next.
        stop_after: number of steps that are checked, once all ranks have written them; by another process, which nobody waits
            for.
        states: keep states of all metrics while recording, by another process of the lowest priority, so that a check or the app
            opens the run at once. Rank 0's holds for all ranks.
    """

    def __init__(  # noqa: PLR0913 - every option of a recording has a name here
        self,
        path: str | os.PathLike[str] | None,
        info: RunInfo | Mapping[str, Any] | None = None,
        *,
        rank: int = 0,
        session: int | None = None,
        on_part: Callable[[tuple[int, ...]], object] | None = None,
        record_token_ids: bool = True,
        blocking: bool = False,
        queue_bytes: int = QUEUE_BYTES,
        sampling: float | None = None,
        quota: float | None = QUOTA,
        stop_on: Sequence[str] | str | None = None,
        stop_after: int = 2,
        states: bool = False,
    ) -> None:
        folder, refused = _folder(path)
        self.guard = Guard(folder)
        self.guard.on_failure = self._detach
        self.on_close: Callable[[], None] | None = None
        self.called_by_compiled_code = False
        self._record_token_ids = record_token_ids
        self._blocking = blocking
        self._pid = os.getpid()
        self._closed = False
        self._queue_was_full = False
        self._queue_bytes, doubt = room(queue_bytes)
        self._backlog = Backlog(self._queue_bytes)
        self._worker: Worker | None = None
        self._thread: threading.Thread | None = None
        self._steps = Progress(self._backlog, self.guard.tell)
        self._halt: Halt | None = None
        self._states: StatesProcess | None = None
        self._dtype_known = False
        self._rank: int | None = None
        self._device = DeviceCopier()
        self._memory = Memory()
        if refused is not None:
            self.guard.refuse(refused)
            return
        if doubt is not None:
            self.guard.tell(doubt)
        options = {
            "info": info,
            "rank": rank,
            "session": session,
            "on_part": on_part,
            "stop_on": stop_on,
            "stop_after": stop_after,
        }
        with self.guard("open the run"):
            try:
                check({**options, "record_token_ids": record_token_ids, "blocking": blocking, "states": states})
            except UsageError as error:
                self.guard.refuse(str(error))
            else:
                if codes := codes_of(stop_on):
                    self._halt = Halt(codes, stop_after, self.guard.tell)
                if states and rank == 0:
                    self._states = StatesProcess(Path(folder).absolute(), self.guard.tell)
                self._open(folder, info, rank, session, on_part, (sampling, quota))

    @property
    def recording(self) -> bool:
        """Whether what is logged now is recorded."""
        return not (self._closed or self.guard.failed.is_set()) and os.getpid() == self._pid

    @property
    def dropped_steps(self) -> int:
        """Number of steps that were dropped: they did not fit into the queue, or could not be recorded as they were given."""
        return self._steps.dropped + (0 if self._worker is None else self._worker.left_out)

    @property
    def can_stop(self) -> bool:
        """Whether ``stop_on`` was given, so that ``should_stop`` may become true."""
        return self._halt is not None

    @property
    def should_stop(self) -> bool:
        """Whether the first steps are wrong, by the rules of ``stop_on``: end the training as soon as that can be done well."""
        return self.stop_reason is not None

    @property
    def stop_reason(self) -> str | None:
        """Why the training should stop, with the cause; None where it should not, or nobody knows."""
        return None if self._halt is None else self._halt.reason

    @property
    def stop_decided(self) -> bool:
        """Whether ``should_stop`` will not change any more; true where nothing is checked."""
        return self._halt is None or self._halt.decided or not self.recording

    @property
    def session(self) -> int | None:
        """Number of the session in the run, or None if the run could not be opened. Waits until that is known."""
        if self._worker is None:
            return None
        if os.getpid() == self._pid and not self._worker.opened.wait(_OPEN_SECONDS):
            self.guard.fail(f"the run folder could not be opened in {_OPEN_SECONDS:.0f} s")
        return self._worker.session

    @_guarded("record a batch", None)
    def log_batch(
        self,
        /,
        *,
        step: int,
        returns: Any = None,
        reward_components: Mapping[str, Any] | None = None,
        attention_mask: Any = None,
        **columns: Any,
    ) -> None:
        """Record the sequences of one forward pass of the training. All is copied before it returns.

        Args:
            step: optimizer step, as the trainer logs it. A later one than before ends the step before.
            returns: the column ``return``, ``[B, T]``.
            reward_components: component name -> ``[B]``.
            attention_mask: ``[B, T]``, the tokens that are no padding; or give ``response_length``.
            **columns: canonical columns (``rl_doctor.schema``) or their usual aliases: ``[B, T]`` for token columns, ``[B]`` or
                one value for all sequences for the others. Tensors of any device and floating type, arrays or lists. What has
                a name that is no column is left out, which is logged once and noted in ``run.json``.
        """
        if not self._ready() or not self._is_time():
            return
        step = whole(step)
        if not self._steps.advance(step):
            return
        try:
            given = {**columns, "return": returns, ATTENTION_MASK: attention_mask}
            parts = {} if reward_components is None else mapping("reward_components", reward_components)
            given |= {f"{REWARD_COMPONENT_PREFIX}{name}": values for name, values in parts.items()}
            self._put_rollout(step, {name: values for name, values in given.items() if values is not None})
        except Exception as error:  # noqa: BLE001 - what was handed over may be anything
            self.guard.fault(f"step {step} is left out, as each with this fault", error)
            self._steps.drop(step)

    @_guarded("record metrics", None)
    def log_metrics(self, step: int, metrics: Mapping[str, Any], *, split: str = "train", source: str = "log") -> None:
        """Record what the trainer logs, under its own names.

        Args:
            step: step of the values, as the trainer counts.
            metrics: name -> number; None is NaN. What is no number (text, lists, True) is left out, which is said once.
            split: ``train`` or ``eval``.
            source: where the values were taken from.
        """
        if not self._ready() or not self._is_time():
            return
        step = whole(step)
        numbers = {name: local(value) for name, value in mapping("metrics", metrics).items() if is_number(value)}
        if left := [str(name) for name in metrics if name not in numbers]:
            self.guard.tell(_no_numbers(left), kind="no numbers")
        for name in [name for name, value in numbers.items() if value is None and metrics[name] is not None]:
            del numbers[name]
            self.guard.tell(_apart(name))
        values, events = copy_values(numbers, self._device)
        self._backlog.put(Logged(step, time.time(), values, split, source, events))

    @_guarded("end a step", None)
    def end_step(self, step: int) -> None:
        """Say that this rank has logged all of the step; logging a later step implies it."""
        if self._ready():
            self._steps.end(whole(step))

    @_guarded("go back to a step", None)
    def retry_step(self, step: int) -> None:
        """Forget what was logged of a step that failed and is tried again; without this, the rows of both attempts count.

        A training that goes back further, to a checkpoint, need not say so: logging a batch of an earlier step implies it. Where
        steps come again, the rows logged last count, and the report says so.

        Args:
            step: the step; what was logged of later ones is forgotten too.
        """
        if self._ready():
            self._steps.go_back(whole(step))

    @_guarded("flush", otherwise=False)
    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all that was logged is on disk and would survive a kill.

        Args:
            timeout: seconds to wait at most; None waits as long as the writer works.

        Returns:
            Whether all of it is on disk, dropped steps aside.
        """
        if self._closed:
            return not self.guard.failed.is_set()
        if not self._ready():
            return False
        message = Flush()
        self._backlog.put(message)
        return self._wait(message.done, timeout) and not self.guard.failed.is_set()

    @_guarded("close the recorder", None)
    def close(self, status: str | None = "complete") -> None:
        """Write what is left and end the recording.

        Args:
            status: the run's final status; None leaves it ``running``, for a training that was cut short.
        """
        if self._closed or os.getpid() != self._pid:
            return
        atexit.unregister(self._at_exit)
        with self.guard("close the recorder"):
            self._finish(status)
        self._closed = True

    def _finish(self, status: str | None) -> None:
        if self.on_close is not None:
            self.on_close()
        if self._ready():
            if status is not None:
                self._steps.end_current()
            self._backlog.put(Stop(status))
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)
            if self._thread.is_alive():
                self.guard.fail(f"the writer was not done {_CLOSE_SECONDS:.0f} s after the end")
                # One that is only slow stops now: a thread that is at work when the interpreter goes can abort the process.
                self._thread.join(_GRACE_SECONDS)
        if self._states is not None:
            self._states.stop()
        if self.dropped_steps:
            self.guard.tell(f"{self.dropped_steps} step(s) were dropped in all; the others are recorded whole")

    @_guarded("detach from the trainer", None)
    def detach(self) -> None:
        """Undo ``rl_doctor.attach``: restore the trainer's methods and close."""
        self.close()

    def __reduce__(self) -> tuple[Callable[[str], Recorder], tuple[str]]:
        # What holds a recorder may go to another process, which records as little as a forked one.
        return _elsewhere, (self.guard.path,)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close("complete" if kind is None else None)

    def _open(
        self,
        path: str,
        info: RunInfo | Mapping[str, Any] | None,
        rank: int,
        session: int | None,
        on_part: Callable[[tuple[int, ...]], object] | None,
        saving: tuple[float | None, float | None],
    ) -> None:
        if session == _NOWHERE:
            self._pid = _NOWHERE
            return
        info, spoilt = described(info)
        if rank != 0 and session is None:
            self.guard.fail("rank 0 has no session in it")
            return
        if rank == 0:
            for doubt in (*spoilt, *doubts(info)):
                self.guard.tell(doubt)
        encode.import_all()
        self._dtype_known = info.logprob_dtype is not None
        if rank != 0 or (info.world_size or 1) > 1:
            self._rank = rank
        sampling, quota = saving
        sampler = None if sampling is None else GroupSampler(sampling, self.guard.tell)
        info = replace(info, sampling=sampling)
        # Where the run is must not depend on a later change of the working directory.
        open_writer = functools.partial(RunWriter, os.path.abspath(path), info, rank=rank, session=session)  # noqa: PTH100
        hooks = [hook for hook in (on_part, None if self._states is None else self._states.after_part) if hook is not None]
        self._worker = Worker(
            open_writer, self._backlog, self.guard, _all_of(hooks), sampler, Thinner(quota, self.guard.tell), self._halt
        )
        self._thread = threading.Thread(target=self._worker.run, name="rl-doctor-writer", daemon=True)
        self._thread.start()
        atexit.register(self._at_exit)

    def _ready(self) -> bool:
        """Whether to record; says once why not."""
        if os.getpid() != self._pid:
            self.guard.tell("this process, a copy of the one that opened the recorder, records nothing; that one goes on")
            return False
        if self.guard.failed.is_set():
            return False
        if self._closed:
            self.guard.tell("closed already: what is logged after close() is not recorded (training goes on)")
            return False
        if self._thread is None or not self._thread.is_alive():
            self.guard.fail("its writer thread has died")
        return not self.guard.failed.is_set()

    def _put_rollout(self, step: int, given: Mapping[str, Any]) -> None:
        found = named(given, self.guard.tell)
        for name in found.unknown:
            self._backlog.put(UnknownColumn(name))
        columns = found.columns
        if self._rank is not None and columns:
            columns.setdefault("rank", self._rank)
        self._note_dtype(columns)
        if not self._record_token_ids:
            columns.pop("token_id", None)
        plan = Plan(columns, full_width=found.full_width)
        for name in plan.left_out:
            self.guard.tell(_apart(name))
        nbytes = plan.nbytes
        if self._blocking:
            self._backlog.wait_until_fits(nbytes, self._alive)
        elif not self._backlog.fits(nbytes):
            if not self._queue_was_full:
                self._queue_was_full = True
                self.guard.tell(
                    f"step {step} is dropped, as later ones may be: the writer is slower than the training, and its queue of "
                    f"{self._queue_bytes} bytes is full; give more queue_bytes, or blocking=True to wait for it"
                )
            self._steps.drop(step)
            return
        try:
            copies = plan.copy(self._device, self._memory)
        except NoRoomError as error:
            self.guard.tell(f"no memory for copies, steps are dropped: {one_line(error)}")
            self._steps.drop(step)
            return
        self._backlog.put(Rollout(step, copies, nbytes, found.full_width))

    def _is_time(self) -> bool:
        """Whether what PyTorch is doing allows to record; says once why not."""
        if self.called_by_compiled_code:
            self.called_by_compiled_code = False
            self.guard.tell("what compiled code (torch.compile) logs is left out: it only passes through once; log outside of it")
        reason = why_not_now()
        if reason is not None:
            self.guard.tell(reason)
        return reason is None

    def _note_dtype(self, columns: Mapping[str, Any]) -> None:
        """Say in ``run.json`` what type the trainer's log-probabilities have, as soon as that is known."""
        dtype = "" if self._dtype_known else dtype_of(columns.get("logprob"))
        if dtype:
            self._dtype_known = True
            self._backlog.put(LogprobDtype(dtype), wake=False)

    def _alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive() and not self.guard.failed.is_set()

    def _wait(self, done: threading.Event, timeout: float | None) -> bool:
        end = None if timeout is None else time.monotonic() + timeout
        while not done.wait(_POLL_SECONDS):
            if self.guard.failed.is_set() or (end is not None and time.monotonic() > end):
                return False
            if self._thread is None or not self._thread.is_alive():
                self.guard.fail("its writer thread has died")
        return True

    def _detach(self) -> None:
        if os.getpid() != self._pid:
            return
        self._backlog.clear()
        self._backlog.put(Stop())

    def _at_exit(self) -> None:
        # An uncaught exception has been printed by now, which is how a crash is told from an end.
        self.close(None if getattr(sys, "last_type", None) is not None else "complete")


def _folder(path: Any) -> tuple[str, str | None]:
    """The run folder as a text, and why nothing can be recorded into it."""
    try:
        return folder_of(path), None
    except Exception as error:  # noqa: BLE001 - what a path's own methods raise must not reach the training
        return str(type(path).__name__) if not isinstance(path, str) else path, str(error)


def _all_of(hooks: Sequence[Callable[[tuple[int, ...]], object]]) -> Callable[[tuple[int, ...]], object] | None:
    """One function that calls all of them."""

    def call(completes: tuple[int, ...]) -> None:
        for hook in hooks:
            hook(completes)

    return call if hooks else None


def _apart(name: str) -> str:
    return f"{name} is spread over the processes and is left out: putting it together would make them all wait"


def _no_numbers(names: list[str]) -> str:
    """That values which are no numbers are left out."""
    shown = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    counted = "1 metric is no number" if len(names) == 1 else f"{len(names)} metrics are no numbers"
    return f"{counted} and left out, here and at later steps: {shown}"


def _elsewhere(path: str) -> Recorder:
    """The copy of a recorder: it records nothing, and says so when it is asked to."""
    return Recorder(path, session=_NOWHERE)
