"""Tensors are copied as they are when they are logged, whatever their type and state."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rl_doctor import open_run

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(600)]

SCRIPT = """
import sys, torch
from rl_doctor import Recorder
logits = torch.full((2, 3), -1.25, requires_grad=True)
logprob = logits * 1.0
rng = torch.get_rng_state()
with Recorder(sys.argv[1]) as recorder, torch.autocast("cpu", torch.bfloat16):
    mask = torch.ones(2, 3, dtype=torch.int64)
    old = torch.full((2, 3), -1.28, dtype=torch.bfloat16)
    with torch.inference_mode():
        reference = torch.full((2, 3), -2.0, dtype=torch.float16)
    advantage = torch.tensor([1.0, -1.0]).unsqueeze(1).expand(2, 3)
    recorder.log_batch(step=torch.tensor(1), response_mask=mask, logprob=logprob, old_logprob=old, ref_logprob=reference,
        entropy=torch.arange(6.0).view(3, 2).T, advantage=advantage, reward=[torch.tensor(0.5), torch.tensor(1.5)])
    recorder.log_metrics(1, {"norm": torch.tensor(0.75, dtype=torch.bfloat16), "vector": torch.ones(2)})
    old.zero_()
    mask.zero_()
    with torch.no_grad():
        logprob.zero_()
assert recorder.guard.reason is None, recorder.guard.reason
assert torch.equal(rng, torch.get_rng_state())
logprob.sum().backward()
assert torch.equal(logits.grad, torch.ones(2, 3))
"""


def test_tensors(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path / "run")], check=True, timeout=300)
    run = open_run(tmp_path / "run")
    (batch,) = run.batches(["logprob", "old_logprob", "ref_logprob", "entropy", "advantage", "reward"])
    assert set(batch.columns["logprob"].tolist()) == {-1.25}
    assert set(batch.columns["old_logprob"].tolist()) == {-1.28125}, "the nearest bfloat16"
    assert set(batch.columns["ref_logprob"].tolist()) == {-2.0}
    assert batch.columns["entropy"].tolist() == [0, 2, 4, 1, 3, 5]
    assert batch.columns["advantage"].tolist() == [1, 1, 1, -1, -1, -1]
    assert batch.columns["reward"].tolist() == [0.5, 1.5]
    assert run.info.logprob_dtype == "float32"
    metrics = run.metrics()
    np.testing.assert_array_equal(metrics.series("norm")[1], [0.75])
    assert "vector" not in metrics.names()
