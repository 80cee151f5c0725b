"""verl's plugin: ``verl.plugins`` loads this module in every process, and its import installs the recording.

verl loads plugins while it is itself only half imported, so nothing of it is touched here: each module is patched right after it
has been imported. Where nothing asks for a recording, the patches call what they wrap and do nothing else.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, Final

RUN_VARIABLE: Final = "RL_DOCTOR_RUN"
"""Environment variable with the path of the run folder; it asks for a recording."""
_SUPPORTED: Final = (0, 9)
_MODULES: Final = {
    "verl.workers.engine_workers": ("rl_doctor.collectors.verl_worker", "patch_worker"),
    "verl.utils.tracking": ("rl_doctor.collectors.verl_driver", "patch_tracking"),
    "verl.trainer.ppo.v1.trainer_base": ("rl_doctor.collectors.verl_driver", "patch_trainer"),
    "verl.trainer.ppo.ray_trainer": ("rl_doctor.collectors.verl_driver", "patch_ray_trainer"),
}
"""Module of verl -> module and function that patches it."""

_logger = logging.getLogger("rl_doctor")
_waiting: Final = set(_MODULES)
_told: Final[set[str]] = set()


class _Loader(importlib.abc.Loader):
    """Loads a module as its own loader does, and patches it then."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._own.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._own
        try:
            self._own.exec_module(module)
        except BaseException:
            _waiting.add(module.__name__)
            raise
        _patch(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules that are to be patched, by asking the other finders."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's own spec with a loader that patches it; None for all other modules."""
        if fullname not in _waiting:
            return None
        _waiting.discard(fullname)
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: importlib.machinery.ModuleSpec | None = find(fullname, path, target) if find and finder is not self else None
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


def install() -> None:
    """Patch verl's modules once they are imported, those that are at once; a second call does nothing."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Finder())
    for name in _MODULES:
        if name in sys.modules:
            _waiting.discard(name)
            _patch(sys.modules[name])


def tell(what: str) -> None:
    """Log a line, once in this process; verl swallows what its plugins raise."""
    if what not in _told:
        _told.add(what)
        _logger.warning("rl-doctor, recording verl: %s", what)


def _patch(module: ModuleType) -> None:
    version = str(getattr(sys.modules.get("verl"), "__version__", "unknown"))
    numbers = tuple(int(part) if part.isdigit() else 0 for part in version.split(".")[:2])
    if numbers != _SUPPORTED:
        if os.environ.get(RUN_VARIABLE):
            tell(f"nothing is recorded: verl {version} is not supported, verl 0.9 is")
        return
    where, function = _MODULES[module.__name__]
    try:
        getattr(import_module(where), function)(module)
    except Exception as error:  # noqa: BLE001 - verl would say nothing of it, or not start
        tell(f"nothing is recorded: could not attach to {module.__name__} of verl {version} ({type(error).__name__}: {error})")


install()
