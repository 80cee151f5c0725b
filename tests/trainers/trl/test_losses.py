"""What is recomputed equals what TRL's own ``_compute_loss`` returns and logs: every loss and switch, one rank and two."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.trainers.trl.conftest import result_of
from tests.trainers.trl.losses import DEFAULTS, GRPO, STEPS
from tests.unit.analyzer.recompute.trl_given import folded, info_of, keys_of

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(600)]

EXACT = 1e-6
CASES = [*GRPO, "rloo"]
UNKNOWN = {"high_entropy": {"loss", "policy_loss"}}
"""Numbers that need a whole micro-batch at once."""


@pytest.fixture(scope="module")
def theirs() -> Any:
    return result_of(["-m", "tests.trainers.trl.losses"])


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
