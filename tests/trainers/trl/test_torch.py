"""Single formulas against the functions that trainers call for them."""

from __future__ import annotations

import numpy as np
import pytest

from rl_doctor.analyzer.engine import analyze
from rl_doctor.analyzer.formulas import advantage, kl
from rl_doctor.schema import RunConfig
from tests.unit.analyzer.memory import MemoryRun

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.trainer


@pytest.mark.parametrize("scale", [0.01, 0.9, 5.0])
def test_the_clip_coefficient_is_the_factor_that_torch_scales_gradients_by(scale: float) -> None:
    weights = [torch.nn.Parameter(torch.zeros(5, dtype=torch.float64)) for _ in range(3)]
    gradients = [scale * torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient.clone()
    norm = float(torch.nn.utils.clip_grad_norm_(weights, 1.0))
    rows = [{"step": 1, "grad_norm": norm}]
    coefficient = analyze(MemoryRun(rows, RunConfig(max_grad_norm=1.0)), ["optim.clip_coef"]).series["optim.clip_coef"].values[0]
    for weight, gradient in zip(weights, gradients, strict=True):
        np.testing.assert_allclose(weight.grad.numpy(), coefficient * gradient.numpy(), rtol=1e-12)


def test_the_standard_deviation_of_a_group_is_that_of_trl() -> None:
    nanstd = pytest.importorskip("trl.trainer.utils").nanstd
    rewards = torch.randn(6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    squares = ((rewards - rewards.mean(1, keepdim=True)) ** 2).sum(1).numpy()
    ours = advantage.group_deviation(squares, np.full(6, 8), 1)
    np.testing.assert_allclose(ours, nanstd(rewards, dim=1).numpy(), rtol=2**-24)  # it takes n / (n - 1) in float32


def test_kl_estimators_have_the_divergence_of_torch_as_their_expectation() -> None:
    logits = torch.randn(2, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    p, q = (torch.distributions.Categorical(logits=row) for row in logits)
    divergence = float(torch.distributions.kl_divergence(p, q))
    x = (q.logits - p.logits).numpy()
    for kernel in (kl.k1, kl.k3):
        assert float((p.probs.numpy() * kernel(x)).sum()) == pytest.approx(divergence, rel=1e-12)


def test_the_clipped_surrogate_in_float32_is_that_of_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    new, old, advantage = (torch.randn(4, 50, generator=generator) for _ in range(3))
    ratio = torch.exp(new - old)
    expected = torch.max(-advantage * ratio, -advantage * torch.clamp(ratio, 0.8, 1.3))
    expected = torch.where(advantage < 0, torch.min(expected, -advantage * 3.0), expected).mean()
    tokens = {"logprob": new, "old_logprob": old, "advantage": advantage}
    rows = [{"step": 1} | {name: values[i].tolist() for name, values in tokens.items()} for i in range(4)]
    config = RunConfig(clip_low=0.2, clip_high=0.3, dual_clip=3.0, loss_agg="token-mean")
    loss = analyze(MemoryRun(rows, config), ["policy.loss_pg"]).series["policy.loss_pg"].values[0]
    assert loss == pytest.approx(float(expected), rel=1e-6)
