"""What is recomputed of pairs equals what TRL's own ``DPOTrainer._compute_loss`` returns and logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_doctor import Recorder, open_run
from rl_doctor.analyzer import reconcile
from rl_doctor.analyzer.engine import analyze
from tests.trainers.trl.preference import DEFAULTS, DPO, PAIRS
from tests.trainers.warm import Warm

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(600)]

KEYS = {
    "loss", "rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies", "logps/chosen", "logps/rejected",
}  # fmt: skip
NOT_FROM_PAIRS = {"entropy", "num_tokens", "logits/chosen", "logits/rejected", "mean_token_accuracy"}


@pytest.fixture(scope="module")
def theirs(warm: Warm) -> dict[str, Any]:
    return warm.run("tests.trainers.trl.preference", {})[0]


@pytest.mark.parametrize("name", DPO)
def test_every_metric_of_pairs(theirs: dict[str, Any], name: str, tmp_path: Path) -> None:
    tensors, expected = theirs["tensors"], theirs["found"][name]
    assert expected.keys() == KEYS | NOT_FROM_PAIRS
    native = {**DEFAULTS, **DPO[name]}
    info = {"trainer": "trl", "trainer_version": "1.16.0", "algorithm": "dpo", "config": {"native": native}}
    order = np.random.default_rng(0).permutation(2 * PAIRS)  # the sides of a pair need not stand together
    with Recorder(tmp_path / "run", info=info) as recorder:
        recorder.log_batch(
            step=1, microbatch=0, pair=np.array([f"p{at % PAIRS}" for at in order]), chosen=order < PAIRS,
            response_mask=np.array(tensors["mask"], bool)[order],
            logprob=np.array(tensors["logprob"], np.float32)[order],
            ref_logprob=np.array(tensors["ref_logprob"], np.float32)[order],
        )  # fmt: skip
        recorder.log_metrics(1, expected)
    run = open_run(tmp_path / "run")
    plan = reconcile.plan(run.info, run.columns, run.metrics())
    found = {item.name: item for item in reconcile.compare(plan, analyze(run, [], plan.metrics).series)}
    assert found.keys() == KEYS
    for key, item in found.items():
        assert abs(item.logged - item.recomputed) <= item.tolerance, key
        assert item.tolerance <= 1e-5 * max(1.0, abs(expected[key])), key
