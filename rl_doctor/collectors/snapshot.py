"""Copies of what a trainer hands over, so that it may overwrite its tensors at once. PyTorch is never imported here."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def is_tensor(value: Any) -> bool:
    """Whether the value is a PyTorch tensor, told by what it can do."""
    return all(hasattr(value, name) for name in ("detach", "element_size", "numel", "to"))


def size_of(value: Any) -> int:
    """Bytes that a snapshot of the value takes, roughly."""
    if is_tensor(value):
        return int(value.numel()) * int(value.element_size())
    if isinstance(value, np.ndarray):
        return int(value.size) * max(1, value.itemsize)
    return 64 * len(value) if isinstance(value, (list, tuple)) else 64


def width_of(value: Any) -> int | None:
    """Number of columns of a value with two dimensions; None for any other."""
    shape = getattr(value, "shape", None)
    if shape is not None:
        return int(shape[1]) if len(shape) == 2 else None
    first = value[0] if isinstance(value, (list, tuple)) and len(value) else None
    return len(first) if isinstance(first, (list, tuple)) else None


def snapshot(value: Any) -> Any:
    """A copy in host memory that shares nothing with the value.

    Args:
        value: a tensor (any device and floating type, with or without gradient), an array, a list, or a scalar.

    Returns:
        A tensor in host memory, an array, or a list. A tensor on an accelerator is waited for.
    """
    if is_tensor(value):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, (list, tuple)):
        return [snapshot(item) if is_tensor(item) or isinstance(item, np.ndarray) else item for item in value]
    return np.array(value, copy=True)


def dtype_of(value: Any) -> str:
    """Name of the element type of a tensor or an array: ``bfloat16``, ``float32`` ..."""
    return str(getattr(value, "dtype", "")).removeprefix("torch.")


def to_array(value: Any) -> NDArray[Any]:
    """A snapshot as a numpy array; types that numpy has not (bfloat16) become float32, which holds them exactly."""
    if is_tensor(value):
        if dtype_of(value).startswith(("bfloat16", "float8")):
            value = value.float()
        array: NDArray[Any] = value.numpy()
        return array
    if isinstance(value, list) and any(is_tensor(item) for item in value):
        value = [item.item() if is_tensor(item) and item.numel() == 1 else item for item in value]
    if isinstance(value, list) and any(item is None or isinstance(item, str) for item in value):
        return np.array(value, np.object_)
    return np.asarray(value)
