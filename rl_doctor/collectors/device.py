"""Copies from a CUDA device into host memory for which neither the training thread nor its stream waits."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any


class NoRoomError(Exception):
    """The device or the host has no memory left for copies."""


def is_on_cuda(value: Any) -> bool:
    """Whether the value is a tensor on a CUDA (or ROCm) device."""
    return bool(getattr(value, "is_cuda", False))


class DeviceCopier:
    """Copies tensors on a stream of their own, one for each device.

    The order of a copy: a clone on the trainer's current stream, so that what the trainer does next with its tensor comes after
    it; a side stream that waits, on the device, for that clone; a copy from there into pinned memory of PyTorch's caching
    allocator; an event behind it, for which whoever reads the copy has to wait. The clone is given back at once: the allocator
    keeps its memory until the side stream is done with it.
    """

    def __init__(self) -> None:
        self._streams: dict[Any, Any] = {}

    def copy(self, tensors: Sequence[Any]) -> tuple[list[Any], tuple[Any, ...]]:
        """Begin to copy tensors.

        Args:
            tensors: tensors on CUDA devices.

        Returns:
            Tensors in pinned memory in the same order, and the events after which they hold the values.

        Raises:
            NoRoomError: there is no memory for the copies.
        """
        hosts: list[Any] = [None] * len(tensors)
        events: list[Any] = []
        try:
            for device in dict.fromkeys(tensor.device for tensor in tensors):
                places = [place for place, tensor in enumerate(tensors) if tensor.device == device]
                copies, event = self._copy(device, [tensors[place] for place in places])
                events.append(event)
                for place, host in zip(places, copies, strict=True):
                    hosts[place] = host
        except RuntimeError as error:
            if "out of memory" in str(error).lower():
                raise NoRoomError(str(error)) from error
            raise
        return hosts, tuple(events)

    def _copy(self, device: Any, tensors: Sequence[Any]) -> tuple[list[Any], Any]:
        torch = sys.modules["torch"]
        clones = [tensor.detach().clone() for tensor in tensors]
        side = self._side_stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        hosts: list[Any] = []
        with torch.cuda.stream(side):
            for clone in clones:
                host = torch.empty(clone.shape, dtype=clone.dtype, device="cpu", pin_memory=True)
                host.copy_(clone, non_blocking=True)
                clone.record_stream(side)
                hosts.append(host)
        # Whoever waits for it sleeps instead of spinning on a processor that the trainer may want.
        event = torch.cuda.Event(blocking=True)
        event.record(side)
        return hosts, event

    def _side_stream(self, device: Any) -> Any:
        if device not in self._streams:
            cuda = sys.modules["torch"].cuda
            # The largest number is the lowest priority.
            self._streams[device] = cuda.Stream(device=device, priority=max(cuda.Stream.priority_range()))
        return self._streams[device]
