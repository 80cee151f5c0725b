"""What collectors share that install themselves in each process of a trainer: settings of the environment, patches after import.

Nothing here raises: what cannot be done is told in one line, and the training goes on unrecorded.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from rl_doctor.collectors.guard import logger, one_line

RUN_VARIABLE: Final = "RL_DOCTOR_RUN"
"""Environment variable with the path of the run folder; without it nothing is recorded."""

OPTIONS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "RL_DOCTOR_TOKEN_IDS": ("record_token_ids", lambda text: text.lower() not in {"0", "false", "no", "off"}),
    "RL_DOCTOR_SAMPLING": ("sampling", float),
    "RL_DOCTOR_QUOTA": ("quota", float),
    "RL_DOCTOR_STOP_ON": ("stop_on", str),
    "RL_DOCTOR_STOP_AFTER": ("stop_after", int),
}
"""Environment variable -> argument of ``Recorder``, and how it is read."""

_told: set[str] = set()


def run_path() -> str | None:
    """The run folder that the environment names, as an absolute path; None where nothing is to be recorded."""
    path = os.environ.get(RUN_VARIABLE, "").strip()
    return str(Path(path).absolute()) if path else None


def recorder_options() -> dict[str, Any]:
    """Arguments of ``Recorder`` that the environment gives; what cannot be read is told and left out."""
    found = {}
    for variable, (name, read) in OPTIONS.items():
        text = os.environ.get(variable, "").strip()
        try:
            if text:
                found[name] = read(text)
        except ValueError:
            logger.warning("rl-doctor: %s is %r, which is not a number; it has no effect", variable, text)
    return found


def without_stop(options: Mapping[str, Any]) -> dict[str, Any]:
    """The same arguments for the recorder of a critic, whose steps are not checked."""
    return {name: value for name, value in options.items() if name not in {"stop_on", "stop_after"}}


def tell(reason: str) -> None:
    """Log in one line, and once in this process, why nothing is recorded."""
    if reason not in _told:
        _told.add(reason)
        logger.error("rl-doctor records nothing (training goes on): %s", reason)


def when_imported(name: str, apply: Callable[[ModuleType], object]) -> None:
    """Call ``apply(module)`` right after the module is imported, or now if it is.

    Args:
        name: dotted name of a module.
        apply: what to do with it; a failure is told, and the import goes on.
    """
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        _attempt(name, apply, module)
        return
    finder = next((found for found in sys.meta_path if isinstance(found, _Finder)), None)
    if finder is None:
        finder = _Finder()
        sys.meta_path.insert(0, finder)
    finder.waiting.setdefault(name, []).append(apply)


def wrap(owner: type, name: str, around: Callable[..., Any]) -> None:
    """Replace a method of a class by ``around(original, self, *args, **kwargs)``; a second time it does nothing.

    Raises:
        AttributeError: the class has no such method.
    """
    original = getattr(owner, name)
    if getattr(original, "_rl_doctor", False):
        return

    @functools.wraps(original)
    def wrapped(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return around(original, self, *args, **kwargs)

    wrapped._rl_doctor = True  # type: ignore[attr-defined]  # noqa: SLF001
    setattr(owner, name, wrapped)


def _attempt(name: str, apply: Callable[[ModuleType], object], module: ModuleType) -> None:
    try:
        apply(module)
    except Exception as error:  # noqa: BLE001 - a defect of the recorder must not become one of the training
        tell(f"{name} has another form ({one_line(error)})")


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing itself: lets the other finders find, and adds a call after the module was executed."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Callable[[ModuleType], object]]] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self.waiting:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: importlib.machinery.ModuleSpec | None = None if find is None else find(name, path, target)
            if spec is not None:
                self._add_call(name, spec)
                return spec
        return None

    def _add_call(self, name: str, spec: importlib.machinery.ModuleSpec) -> None:
        loader = spec.loader
        execute = getattr(loader, "exec_module", None)
        if loader is None or execute is None:
            return

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for apply in self.waiting.pop(name, []):
                _attempt(name, apply, module)

        try:
            loader.exec_module = exec_module  # type: ignore[method-assign]
        except AttributeError as error:
            tell(f"{name} cannot be watched ({one_line(error)})")
