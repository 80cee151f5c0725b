"""What PyTorch is doing right now, as far as that forbids recording. It is looked up among what is loaded, never imported."""

from __future__ import annotations

import sys


def compiling() -> bool:
    """Whether ``torch.compile`` is tracing the code that asks; it sees a constant here and nothing of what follows."""
    torch = sys.modules.get("torch")
    compiler = getattr(torch, "compiler", None)  # absent while PyTorch is being imported
    return compiler is not None and compiler.is_compiling()


def why_not_now() -> str | None:
    """Why what is handed over now must not be recorded; None if it may be."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "_C"):
        return None
    # Gradient checkpointing around the loss computes it once more, inside the backward pass.
    if getattr(torch._C, "_current_graph_task_id", lambda: -1)() != -1:  # noqa: SLF001 - nothing public tells
        return "what is logged while a backward pass runs is left out: it is the recomputation of what was logged before"
    cuda = getattr(torch, "cuda", None)
    if cuda is not None and cuda.is_initialized() and cuda.is_current_stream_capturing():
        return "what is logged while a CUDA graph is captured is left out: nothing is computed then; log it after the replay"
    return None
