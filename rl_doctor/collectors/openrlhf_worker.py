"""The side of OpenRLHF (0.11) that trains: ``ActorPPOTrainer`` and ``CriticPPOTrainer``, each in processes of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from rl_doctor.collectors.guard import one_line
from rl_doctor.collectors.openrlhf_mark import ENTRY, Destination, Mark
from rl_doctor.collectors.plugin import tell, wrap
from rl_doctor.collectors.recorder import Recorder

_STATE: Final = "rl_doctor_passes"

Method = Callable[..., Any]


def install_actor(module: ModuleType, to: Destination) -> None:
    """Wrap what ``openrlhf.trainer.ray.ppo_actor`` does, so that the policy's passes are recorded."""
    _install(module.ActorPPOTrainer, to, PolicyPasses)


def install_critic(module: ModuleType, to: Destination) -> None:
    """Wrap what ``openrlhf.trainer.ray.ppo_critic`` does, so that the critic's passes are recorded."""
    _install(module.CriticPPOTrainer, to, CriticPasses)


def _install(owner: type, to: Destination, kind: type[_Passes]) -> None:
    def passes(trainer: Any) -> _Passes:
        found = getattr(trainer, _STATE, None)
        if not isinstance(found, kind):
            found = kind(trainer, to)
            setattr(trainer, _STATE, found)
        return found

    def ppo_train(original: Method, trainer: Any, *args: Any, **kwargs: Any) -> Any:
        own = passes(trainer)
        own.begin()
        status = original(trainer, *args, **kwargs)
        own.end()
        return status

    def training_step(original: Method, trainer: Any, experience: Any, *args: Any, **kwargs: Any) -> Any:
        own = passes(trainer)
        if not own.begin_step(experience, args, kwargs):
            return original(trainer, experience, *args, **kwargs)
        try:
            status = original(trainer, experience, *args, **kwargs)
        finally:
            own.untap()
        own.record(experience)
        return status

    wrap(owner, "ppo_train", ppo_train)
    wrap(owner, "training_step", training_step)


class _Passes(ABC):
    """The passes of one model over the replay buffer, in one process.

    Nothing here raises. The first sequence brings the session to record in; until then, and where none comes, nothing is done.

    Args:
        trainer: the trainer, which is built already.
        to: where to record.
    """

    step_argument: int
    """Where ``training_step`` has the number of the micro-batch among its arguments after the experience."""

    def __init__(self, trainer: Any, to: Destination) -> None:
        self._trainer = trainer
        self._to = to
        self._recorder: Recorder | None = None
        self._rank: int | None = 0
        self._taps: list[Any] = []
        self._marks: list[Mark] = []
        self._epoch = self._window = self._minibatch = self._microbatch = 0
        self._first_update: int | None = None
        self._step: int | None = None
        self._failed = False
        self.begin()

    def begin(self) -> None:
        """The passes over a new replay buffer begin."""
        self._epoch = -1

    def end(self) -> None:
        """They are done: this process has trained on all of the step."""
        if self._recorder is not None and self._step is not None:
            self._recorder.end_step(self._step)

    def begin_step(self, experience: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Take the marks out of a micro-batch before the trainer logs them, and listen to its losses; whether it is recorded."""
        packed = experience.info.pop(ENTRY, None) if isinstance(getattr(experience, "info", None), dict) else None
        if packed is None or self._failed:
            return False
        try:
            self._marks = [Mark.unpack(values) for values in packed]
            if self._recorder is None:
                self._open(self._marks[0])
            if self._recorder is None or not self._recorder.recording or self._rank is None:
                return False
            self._step = self._marks[0].step
            self._count(int(kwargs["step"] if "step" in kwargs else args[self.step_argument]))
            self._tap()
        except Exception as error:  # noqa: BLE001 - a defect of the recorder must not become one of the training
            self._fail(error)
            return False
        return True

    def untap(self) -> None:
        """Stop listening."""
        while self._taps:
            self._taps.pop().remove()

    def record(self, experience: Any) -> None:
        """Record the micro-batch after the trainer has trained on it."""
        recorder = self._recorder
        if recorder is None:
            return
        with recorder.guard("record a micro-batch"):
            columns = {**self._ids(), **self._context(), **_masks(experience), **self._columns(experience)}
            recorder.log_batch(step=self._marks[0].step, **{name: value for name, value in columns.items() if value is not None})

    @abstractmethod
    def _session(self, mark: Mark) -> int | None: ...

    @abstractmethod
    def _folder(self) -> Path: ...

    @abstractmethod
    def _engine(self) -> Any: ...

    @abstractmethod
    def _tap(self) -> None: ...

    @abstractmethod
    def _columns(self, experience: Any) -> dict[str, Any]: ...

    @abstractmethod
    def _context(self) -> dict[str, Any]: ...

    def _open(self, mark: Mark) -> None:
        session = self._session(mark)
        if session is None:
            return
        self._rank = _data_parallel_rank(self._trainer.strategy)
        if self._rank is not None:
            self._recorder = Recorder(self._folder(), rank=self._rank + 1, session=session, **self._to.options)

    def _fail(self, error: Exception) -> None:
        self._failed = True
        self.untap()
        told = f"OpenRLHF's {type(self._trainer).__name__} has another form ({one_line(error)})"
        if self._recorder is None:
            tell(told)
        else:
            self._recorder.guard.fail(told)

    @property
    def accumulation(self) -> int:
        """Micro-batches per optimizer step."""
        buffer = self._trainer.replay_buffer
        if not self._trainer.args.train.dynamic_batch_enable:
            return max(int(self._trainer.strategy.accumulated_gradient), 1)
        flags = list(buffer.dynamic_optimizer_step)
        ends = [number for number, flag in enumerate(flags) if flag]
        return ends[self._window] - (ends[self._window - 1] if self._window else -1)

    def _count(self, index: int) -> None:
        """Where in the passes the micro-batch stands, by its number in its epoch."""
        taken = getattr(self._engine(), "global_steps", None)
        if index == 0:
            self._epoch += 1
            self._first_update = None if taken is None else int(taken)
        if self._trainer.args.train.dynamic_batch_enable:
            self._window = sum(map(int, self._trainer.replay_buffer.dynamic_optimizer_step[:index]))
        else:
            self._window = index // self.accumulation
        minibatch = self._window
        if taken is not None and self._first_update is not None:
            # DeepSpeed goes on counting over the ends of epochs, which need not be ends of windows.
            minibatch = int(taken) - self._first_update
        self._microbatch = 0 if index == 0 or minibatch != self._minibatch else self._microbatch + 1
        self._minibatch = minibatch

    def _ids(self) -> dict[str, Any]:
        args, marks = self._trainer.args, self._marks
        samples = int(args.rollout.n_samples_per_prompt)
        return {
            "rank": self._rank,
            "epoch": self._epoch,
            "minibatch": self._minibatch,
            "microbatch": self._microbatch,
            "window": self._window,
            "uid": [f"{mark.step}-{mark.row}" for mark in marks],
            "group": [f"{mark.step}-{mark.row // samples}" for mark in marks] if samples > 1 else None,
            "finish_reason": [{True: "length", False: "stop"}.get(mark.truncated) for mark in marks]  # type: ignore[arg-type]
            if any(mark.truncated is not None for mark in marks)
            else None,
            "prompt_loss_tokens": 0,  # a prompt begins where the action mask does
            "grad_accumulation": self.accumulation,
        }

    def _normalisers(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The loss's normalisers over the whole window; without dynamic batches the trainer has divided them by its length."""
        times = 1 if self._trainer.args.train.dynamic_batch_enable else self.accumulation
        found = {}
        for name in ("batch_num_tokens", "global_batch_size"):
            value = kwargs.get(name)
            if value is not None:
                found[name] = (value.detach() * times).round().long()
        return found


class PolicyPasses(_Passes):
    """The policy's passes."""

    step_argument = 1

    def _session(self, mark: Mark) -> int | None:
        return mark.session

    def _folder(self) -> Path:
        return Path(self._to.path)

    def _engine(self) -> Any:
        return getattr(self._trainer.actor, "model", None)

    def _tap(self) -> None:
        self._logprob = self._entropy = None
        self._loss_arguments: dict[str, Any] = {}
        self._taps = [
            self._trainer.actor.register_forward_hook(self._on_forward),
            self._trainer.actor_loss_fn.register_forward_pre_hook(self._on_loss, with_kwargs=True),
        ]

    def _on_forward(self, _module: Any, _args: Any, output: Any) -> None:
        with self._recorder.guard("record entropies"):  # type: ignore[union-attr]
            entropy = getattr(output[1], "entropy", None) if isinstance(output, tuple) else None
            if entropy is not None:
                self._entropy = entropy.detach()

    def _on_loss(self, _module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        with self._recorder.guard("record log-probabilities"):  # type: ignore[union-attr]
            self._logprob, self._loss_arguments = args[0].detach(), kwargs

    def _context(self) -> dict[str, Any]:
        return self._normalisers(self._loss_arguments)

    def _columns(self, experience: Any) -> dict[str, Any]:
        entropy, mask = self._entropy, experience.action_mask.bool()
        width = mask.shape[1]
        return {
            "sequences": experience.sequences.int(),
            "logprob": _aligned(self._logprob),
            "old_logprob": _aligned(experience.action_log_probs),
            "ref_logprob": _aligned(experience.base_action_log_probs),
            "rollout_logprob": _aligned(experience.rollout_log_probs),
            # The loss does not look at the others, which hold what a running sum has left there.
            "advantage": _aligned(experience.advantages.where(mask, experience.advantages.new_zeros(()))),
            "returns": _aligned(experience.returns),
            "old_value": _aligned(experience.values),
            "entropy": None if entropy is None else _aligned(entropy[:, -width:]),
            "reward": experience.rewards,
            "score": experience.scores,
        }


class CriticPasses(_Passes):
    """The critic's passes, which are recorded as a run of their own inside the run."""

    step_argument = 0

    def _session(self, mark: Mark) -> int | None:
        return mark.critic_session

    def _folder(self) -> Path:
        return self._to.critic

    def _engine(self) -> Any:
        return self._trainer.critic

    def _tap(self) -> None:
        self._value = None
        self._loss_arguments: dict[str, Any] = {}
        self._taps = [self._trainer.critic_loss_fn.register_forward_pre_hook(self._on_loss, with_kwargs=True)]

    def _on_loss(self, _module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        with self._recorder.guard("record values"):  # type: ignore[union-attr]
            self._value, self._loss_arguments = args[0].detach(), kwargs

    def _context(self) -> dict[str, Any]:
        return self._normalisers(self._loss_arguments)

    def _columns(self, experience: Any) -> dict[str, Any]:
        return {
            "value": _aligned(self._value),
            "old_value": _aligned(experience.values),
            "returns": _aligned(experience.returns),
            "reward": experience.rewards,
        }


def _masks(experience: Any) -> dict[str, Any]:
    """The masks over prompt and response ``[B, T]``, and where the response begins ``[B]``.

    An action mask's position t speaks of token t + 1; the response begins at its first set position.
    """
    attention, mask = experience.attention_mask, experience.action_mask.bool()
    begins = mask.int().argmax(dim=1) + 1
    return {
        "attention_mask": attention.bool(),
        "response_mask": _aligned(mask),
        "prompt_length": begins.where(mask.any(dim=1), attention.sum(dim=1)),
        "padded_width": int(mask.shape[1]),
    }


def _aligned(values: Any) -> Any:
    """A tensor over actions ``[B, T - 1]`` as one over tokens ``[B, T]``."""
    return None if values is None else import_module("torch.nn.functional").pad(values.detach(), (1, 0))


def _data_parallel_rank(strategy: Any) -> int | None:
    """This process's data-parallel rank; None where another one trains on the same sequences."""
    mesh = getattr(strategy, "ds_device_mesh", None)
    if mesh is None:
        return 0
    if any(int(mesh[name].get_local_rank()) for name in ("sp", "tp") if name in (mesh.mesh_dim_names or ())):
        return None
    return int(mesh["dp"].get_local_rank())
