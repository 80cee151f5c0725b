"""Copies of what a trainer hands over, so that it may overwrite its tensors at once. PyTorch is never imported here."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.frozen import frozen

_LONG: Final = 500
"""numpy gives up the interpreter while it copies more elements than that."""
_PLAIN: Final = frozenset({str, int, float, bool, type(None)})


@frozen(eq=False)
class Bits:
    """Elements of a type that numpy has not (bfloat16, float8), as integers of the same size.

    Attributes:
        values: the integers.
        dtype: PyTorch's type.
    """

    values: NDArray[Any]
    dtype: Any


def is_tensor(value: Any) -> bool:
    """Whether the value is a PyTorch tensor."""
    kind = getattr(sys.modules.get("torch"), "Tensor", None)  # absent while PyTorch is being imported
    return kind is not None and isinstance(value, kind)


def is_plain(values: Iterable[Any]) -> bool:
    """Whether all values are texts, numbers or None."""
    return _PLAIN.issuperset(map(type, values))


def is_number(value: Any) -> bool:
    """Whether the value may be one number that a float64 can hold; None is NaN, and a truth value is none."""
    shape = getattr(value, "shape", None)
    if shape is not None:
        return math.prod(shape) == 1 and str(getattr(value, "dtype", "")).removeprefix("torch.") != "bool"
    if value is None or isinstance(value, float):
        return True
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        return False
    try:
        float(value)
    except (ArithmeticError, TypeError, ValueError):
        return False
    return True


def local(value: Any) -> Any:
    """What a process holds of a value; None for what it cannot tell without the others.

    Of a distributed tensor (DTensor) that is a replica or the rows of this process. One that is cut otherwise, or summed only
    later, would take a collective call, which a recorder must not make.
    """
    placements = getattr(value, "placements", None)
    if placements is None or not hasattr(value, "to_local"):
        return value
    if all(placement.is_replicate() or placement.is_shard(0) for placement in placements):
        return value.detach().to_local()
    return None


def size_of(value: Any) -> int:
    """Bytes that a snapshot of the value takes, roughly; on an accelerator a copy there comes first."""
    if is_tensor(value):
        size = int(value.numel()) * int(value.element_size())
        return size if value.is_cpu else 2 * size
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


def view_of(value: Any) -> NDArray[Any] | Bits | None:
    """An array or a tensor in host memory, without copying it; None for anything else."""
    if isinstance(value, np.ndarray):
        return value
    if not is_tensor(value) or not value.is_cpu:
        return None
    tensor = value.detach() if value.requires_grad else value
    whole = _integers_for(tensor.dtype)
    if whole is not None:
        return Bits(tensor.view(whole).numpy(), tensor.dtype)
    array: NDArray[Any] = tensor.numpy()
    return array


def snapshot(value: Any) -> Any:
    """A copy in host memory that shares nothing with the value.

    Args:
        value: a tensor in host memory (any floating type, with or without gradient), an array, a list, or a scalar. A tensor on
            an accelerator is waited for.

    Returns:
        An array, ``Bits``, or a list.
    """
    view = view_of(value)
    if isinstance(view, Bits):
        return Bits(_copied(view.values), view.dtype)
    if view is not None:
        return _copied(view)
    if isinstance(value, (list, tuple)):
        return list(value) if is_plain(value) else [member(item) for item in value]
    if is_tensor(value):
        return view_of(value.detach().to("cpu", copy=True))
    return np.array(value, copy=True)


def member(item: Any) -> Any:
    """A snapshot of a member of a list."""
    return snapshot(item) if is_tensor(item) or isinstance(item, np.ndarray) else item


def dtype_of(value: Any) -> str:
    """Name of the element type of a tensor or an array: ``bfloat16``, ``float32`` ..."""
    return str(getattr(value, "dtype", "")).removeprefix("torch.")


def to_array(value: Any) -> NDArray[Any]:
    """A snapshot as a numpy array; types that numpy has not become float32, which holds them exactly."""
    if is_tensor(value):
        value = view_of(value)
    if isinstance(value, Bits):
        return _real(value)
    if isinstance(value, list) and not is_plain(value):
        value = [_element(item) for item in value]
    if isinstance(value, list) and any(item is None or isinstance(item, str) for item in value):
        return np.array(value, np.object_)
    return np.asarray(value)


@cache
def _integers_for(dtype: Any) -> Any:
    """The integer type to view a type as that numpy has not; None where it has it."""
    if not str(dtype).removeprefix("torch.").startswith(("bfloat16", "float8")):
        return None
    torch = sys.modules["torch"]
    return torch.int16 if dtype.itemsize == 2 else torch.uint8


def _copied(array: NDArray[Any]) -> NDArray[Any]:
    """A copy, made without giving up the interpreter: whoever gets it back late waits for the writer."""
    if array.dtype.hasobject or array.size < _LONG or array.strides[-1:] != (array.itemsize,):
        return np.array(array, copy=True)
    return np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape)


def _element(item: Any) -> Any:
    """A member of a list: a number where it is one."""
    if isinstance(item, Bits) or is_tensor(item):
        item = to_array(item)
    return item.item() if isinstance(item, np.ndarray) and item.size == 1 else item


def _real(bits: Bits) -> NDArray[np.float32]:
    if str(bits.dtype).endswith("bfloat16"):
        wide: NDArray[np.float32] = (bits.values.astype(np.uint16).astype(np.uint32) << 16).view(np.float32)
        return wide
    values: NDArray[np.float32] = sys.modules["torch"].from_numpy(bits.values.copy()).view(bits.dtype).float().numpy()
    return values
