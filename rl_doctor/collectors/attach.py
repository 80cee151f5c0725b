"""Attach a recorder to a running trainer."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from os import PathLike
from typing import Any, Final

from rl_doctor.collectors.recorder import Recorder
from rl_doctor.collectors.support import SUPPORTED
from rl_doctor.errors import UsageError

_ADAPTERS: Final[Mapping[tuple[str, str], str]] = {
    ("trl", "GRPOTrainer"): "rl_doctor.collectors.trl",
    ("trl", "RLOOTrainer"): "rl_doctor.collectors.trl",
}
"""(top-level package, class) of a trainer -> module with ``attach_trainer(trainer, algorithm class, path, **options)``."""


def attach(trainer: Any, path: str | PathLike[str], **options: Any) -> Recorder:
    """Record what a trainer does, from now on.

    Call it in every process of a distributed run, after the trainer was built and before it trains. It changes nothing of the
    training: the weights and the logged metrics stay the same to the last bit.

    Args:
        trainer: TRL's ``GRPOTrainer`` or ``RLOOTrainer``, or a subclass.
        path: run folder; created if need be, continued as a new session if it exists.
        **options: further arguments of ``Recorder``, such as ``record_token_ids``, ``on_part`` or ``blocking``.

    Returns:
        The recorder; its ``detach()`` restores the trainer.

    Raises:
        UsageError: the trainer or its version is not supported. Nothing is raised later, whatever happens.
    """
    for base in type(trainer).__mro__:
        adapter = _ADAPTERS.get((base.__module__.partition(".")[0], base.__name__))
        if adapter is not None:
            recorder: Recorder = import_module(adapter).attach_trainer(trainer, base.__name__, path, **options)
            return recorder
    raise UsageError(f"cannot attach to {type(trainer).__module__}.{type(trainer).__qualname__}: {_instead(trainer)}")


def _instead(trainer: Any) -> str:
    """How a trainer is recorded that ``attach`` does not know."""
    own = SUPPORTED.get(type(trainer).__module__.partition(".")[0])
    if own is not None and not any(own.name == package for package, _ in _ADAPTERS):
        return f"{own.name} is recorded by {own.how[0]}"
    known = ", ".join(f"{package} {name}" for package, name in _ADAPTERS)
    return f"supported are {known}; record other trainers by hand with rl_doctor.Recorder"
