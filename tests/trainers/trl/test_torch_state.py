"""Recording in the middle of what PyTorch does: recomputing, compiling, autocast, inference mode, distributed tensors."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_doctor import Recorder, open_run

pytestmark = pytest.mark.trainer
torch = pytest.importorskip("torch")


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "rl_doctor" and record.levelno >= logging.WARNING]


def steps_of(folder: Path) -> list[int]:
    return [step for got in open_run(folder).batches(["step", "logprob"]) for step in got.columns["step"].tolist()]


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])
def test_a_loss_that_is_computed_again_is_recorded_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, reentrant: bool
) -> None:
    from torch.utils.checkpoint import checkpoint

    weight = torch.nn.Parameter(torch.ones(4, 1))
    calls, gradients = [], []
    for folder in (None, tmp_path / "run"):
        recorder = None if folder is None else Recorder(folder)
        weight.grad = None
        for step in (1, 2):

            def loss(x: Any, step: int = step, recorder: Recorder | None = recorder) -> Any:
                calls.append(step)
                logprob = torch.nn.functional.logsigmoid(x * weight)
                if recorder is not None:
                    recorder.log_batch(step=step, logprob=logprob, response_mask=torch.ones(4, 3, dtype=torch.bool))
                    recorder.log_metrics(step, {"loss": logprob.mean()})
                return (logprob * logprob).mean()  # needs a tensor that is made after the call, or the call is not repeated

            given = torch.randn(4, 3, generator=torch.Generator().manual_seed(step), requires_grad=True)
            checkpoint(loss, given, use_reentrant=reentrant).backward()
        gradients.append(None if weight.grad is None else weight.grad.clone())
        if recorder is not None:
            recorder.close()
    assert calls == [1, 1, 2, 2] * 2, "the loss ran again in the backward pass"
    assert steps_of(tmp_path / "run") == [1] * 4 + [2] * 4
    assert len(open_run(tmp_path / "run").metrics().series("loss")[0]) == 2
    (line,) = said(caplog)
    assert "backward pass" in line
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=0)


def test_compiled_code_is_not_broken_and_what_it_logs_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(tmp_path / "run")

    def step(x: Any) -> Any:
        recorder.log_batch(step=1, logprob=-x)
        recorder.log_metrics(1, {"loss": x.mean()})
        recorder.end_step(1)
        return x * 2

    compiled = torch.compile(step, fullgraph=True, backend="eager")
    for _ in range(3):
        torch.testing.assert_close(compiled(torch.ones(2, 3)), torch.full((2, 3), 2.0))
    recorder.log_batch(step=2, logprob=-torch.ones(2, 3))
    recorder.close()
    assert steps_of(tmp_path / "run") == [2, 2]
    (line,) = said(caplog)
    assert "torch.compile" in line
    assert recorder.guard.reason is None


@pytest.fixture
def one_process() -> Iterator[Any]:
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def test_of_a_distributed_tensor_the_own_rows_are_recorded_without_asking_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, one_process: Any
) -> None:
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    values = -torch.rand(4, 3)
    tensors = {
        "logprob": DTensor.from_local(values, one_process, [Shard(0)]),
        "old_logprob": DTensor.from_local(values, one_process, [Replicate()]),
        "ref_logprob": DTensor.from_local(values, one_process, [Shard(1)]),
        "entropy": DTensor.from_local(values, one_process, [Partial()]),
    }
    with Recorder(tmp_path / "run") as recorder:
        recorder.log_batch(step=1, **tensors)
        recorder.log_metrics(1, {"norm": DTensor.from_local(torch.tensor(2.0), one_process, [Replicate()])})
        recorder.log_metrics(1, {"other": DTensor.from_local(torch.tensor(2.0), one_process, [Partial()])})
    run = open_run(tmp_path / "run")
    (got,) = run.batches(["logprob", "old_logprob"])
    for name in ("logprob", "old_logprob"):
        np.testing.assert_array_equal(got.columns[name], values.numpy().ravel())
    assert not {"ref_logprob", "entropy"} & set(run.columns)
    assert list(run.metrics().names()) == ["norm"]
    assert recorder.guard.reason is None
    assert len(said(caplog)) == 3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float8_e4m3fn"])
@pytest.mark.parametrize("view", ["whole", "part of wider rows", "transposed", "one value for all"])
def test_every_type_and_layout_is_copied_exactly(tmp_path: Path, dtype: str, view: str) -> None:
    generator = torch.Generator().manual_seed(0)
    values = (-4 * torch.rand(8, 900, generator=generator)).to(getattr(torch, dtype))
    original = values.float().clone()
    shaped = {
        "whole": lambda: values,
        "part of wider rows": lambda: torch.cat([original, original], 1).to(values.dtype)[:, 900:],
        "transposed": lambda: values.float().T.contiguous().to(values.dtype).T,
        "one value for all": lambda: values[:, :1].expand(-1, 900),
    }[view]()
    lengths = torch.tensor([900, 850, 0, 700, 899, 1, 800, 900])
    mask = torch.arange(900) < lengths[:, None]
    with Recorder(tmp_path / "run") as recorder:
        recorder.log_batch(step=1, logprob=shaped, response_mask=mask)
        if view != "one value for all":
            shaped.fill_(-99)
    assert recorder.guard.reason is None
    (got,) = open_run(tmp_path / "run").batches(["logprob"])
    expected = original[:, :1].expand(-1, 900) if view == "one value for all" else original
    np.testing.assert_array_equal(got.columns["logprob"], expected[mask].numpy())


def test_in_autocast_and_in_inference_mode(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run") as recorder:
        with torch.autocast("cpu", torch.bfloat16):
            recorder.log_batch(step=1, logprob=-torch.ones(2, 3).matmul(torch.ones(3, 3)))
        with torch.inference_mode():
            recorder.log_batch(step=2, logprob=-torch.ones(2, 3))
    assert recorder.guard.reason is None
    assert steps_of(tmp_path / "run") == [1, 1, 2, 2]
