"""Finds out why an LLM post-training run is failing: records per-token data, recomputes metrics exactly, names the cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rl_doctor.api import check, open_run
    from rl_doctor.collectors.attach import attach
    from rl_doctor.collectors.recorder import Recorder
    from rl_doctor.report.model import Report
    from rl_doctor.store.run import Run

__all__ = ["Recorder", "Report", "Run", "__version__", "attach", "check", "open_run"]

_HOMES = {
    "Recorder": "rl_doctor.collectors.recorder",
    "Report": "rl_doctor.report.model",
    "Run": "rl_doctor.store.run",
    "attach": "rl_doctor.collectors.attach",
    "check": "rl_doctor.api",
    "open_run": "rl_doctor.api",
}


def __getattr__(name: str) -> Any:
    # Imported on first use, so that `import rl_doctor` costs a trainer nothing.
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
