"""What ``rl-doctor env`` finds out about this Python, from the metadata of its packages alone: nothing of them is imported."""

from __future__ import annotations

import importlib.util
import platform
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from rl_doctor import __version__
from rl_doctor.collectors.support import SUPPORTED, Support
from rl_doctor.frozen import frozen

PACKAGES: Final = (
    "torch", "transformers", "accelerate", "deepspeed", "vllm", "sglang", "ray", "TransferQueue", "numpy", "pyarrow", "numba",
    "wandb", "tensorboard", "trackio", "swanlab",
)  # fmt: skip
"""What trainers and trackers are made of, and what rl-doctor itself uses."""

ENABLES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({
    "entropy": ("entropy-collapse", "entropy-explosion", "tokens-contradict-entropy"),
    "old_value": ("value-not-learning",),
    "ref_logprob": ("kl-below-zero", "kl-flatline", "kl-penalty-dominates", "kl-reversed", "reference-reset", "wrong-reference"),
    "rollout_logprob": (
        "mismatch-before-explosion", "mismatch-by-part", "mismatch-in-some-rows", "mismatch-within-response",
        "missing-rollout-logprob", "rollout-trainer-mismatch", "truncated-sampling-mismatch", "unlawful-rollout-logprob",
    ),
    "group": (
        "advantage-reversed", "advantage-without-difference", "broken-groups", "duplicate-samples", "mixed-groups",
        "near-zero-variance-groups", "signal-from-failures", "wrong-answers-grow",
    ),
    "role": ("observation-in-loss",),
})  # fmt: skip
"""Column that may need a setting -> rules that are skipped without it. Further rules judge better with it."""

_UNREADABLE: Final = (OSError, ValueError, KeyError, TypeError, AttributeError)
_BUILD: Final = re.compile(r"^(cuda|hip|xpu)\b[^=]*=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)
_BUILT_FOR: Final = {"cuda": "CUDA", "hip": "ROCm", "xpu": "XPU"}


@frozen
class Installed:
    """A trainer in this environment.

    Attributes:
        support: what rl-doctor can do with it.
        version: the installed version; "" if it is there without metadata, None if it is not there.
        found: whether the trainer finds the recording by entry point; None where it needs none.
    """

    support: Support
    version: str | None
    found: bool | None

    @property
    def supported(self) -> bool:
        """Whether this version can be recorded."""
        return self.version is not None and self.support.supports(self.version)


def version_of(name: str) -> str | None:
    """Version of an installed distribution; "" if it can be imported but has no readable metadata, None if it is not there."""
    try:
        return metadata.version(name) or ""
    except metadata.PackageNotFoundError:
        pass
    except _UNREADABLE:
        return ""
    try:
        return "" if importlib.util.find_spec(name.lower().replace("-", "_")) else None
    except (*_UNREADABLE, ImportError):
        return None


def built_for() -> str | None:
    """What the installed PyTorch was built for, such as ``CUDA 12.8`` or ``CPU``; None where that is not known."""
    try:
        folder = metadata.distribution("torch").locate_file("torch")
        text = (Path(str(folder)) / "version.py").read_text("utf-8")
    except (metadata.PackageNotFoundError, *_UNREADABLE):
        return None
    found = _BUILD.search(text)
    return f"{_BUILT_FOR[found[1]]} {found[2]}" if found else "CPU"


def accelerators() -> int:
    """Number of NVIDIA GPUs that this machine shows."""
    try:
        return sum(1 for _ in Path("/dev").glob("nvidia[0-9]*"))
    except OSError:
        return 0


def trainers() -> tuple[Installed, ...]:
    """Every trainer that can be recorded, installed or not."""
    return tuple(Installed(one, version_of(one.name), _found(one.entry_point)) for one in SUPPORTED.values())


def _found(group: str) -> bool | None:
    if not group:
        return None
    try:
        return any(point.value.startswith("rl_doctor.") for point in metadata.entry_points(group=group))
    except _UNREADABLE:
        return False


def packages() -> dict[str, str | None]:
    """Package -> version, as ``version_of`` gives it."""
    return {name: version_of(name) for name in PACKAGES}


def document() -> dict[str, Any]:
    """Everything that was found out, for JSON."""
    return {
        "schema_version": 1,
        "doctor_version": __version__,
        "python": platform.python_version(),
        "packages": packages(),
        "torch_built_for": built_for(),
        "nvidia_gpus": accelerators(),
        "trainers": [_trainer(one) for one in trainers()],
    }


def _trainer(one: Installed) -> dict[str, Any]:
    support = one.support
    return {
        "name": support.name,
        "version": one.version,
        "supported": one.supported,
        "supported_versions": support.versions,
        "recorded": support.recorded,
        "how": list(support.how),
        "entry_point_found": one.found,
        "guide": support.guide or None,
        "columns": list(support.columns),
        "columns_with_a_setting": [
            {"column": column, "setting": switch.setting, "note": switch.note, "enables": list(ENABLES.get(column, ()))}
            for switch in support.switches
            for column in switch.columns
        ],
    }
