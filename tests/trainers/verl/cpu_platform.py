"""A CPU platform for verl, whose engines run on accelerators only; verl loads it where ``VERL_USE_EXTERNAL_MODULES`` names it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


class _Device(ModuleType):
    """``torch.cpu`` with the functions of an accelerator's module that verl calls."""

    def __getattr__(self, name: str) -> Any:
        if name == "mem_get_info":
            return lambda *_args: (0, 0)
        if name == "get_device_name":
            return lambda *_args: "CPU"
        if name.startswith("__") or hasattr(torch.cpu, name):
            return getattr(torch.cpu, name)
        return lambda *_args, **_kwargs: 0


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):  # type: ignore[misc]
    """The CPU as verl's device."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _Device("cpu")

    def is_available(self) -> bool:
        return True

    def current_device(self) -> Any:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, *_device: Any) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        pass

    def manual_seed_all(self, seed: int) -> None:
        pass

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, *_device: Any) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, *_message: Any) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        return "CPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> Any:
        return None


_init_process_group = torch.distributed.init_process_group


def _with_one_backend(backend: str | None = None, **kwargs: Any) -> None:
    """verl names a backend for the CPU and one for its device, which are the same here."""
    _init_process_group("gloo" if backend == "cpu:gloo,cpu:gloo" else backend, **kwargs)


torch.distributed.init_process_group = _with_one_backend
