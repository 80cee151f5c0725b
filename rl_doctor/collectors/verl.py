"""verl's plugin: ``verl.plugins`` loads this module in every process, and its import installs the recording.

verl loads plugins while it is itself only half imported, so nothing of it is touched here: each module is patched right after it
has been imported. Where nothing asks for a recording, the patches call what they wrap and do nothing else.
"""

from __future__ import annotations

import logging
import os
import sys
from importlib import import_module
from types import ModuleType
from typing import Final

from rl_doctor.collectors.plugin import RUN_VARIABLE, when_imported

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


def install() -> None:
    """Patch verl's modules once they are imported, those that are at once; a second call does nothing."""
    while _waiting:
        when_imported(_waiting.pop(), _patch)


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
