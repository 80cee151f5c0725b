"""What OpenRLHF imports and calls on a GPU machine only, as little of it as its trainers need on the CPU."""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


class Device(str):
    """The CPU, also where a number of a CUDA device is put into a name."""

    def __format__(self, _spec: str) -> str:
        return "0"


def nothing() -> Callable[..., None]:
    """A new function that does nothing: PyTorch's compiler tells functions apart by identity."""
    return lambda *_args, **_kwargs: None


def prepare() -> None:
    """Stand in for flash-attn, vLLM and CUDA; call it before OpenRLHF is imported."""
    import torch

    for name, members in {
        "flash_attn": (),
        "flash_attn.bert_padding": ("index_first_axis", "pad_input", "rearrange", "unpad_input"),
        "flash_attn.utils": (),
        "flash_attn.utils.distributed": ("all_gather",),
        "vllm": ("SamplingParams",),
        "vllm.inputs": ("TokensPrompt",),
        "vllm.utils": ("random_uuid",),
        "pylatexenc": ("latex2text",),
        "aiohttp": (),
    }.items():
        module = ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        module.__path__ = []
        vars(module).update({member: nothing() for member in members}, __version__="0.0")
        sys.modules[name] = module
    torch.cuda.current_device = lambda: Device("cpu")  # type: ignore[assignment]
    for name in ("synchronize", "empty_cache", "set_device"):
        setattr(torch.cuda, name, nothing())
