"""What OpenRLHF imports and calls on a GPU machine only, as little of it as its trainers need on the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[3]
MODULES: dict[str, tuple[str, ...]] = {
    "flash_attn": (),
    "flash_attn.bert_padding": ("index_first_axis", "pad_input", "rearrange", "unpad_input"),
    "flash_attn.utils": (),
    "flash_attn.utils.distributed": ("all_gather",),
    "vllm": ("SamplingParams",),
    "vllm.inputs": ("TokensPrompt",),
    "vllm.utils": ("random_uuid",),
    "pylatexenc": ("latex2text",),
    "aiohttp": (),
}
"""Modules that are imported where nothing of them is called, with the names that are taken from them."""


class Device(str):
    """The CPU, also where a number of a CUDA device is put into a name."""

    __slots__ = ()

    def __format__(self, _spec: str) -> str:
        return "0"


def nothing() -> Callable[..., None]:
    """A new function that does nothing: PyTorch's compiler tells functions apart by identity."""
    return lambda *_args, **_kwargs: None


def write_modules(folder: Path) -> Path:
    """Write the modules into a folder, for the module path of a process and its children."""
    for name, members in MODULES.items():
        package = folder.joinpath(*name.split("."))
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text("__version__ = '0.0'\n" + "".join(f"{member} = None\n" for member in members))
    return folder


def prepare() -> None:
    """Stand in for CUDA in this process."""
    import torch

    torch.cuda.current_device = lambda: Device("cpu")  # type: ignore[assignment]
    for name in ("synchronize", "empty_cache", "set_device"):
        setattr(torch.cuda, name, nothing())


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Variables of a process that trains."""
    path = os.pathsep.join([str(write_modules(folder)), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "LOCAL_RANK": "0", **more}
