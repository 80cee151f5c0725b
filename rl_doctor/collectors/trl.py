"""Hooks into TRL's ``GRPOTrainer`` and ``RLOOTrainer`` (1.16)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from os import PathLike
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.collectors.following import Followers
from rl_doctor.collectors.guard import one_line
from rl_doctor.collectors.ranks import open_ranks
from rl_doctor.collectors.recorder import Recorder
from rl_doctor.collectors.support import TRL
from rl_doctor.collectors.trl_config import describe
from rl_doctor.errors import UsageError
from rl_doctor.schema import REWARD_COMPONENT_PREFIX, ROLES

_ALGORITHMS: Final = {"GRPOTrainer": "grpo", "RLOOTrainer": "rloo"}
_ROW: Final = "rl_doctor_row"
_OLD: Final = "rl_doctor_old_logprob"
_REF: Final = "rl_doctor_ref_logprob"
_ASSISTANT: Final = ROLES.index("assistant")
_TOOL: Final = ROLES.index("tool")
_FLUSH_SECONDS: Final = 60.0


def attach_trainer(trainer: Any, base: str, path: str | PathLike[str], **options: Any) -> Recorder:
    """Record a TRL trainer; see ``rl_doctor.attach``.

    Args:
        trainer: the trainer.
        base: name of the TRL class that it is: ``GRPOTrainer`` or ``RLOOTrainer``.
        path: run folder.
        **options: further arguments of ``Recorder``.

    Raises:
        UsageError: this version of TRL is not supported.
    """
    version = str(import_module("trl").__version__)
    missing = [name for name in Hooks.METHODS if not hasattr(trainer, name)]
    if missing or not TRL.supports(version):
        lacks = f" (its {base} lacks {', '.join(missing)})" if missing else ""
        raise UsageError(f"cannot attach to {base} of trl {version}{lacks}: supported are {TRL.versions}")
    algorithm = _ALGORITHMS[base]
    try:
        info = describe(trainer, algorithm, version)
    except (AttributeError, TypeError, ValueError) as error:
        raise UsageError(
            f"cannot attach to {base} of trl {version}: its settings have another form ({one_line(error)})"
        ) from error
    recorder = open_ranks(path, {**options, "info": info})
    with recorder.guard("attach to the trainer"):
        Hooks(trainer, recorder, algorithm).install()
    return recorder


@dataclass(slots=True)
class _Generation:
    """What is known of a generation batch on this rank, by its row before the shuffle.

    ``passes`` counts the micro-batches that were taken from it, ``pass_start`` is the step in which its present pass began.
    """

    rollout_step: int
    columns: dict[str, NDArray[Any]]
    micro_batches: int = 0
    pass_start: int = 0


class Hooks:
    """The methods of a trainer that are wrapped, and what they saw.

    A generation batch is scored once and then shuffled, split, and trained on for several passes. Its rows carry their
    number before the shuffle through all of that, as one more tensor among the trainer's own.
    """

    METHODS: Final = (
        "_generate",
        "_calculate_rewards",
        "_generate_and_score_completions",
        "_get_per_token_logps_and_entropies",
        "_compute_loss",
        "_get_grad_norm",
    )

    def __init__(self, trainer: Any, recorder: Recorder, algorithm: str) -> None:
        self._trainer = trainer
        self._recorder = recorder
        self._guard = recorder.guard
        self._algorithm = algorithm
        self._undo: list[Callable[[], None]] = []
        self._lengths: tuple[list[int], list[int], list[str]] | None = None
        self._rewards: Any = None
        self._scored: list[Any] | None = None
        self._current: list[tuple[Any, Any]] | None = None
        self._generation: _Generation | None = None
        self._step = 0
        self._micro_batches = 0
        self._grad_norm: Any = None

    def install(self) -> None:
        """Wrap the trainer's methods and add the callback; closing the recorder undoes it."""
        self._recorder.on_close = self.remove
        for name in self.METHODS:
            self._wrap(name, getattr(self, f"_around{name}"))
        callback = _callback(self)
        self._trainer.add_callback(callback)
        self._undo.append(lambda: self._trainer.remove_callback(callback))
        if self._recorder.can_stop:
            self._install_stop()

    def _install_stop(self) -> None:
        followers = Followers(self._recorder)
        stopping = _stop_callback(followers)

        def undo() -> None:
            if not followers.promised:  # else the other ranks stop, and this one has to
                self._trainer.remove_callback(stopping)

        self._trainer.add_callback(stopping)
        self._undo.append(undo)

    def remove(self) -> None:
        """Give the trainer its own methods back."""
        while self._undo:
            self._undo.pop()()

    def _wrap(self, name: str, around: Callable[..., Any]) -> None:
        own = vars(self._trainer)
        original, was_own = getattr(self._trainer, name), name in own

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if not self._recorder.recording:
                return original(*args, **kwargs)
            return around(original, *args, **kwargs)

        def undo() -> None:
            if own.get(name) is wrapped:
                if was_own:
                    own[name] = original
                else:
                    del own[name]

        setattr(self._trainer, name, wrapped)
        self._undo.append(undo)

    @property
    def _training(self) -> bool:
        return bool(self._trainer.model.training)

    def _around_generate(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        with self._guard("record what was generated"):
            if self._scored is not None:
                prompts, completions = result[0], result[1]
                ends = {*self._trainer.eos_token_ids, self._trainer._tokenizer.pad_token_id}  # noqa: SLF001
                reasons = ["stop" if len(ids) and ids[-1] in ends else "length" for ids in completions]
                self._lengths = ([len(ids) for ids in prompts], [len(ids) for ids in completions], reasons)
        return result

    def _around_calculate_rewards(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._rewards = original(*args, **kwargs)
        return self._rewards

    def _around_get_grad_norm(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._grad_norm = original(*args, **kwargs)
        return self._grad_norm

    def _around_get_per_token_logps_and_entropies(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        with self._guard("record log-probabilities"):
            if self._current is not None and kwargs.get("compute_entropy"):
                self._current.append((result[0].detach(), result[1].detach()))
            elif self._scored is not None:
                self._scored.append(result[0].detach())
        return result

    def _around_generate_and_score_completions(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self._training:
            return original(*args, **kwargs)
        self._scored, self._lengths, self._rewards = [], None, None
        try:
            output = original(*args, **kwargs)
            with self._guard("record a generation batch"):
                self._begin_generation(output)
        finally:
            self._scored = self._rewards = None
        return output

    def _around_compute_loss(self, original: Callable[..., Any], model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._training:
            return original(model, inputs, *args, **kwargs)
        self._current = []
        try:
            loss = original(model, inputs, *args, **kwargs)
            with self._guard("record a micro-batch"):
                if self._current:
                    self._record(inputs, *self._current[-1])
        finally:
            self._current = None
        return loss

    def _begin_generation(self, output: dict[str, Any]) -> None:
        advantages = output["advantages"]
        size = int(advantages.shape[0])
        if self._algorithm == "rloo" and self._scored:
            output[_OLD] = self._scored[0]
            if len(self._scored) > 1:
                output[_REF] = self._scored[1]
        output[_ROW] = output["completion_ids"].new_tensor(list(range(size)))
        rollout = self._rollout_step()
        rows = np.arange(size) + size * int(self._trainer.accelerator.process_index)
        groups = rows // int(self._trainer.num_generations)
        columns = {
            "uid": np.array([f"{rollout}-{row}" for row in rows], np.object_),
            "group": np.array([f"{rollout}-{group}" for group in groups], np.object_),
            **self._reward_columns(rows, output),
        }
        if self._lengths is not None:
            prompt, response, reasons = self._lengths
            columns["prompt_length"] = np.array(prompt, np.int32)
            columns["response_length"] = np.array(response, np.int32)
            columns["finish_reason"] = np.array(reasons, np.object_)
        self._generation = _Generation(rollout, columns)

    def _rollout_step(self) -> int:
        """The step that the batch is generated in; where a step generates several, the micro-batch counted over the run."""
        args, step = self._trainer.args, int(self._trainer.state.global_step)
        accumulation = int(args.gradient_accumulation_steps)
        if int(args.steps_per_generation) * int(args.num_iterations) >= accumulation:
            return step + 1
        return step * accumulation + (self._micro_batches if self._step == step + 1 else 0) + 1

    def _reward_columns(self, rows: NDArray[np.int64], output: dict[str, Any]) -> dict[str, NDArray[Any]]:
        """Rewards of this rank's rows: per function, their weighted sum, and the reward that the advantage came from."""
        if self._rewards is None:
            return {}
        trainer = self._trainer
        per_function = self._rewards.detach()[int(rows[0]) : int(rows[-1]) + 1]
        unscored = per_function.isnan().all(dim=1)
        total = (per_function * trainer.reward_weights.to(per_function.device).unsqueeze(0)).nansum(dim=1)
        total[unscored] = float("nan")
        names = trainer.reward_func_names
        columns = {REWARD_COMPONENT_PREFIX + name: _float64(per_function[:, index]) for index, name in enumerate(names)}
        if self._algorithm == "grpo":
            if trainer.multi_objective_aggregation != "sum_then_normalize":
                return {**columns, "score": _float64(total)}
            return {**columns, "reward": _float64(total)}
        reward = total
        if trainer.reward_clip_range:
            reward = reward.clamp(min=trainer.reward_clip_range[0], max=trainer.reward_clip_range[1])
        if trainer.beta != 0.0:
            penalty = ((output[_OLD] - output[_REF]) * output["completion_mask"]).sum(-1)
            reward = reward - trainer.beta * penalty
        return {**columns, "score": _float64(total), "reward": _float64(reward)}

    def _record(self, inputs: dict[str, Any], logprob: Any, entropy: Any) -> None:
        trainer = self._trainer
        step = int(trainer.state.global_step) + 1
        if step != self._step:
            self._step, self._micro_batches = step, 0
        completion_mask = inputs["completion_mask"]
        tool_mask = inputs.get("tool_mask")
        old = inputs.get("old_per_token_logps") if self._algorithm == "grpo" else inputs.get(_OLD)
        columns: dict[str, Any] = {
            "token_id": inputs["completion_ids"],
            "response_mask": (completion_mask if tool_mask is None else completion_mask * tool_mask).bool(),
            "logprob": logprob,
            # Without stored log-probabilities the trainer divides by the current ones, detached.
            "old_logprob": logprob if old is None else old,
            "entropy": entropy,
            "advantage": inputs["advantages"],
            "ref_logprob": inputs.get("ref_per_token_logps" if self._algorithm == "grpo" else _REF),
            "rollout_logprob": inputs.get("sampling_per_token_logps"),
            "prompt_loss_tokens": 0,  # the loss is taken over the completions alone
            "role": None if tool_mask is None else tool_mask * (_ASSISTANT - _TOOL) + _TOOL,
            "is_weight": inputs.get("importance_sampling_ratio"),
            "num_items_in_batch": inputs.get("num_items_in_batch"),
            "grad_accumulation": int(trainer.current_gradient_accumulation_steps),
            "padded_width": int(completion_mask.shape[1]),
            "microbatch": self._micro_batches,
            "rank": int(trainer.accelerator.process_index),
        }
        self._micro_batches += 1
        columns |= self._generation_columns(inputs, step)
        if "response_length" not in columns:
            columns["attention_mask"] = completion_mask
        self._recorder.log_batch(step=step, **{name: value for name, value in columns.items() if value is not None})

    def _generation_columns(self, inputs: dict[str, Any], step: int) -> dict[str, Any]:
        generation, row = self._generation, inputs.get(_ROW)
        if generation is None or row is None:
            return {}
        per_pass = int(self._trainer.args.steps_per_generation)
        if generation.micro_batches % per_pass == 0:
            generation.pass_start = step
        epoch = generation.micro_batches // per_pass
        generation.micro_batches += 1
        rows = np.array(row.tolist(), np.int64)
        columns: dict[str, Any] = {name: values[rows] for name, values in generation.columns.items()}
        prefixed = [name for name in columns if name.startswith(REWARD_COMPONENT_PREFIX)]
        components = {name.removeprefix(REWARD_COMPONENT_PREFIX): columns.pop(name) for name in prefixed}
        return {
            **columns,
            "reward_components": components,
            "rollout_step": generation.rollout_step,
            "epoch": epoch,
            "minibatch": step - generation.pass_start,
        }

    def optimizer_step(self) -> None:
        """Record the gradient norm and the learning rate of this step, which the log may skip."""
        with self._guard("record the optimizer step"):
            values = {"grad_norm": self._grad_norm, "learning_rate": self._trainer._get_learning_rate()}  # noqa: SLF001
            if self._trainer.is_world_process_zero() and self._grad_norm is not None:
                self._recorder.log_metrics(int(self._trainer.state.global_step) + 1, values, source="hook")
            self._grad_norm = None

    def step_end(self, step: int, *, log_follows: bool) -> None:
        """The step was made; if it is going to be logged, it ends with its log."""
        if not log_follows:
            self._recorder.end_step(step)

    def log(self, step: int, logs: dict[str, Any]) -> None:
        """Record what the trainer logs; only rank 0 has it whole."""
        with self._guard("record the log"):
            split = "eval" if any(name.startswith("eval_") for name in logs) else "train"
            if self._trainer.is_world_process_zero():
                self._recorder.log_metrics(step, logs, split=split)
            if split == "train":
                self._recorder.end_step(step)

    def train_begin(self, step: int) -> None:
        """Training begins after that step, maybe once more: what an attempt that broke off left of later steps is void."""
        self._recorder.retry_step(step + 1)

    def train_end(self) -> None:
        """Put everything on disk."""
        self._recorder.flush(_FLUSH_SECONDS)


def _float64(tensor: Any) -> NDArray[np.float64]:
    return np.array(tensor.tolist(), np.float64)


def _callback(hooks: Hooks) -> Any:
    """The trainer's callback that tells the hooks of steps and logs."""

    def on_optimizer_step(_self: Any, _args: Any, _state: Any, _control: Any, **_kwargs: Any) -> None:
        hooks.optimizer_step()

    def on_step_end(_self: Any, _args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
        hooks.step_end(int(state.global_step), log_follows=bool(control.should_log))

    def on_log(_self: Any, _args: Any, state: Any, _control: Any, logs: Any = None, **_kwargs: Any) -> None:
        hooks.log(int(state.global_step), dict(logs or {}))

    def on_train_begin(_self: Any, _args: Any, state: Any, _control: Any, **_kwargs: Any) -> None:
        hooks.train_begin(int(state.global_step))

    def on_train_end(_self: Any, _args: Any, _state: Any, _control: Any, **_kwargs: Any) -> None:
        hooks.train_end()

    members = {f.__name__: f for f in (on_train_begin, on_optimizer_step, on_step_end, on_log, on_train_end)}
    base = import_module("transformers").TrainerCallback
    return type("RecorderCallback", (base,), members)()


def _stop_callback(followers: Followers) -> Any:
    """The trainer's callback that ends the training after a step, with all that the trainer does at an end."""

    def on_step_end(_self: Any, args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
        if followers.stops(int(state.global_step)):
            control.should_training_stop = True
            control.should_save = control.should_save or getattr(args.save_strategy, "value", args.save_strategy) != "no"

    return type("StopCallback", (import_module("transformers").TrainerCallback,), {"on_step_end": on_step_end})()
