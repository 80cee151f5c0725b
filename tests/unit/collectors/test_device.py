"""What lies on a CUDA device: the order of calls, with a stand-in for PyTorch that remembers what is asked of it."""

from __future__ import annotations

import logging
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_doctor import Recorder, open_run

DEVICE = "cuda:0"


class Device:
    """The calls so far; what a side stream was asked to copy arrives when its event is waited for."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.copies: list[tuple[Tensor, np.ndarray]] = []
        self.full = False
        self.capturing = False


class Tensor:
    """A tensor; ``where`` is the device, or None in host memory."""

    def __init__(self, values: np.ndarray, where: Device | None) -> None:
        self._values, self._where = np.asarray(values), where
        self.requires_grad = where is not None
        self.is_cuda, self.is_cpu = where is not None, where is None
        self.device = "cpu" if where is None else DEVICE
        self.dtype, self.shape = self._values.dtype, self._values.shape

    def numel(self) -> int:
        return self._values.size

    def element_size(self) -> int:
        return self._values.itemsize

    def detach(self) -> Tensor:
        return self

    def clone(self) -> Tensor:
        assert self._where is not None
        if self._where.full:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 MiB")
        self._where.calls.append("clone")
        return Tensor(self._values.copy(), self._where)

    def copy_(self, other: Tensor, *, non_blocking: bool) -> None:
        assert non_blocking
        assert other._where is not None
        other._where.calls.append("copy")
        other._where.copies.append((self, other._values))

    def record_stream(self, stream: str) -> None:
        assert self._where is not None
        self._where.calls.append(f"record {stream}")

    def numpy(self) -> np.ndarray:
        assert self._where is None, "read on the device, which waits"
        return self._values

    def to(self, *_: Any, **__: Any) -> Tensor:
        raise AssertionError("copied in a way that waits")

    item = tolist = cpu = to


class Stream:
    def __init__(self, device: Device) -> None:
        self._device = device

    def wait_stream(self, other: str) -> None:
        self._device.calls.append(f"side waits for {other}")

    def __str__(self) -> str:
        return "side"

    def __enter__(self) -> None:
        self._device.calls.append("enter side")

    def __exit__(self, *_: object) -> None:
        self._device.calls.append("leave side")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    found = Device()

    class Event:
        def __init__(self, *, blocking: bool) -> None:
            assert blocking, "whoever waits would spin"

        def record(self, stream: Stream) -> None:
            found.calls.append(f"event behind {stream}")

        def synchronize(self) -> None:
            found.calls.append("wait for the event")
            for host, values in found.copies:
                host._values[...] = values
            found.copies.clear()

    class SideStream(Stream):
        def __init__(self, *, device: object, priority: int) -> None:
            assert device == DEVICE
            assert priority == 0, "the lowest there is"
            super().__init__(found)

        @staticmethod
        def priority_range() -> tuple[int, int]:
            return 0, -5

    def empty(shape: tuple[int, ...], *, dtype: np.dtype[Any], device: str, pin_memory: bool) -> Tensor:
        assert (device, pin_memory) == ("cpu", True)
        found.calls.append("pinned")
        return Tensor(np.full(shape, 99).astype(dtype), None)

    cuda = types.SimpleNamespace(
        Stream=SideStream, Event=Event, stream=lambda side: side, current_stream=lambda _: "current", is_initialized=lambda: True,
        is_current_stream_capturing=lambda: found.capturing,
    )  # fmt: skip
    torch = types.SimpleNamespace(
        Tensor=Tensor, cuda=cuda, empty=empty, compiler=types.SimpleNamespace(is_compiling=lambda: False),
        _C=types.SimpleNamespace(_current_graph_task_id=lambda: -1),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", torch)
    return found


LENGTHS = np.array([3, 5, 0, 4])
MASK = np.arange(5) < LENGTHS[:, None]
LOGPROB = -np.arange(20, dtype=np.float32).reshape(4, 5)


def columns(device: Device) -> dict[str, Any]:
    return {
        "logprob": Tensor(LOGPROB, device),
        "response_mask": Tensor(MASK, device),
        "response_length": Tensor(LENGTHS, device),
        "group": [Tensor(np.array(number), device) for number in (7, 7, 8, 8)],
        "uid": ["a", "b", "c", "d"],
    }


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_nothing_waits_but_the_writer(tmp_path: Path, device: Device) -> None:
    with Recorder(tmp_path / "run") as recorder:
        backlog = recorder._backlog
        messages: list[Any] = []
        put, backlog.put = backlog.put, lambda message, **_: messages.append(message)  # type: ignore[method-assign]
        recorder.log_batch(step=1, **columns(device))
        recorder.log_metrics(1, {"loss": Tensor(np.array(0.5), device), "histogram": Tensor(np.zeros(3), device), "plain": 2.0})
        tensors, scalar = 7, 1
        for copied in (tensors, scalar):
            assert device.calls[:copied] == ["clone"] * copied
            assert device.calls[copied : copied + 2] == ["side waits for current", "enter side"]
            end = copied + 2 + 3 * copied
            assert device.calls[copied + 2 : end] == ["pinned", "copy", "record side"] * copied
            assert device.calls[end : end + 2] == ["leave side", "event behind side"]
            del device.calls[: end + 2]
        assert not device.calls, "and nothing else"
        backlog.put = put  # type: ignore[method-assign]
        for message in messages:
            put(message)
    assert device.calls.count("wait for the event") == 2
    assert recorder.guard.reason is None
    (got,) = open_run(tmp_path / "run").batches(["logprob", "response_length", "group"])
    np.testing.assert_array_equal(got.columns["logprob"], LOGPROB[MASK])
    assert got.columns["response_length"].tolist() == LENGTHS.tolist()
    assert got.columns["group"].tolist() == ["7", "7", "8", "8"]
    logged = open_run(tmp_path / "run").metrics()
    assert logged.series("loss")[1].tolist() == [0.5]
    assert logged.names() == ("loss", "plain") or set(logged.names()) == {"loss", "plain"}


def test_a_tensor_under_two_names_is_copied_once(tmp_path: Path, device: Device) -> None:
    logprob = Tensor(LOGPROB, device)
    with Recorder(tmp_path / "run") as recorder:
        recorder.log_batch(step=1, logprob=logprob, old_logprob=logprob)
    assert device.calls.count("clone") == 1
    (got,) = open_run(tmp_path / "run").batches(["logprob", "old_logprob"])
    np.testing.assert_array_equal(got.columns["old_logprob"], got.columns["logprob"])


def test_copies_on_the_device_count_towards_the_bound(tmp_path: Path, device: Device) -> None:
    recorder = Recorder(tmp_path / "run", queue_bytes=3 * LOGPROB.nbytes)
    recorder.log_batch(step=1, logprob=Tensor(LOGPROB, device))
    recorder.log_batch(step=1, logprob=Tensor(LOGPROB, device))
    recorder.close()
    assert recorder.dropped_steps == 1


def test_no_room_on_the_device_costs_a_step_not_the_recording(
    tmp_path: Path, device: Device, caplog: pytest.LogCaptureFixture
) -> None:
    with Recorder(tmp_path / "run") as recorder:
        for step in (1, 2, 3):
            device.full = step == 2
            recorder.log_batch(step=step, **columns(device))
    assert recorder.dropped_steps == 1
    assert [got.step for got in open_run(tmp_path / "run").batches(["step"])] == [1, 3]
    line, total = said(caplog)
    assert "no memory for copies" in line
    assert "1 step(s) were dropped" in total


def test_what_is_logged_while_a_graph_is_captured_is_left_out(
    tmp_path: Path, device: Device, caplog: pytest.LogCaptureFixture
) -> None:
    with Recorder(tmp_path / "run") as recorder:
        for step in (1, 2, 3):
            device.capturing = step > 1
            recorder.log_batch(step=step, **columns(device))
            recorder.log_metrics(step, {"loss": Tensor(np.array(0.5), device)})
    (line,) = said(caplog)
    assert "CUDA graph" in line
    assert [got.step for got in open_run(tmp_path / "run").batches(["step"])] == [1]
