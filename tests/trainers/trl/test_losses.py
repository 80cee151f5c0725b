"""What is recomputed equals what TRL's own ``_compute_loss`` returns and logs: every loss and switch, one rank and two."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rl_doctor.analyzer.formulas.aggregation import aggregated, token_mean
from rl_doctor.analyzer.formulas.entropy import high_entropy
from rl_doctor.analyzer.formulas.policy_loss import surrogate_of_ratio
from tests.trainers.trl.losses import DEFAULTS, EPSILON, GRPO, STEPS
from tests.trainers.warm import Warm
from tests.unit.analyzer.recompute.trl_given import folded, info_of, keys_of

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(600)]

EXACT = 1e-6
CASES = [*GRPO, "rloo"]
UNKNOWN = {"high_entropy": {"loss", "policy_loss"}}
"""Numbers that need a whole micro-batch at once."""


@pytest.fixture(scope="module")
def theirs(warm: Warm) -> Any:
    return warm.run("tests.trainers.trl.losses", {})[0]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_every_metric_of_the_loss(theirs: Any, name: str, ranks: int) -> None:
    expected = theirs["found"][f"{name}-{ranks}"]
    info = info_of("1.16.0", "rloo" if name == "rloo" else "grpo", {**DEFAULTS, **GRPO.get(name, {})}, ranks)
    found = keys_of(info, set(expected))
    assert set(expected) - set(found) == UNKNOWN.get(name, set())
    for key, item in found.items():
        entries = folded(item, theirs["tensors"], info, ranks)
        # The Hugging Face trainer divides RLOO's loss.
        value = expected[key] / (STEPS if name == "rloo" and key == "loss" else 1)
        number = entries.number if item.window == "mean" else 1
        if name == "rloo" and key == "loss" and ranks == 2:  # a row without a token adds its advantage, which is not recorded
            assert np.isnan(entries.total)
            continue
        assert np.isclose(entries.total / number, value, rtol=0, atol=entries.tolerance / number), key


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_loss_of_the_tokens_of_high_entropy(theirs: Any, ranks: int) -> None:
    """From the formulas alone: the threshold is a quantile over the micro-batch of all ranks, which no sum over parts gives."""
    settings = {**DEFAULTS, **GRPO["high_entropy"]}
    policy = whole = summand = 0.0
    for of_ranks in theirs["tensors"]:
        parts = [_covered(part) for part in of_ranks[:ranks]]
        kept = high_entropy(np.concatenate([part["entropy"] for part in parts]), 1.0 - settings["top_entropy_quantile"])
        starts = np.cumsum([0, *(len(part["entropy"]) for part in parts)])
        for part, keep in zip(parts, np.split(kept, starts[1:-1]), strict=True):
            ratio = np.exp(part["logprob"] - part["old_logprob"])
            loss = np.where(keep, surrogate_of_ratio(ratio, part["advantage"], EPSILON, EPSILON), 0.0)
            mean = aggregated(np.array([loss.sum()]), token_mean(np.array([len(loss)])))
            bonus = settings["entropy_coef"] * part["entropy"][keep].sum() / max(keep.sum(), 1)
            policy += mean / ranks / STEPS
            whole += (mean - bonus) / ranks / STEPS
            summand += np.abs(loss).sum() / max(len(loss), 1) / ranks / STEPS
    expected = theirs["found"][f"high_entropy-{ranks}"]
    assert abs(policy - expected["policy_loss"]) <= EXACT * summand
    assert abs(whole - expected["loss"]) <= EXACT * summand


def _covered(part: Any) -> dict[str, Any]:
    """The columns of one rank's micro-batch at the tokens that its loss covers."""
    mask = np.array(part["response_mask"], np.bool_)
    found = {name: np.array(part[name])[mask] for name in ("logprob", "old_logprob", "entropy")}
    return {**found, "advantage": np.broadcast_to(np.array(part["advantage"])[:, None], mask.shape)[mask]}
