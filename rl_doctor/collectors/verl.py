"""verl's plugin: ``verl.plugins`` loads this module in every process, and its import installs the recording.

verl loads plugins while it is itself only half imported, so nothing of it is touched here: each module is patched right after it
has been imported. Where nothing asks for a recording, the patches call what they wrap and do nothing else.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Final

from rl_doctor.collectors.plugin import run_path, tell, when_imported
from rl_doctor.collectors.support import VERL

_MODULES: Final = {
    "verl.workers.engine_workers": ("rl_doctor.collectors.verl_worker", "patch_worker"),
    "verl.utils.tracking": ("rl_doctor.collectors.verl_driver", "patch_tracking"),
    "verl.trainer.ppo.v1.trainer_base": ("rl_doctor.collectors.verl_driver", "patch_trainer"),
    "verl.trainer.ppo.ray_trainer": ("rl_doctor.collectors.verl_driver", "patch_ray_trainer"),
}
"""Module of verl -> module and function that patches it."""

_waiting: Final = set(_MODULES)


def install() -> None:
    """Patch verl's modules once they are imported, those that are at once; a second call does nothing."""
    while _waiting:
        when_imported(_waiting.pop(), _patch)


def _patch(module: ModuleType) -> None:
    version = str(getattr(sys.modules.get("verl"), "__version__", "unknown"))
    if not VERL.supports(version):
        if run_path() is not None:
            tell(f"verl {version} is installed; supported are {VERL.versions}")
        return
    where, function = _MODULES[module.__name__]
    getattr(import_module(where), function)(module)


install()
