"""The controller's side of OpenRLHF (0.11): ``BasePPOTrainer`` and ``RemoteExperienceMaker``.

It opens the run, tells the processes that train which step and row each sequence is, and records what is logged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any, Final

from rl_doctor.collectors.halting import stopped_since
from rl_doctor.collectors.openrlhf_config import critic_ranks, describe
from rl_doctor.collectors.openrlhf_mark import ENTRY, Destination, Mark
from rl_doctor.collectors.plugin import tell, without_stop, wrap
from rl_doctor.collectors.recorder import Recorder

_STATE: Final = "rl_doctor_driver"
_NOT_LOGGED: Final = frozenset({"generated_samples"})
_OF_CRITIC: Final = ("critic_", "values")

Method = Callable[..., Any]


def install_trainer(module: ModuleType, to: Destination, version: str) -> None:
    """Wrap what ``openrlhf.trainer.ppo_trainer`` does, so that its trainer is recorded."""

    def init(original: Method, trainer: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(trainer, *args, **kwargs)
        _begin(trainer, to, version)
        return result

    wrap(module.BasePPOTrainer, "__init__", init)
    wrap(module.BasePPOTrainer, "train_step", _train_step)
    wrap(module.BasePPOTrainer, "save_logs_and_checkpoints", _save_logs)
    wrap(module.BasePPOTrainer, "save_best_checkpoint", _save_best)


def install_maker(module: ModuleType) -> None:
    """Wrap what ``openrlhf.trainer.ppo_utils.experience_maker`` does."""
    wrap(module.RemoteExperienceMaker, "make_experience_batch", _make_experience_batch)
    wrap(module.RemoteExperienceMaker, "_dispatch_forward", _dispatch_forward)
    wrap(module.RemoteExperienceMaker, "_flatten_results", _flatten_results)


def install_generator(module: ModuleType, to: Destination) -> None:
    """Let ``openrlhf.trainer.ppo_utils.samples_generator`` run out of prompts once the training is to stop.

    The trainer then ends as it does after the last prompt: it leaves its loop, and saves the model. That works in the process of
    the trainer and in that of an asynchronous generator alike.
    """
    start = time.time()

    def generate(original: Method, generator: Any, *args: Any, **kwargs: Any) -> Any:
        if stopped_since(to.path, start):
            return [], None, 0, True
        return original(generator, *args, **kwargs)

    wrap(module.SamplesGenerator, "generate_samples", generate)


class Driver:
    """What the controller records.

    Args:
        recorder: of the run.
        critic: of the critic's passes, a run folder inside the run; None without a critic.
    """

    def __init__(self, recorder: Recorder, critic: Recorder | None) -> None:
        self.recorder = recorder
        self.critic = critic
        self.step = 0
        self.dispatched: Any = None
        self.reference: list[Any] | None = None

    def mark(self, experiences: list[Any]) -> None:
        """Give each sequence its step and row, and back the reference log-probabilities that the trainer has dropped."""
        session = self.recorder.session if self.recorder.recording else None
        critic = self.critic.session if self.critic is not None and self.critic.recording else None
        reference, self.reference = self.reference, None
        if session is None and critic is None:
            return
        for number, experience in enumerate(experiences):
            flags = experience.truncated
            truncated = [None] * len(experience.index) if flags is None else flags.tolist()
            marks = [
                Mark(session, critic, self.step, int(row), flag) for row, flag in zip(experience.index, truncated, strict=True)
            ]
            experience.info[ENTRY] = [mark.pack() for mark in marks]
            # Nothing but a loss on the KL reads it, and then it is there.
            if reference is not None and experience.base_action_log_probs is None:
                experience.base_action_log_probs = reference[number]

    def log(self, step: int, logs: Mapping[str, Any], split: str = "train") -> None:
        """Record what the trainer logs; what it logs of the critic stands in the critic's folder too."""
        values = {name: value for name, value in logs.items() if name not in _NOT_LOGGED}
        self.recorder.log_metrics(step, values, split=split)
        if self.critic is not None:
            self.critic.log_metrics(
                step, {name: value for name, value in values.items() if name.startswith(_OF_CRITIC)}, split=split
            )

    def end_step(self, step: int) -> None:
        """The step was made and logged."""
        self.recorder.end_step(step)
        if self.critic is not None:
            self.critic.end_step(step)


def _begin(trainer: Any, to: Destination, version: str) -> None:
    try:
        info = describe(trainer, version)
        recorder, critic = Recorder(to.path, info, **to.options), None
        if trainer.critic_model_group is not None:
            ranks = critic_ranks(trainer.args)
            own = replace(info, world_size=ranks, writing_ranks=tuple(range(ranks + 1)))
            critic = Recorder(to.critic, own, **without_stop(to.options))
        driver = Driver(recorder, critic)
        setattr(trainer, _STATE, driver)
        setattr(trainer.experience_maker, _STATE, driver)
    except Exception as error:  # noqa: BLE001 - a defect of the recorder must not become one of the training
        tell(f"the arguments of OpenRLHF {version} have another form ({type(error).__name__}: {error})")


def _train_step(original: Method, trainer: Any, rollout_samples: Any, global_step: Any, *args: Any, **kwargs: Any) -> Any:
    driver = getattr(trainer, _STATE, None)
    if driver is not None:
        with driver.recorder.guard("begin a step"):
            driver.step = int(global_step) + 1  # under which the step is logged
    return original(trainer, rollout_samples, global_step, *args, **kwargs)


def _save_logs(original: Method, trainer: Any, global_step: Any, logs_dict: Any = None, *args: Any, **kwargs: Any) -> Any:
    driver = getattr(trainer, _STATE, None)
    if driver is not None:
        with driver.recorder.guard("record the log"):
            driver.log(int(global_step), dict(logs_dict or {}))
            driver.end_step(int(global_step))
    return original(trainer, global_step, logs_dict, *args, **kwargs)


def _save_best(original: Method, trainer: Any, eval_metrics: Any, global_step: Any, *args: Any, **kwargs: Any) -> Any:
    driver = getattr(trainer, _STATE, None)
    if driver is not None:
        with driver.recorder.guard("record an evaluation"):
            driver.log(int(global_step), dict(eval_metrics or {}), split="eval")
    return original(trainer, eval_metrics, global_step, *args, **kwargs)


def _make_experience_batch(original: Method, maker: Any, *args: Any, **kwargs: Any) -> Any:
    experiences = original(maker, *args, **kwargs)
    driver = getattr(maker, _STATE, None)
    if driver is not None:
        with driver.recorder.guard("mark the experience"):
            driver.mark(experiences)
    return experiences


def _dispatch_forward(original: Method, maker: Any, group: Any, *args: Any, **kwargs: Any) -> Any:
    dispatched = original(maker, group, *args, **kwargs)
    driver = getattr(maker, _STATE, None)
    if driver is not None and group is not None and group is maker.initial_model_group:
        driver.dispatched = dispatched
    return dispatched


def _flatten_results(original: Method, maker: Any, refs: Any, *args: Any, **kwargs: Any) -> Any:
    results = original(maker, refs, *args, **kwargs)
    driver = getattr(maker, _STATE, None)
    if driver is not None and refs is driver.dispatched and refs is not None:
        driver.reference, driver.dispatched = list(results), None
    return results
