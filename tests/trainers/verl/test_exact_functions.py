"""verl's own functions on made-up tensors, and the same tensors recorded: what they log is recomputed.

The batches are ragged, with rows that have no token, rows that only fill the batch, extreme ratios and several mini-batches,
epochs, micro-batches and ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from rl_doctor import Run
from rl_doctor.analyzer.derive import restricted
from rl_doctor.store.batch import Batch
from tests.trainers.verl.exact_comparison import compared, corrupted, differing, findings, uncompared
from tests.trainers.verl.exact_reductions import MICRO_BATCHES, MINI_BATCHES, RANKS, ROWS, STEPS, Case, train

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]

AGGREGATIONS = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
KL_TYPES = ["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "k1+", "k3+"]
REJECTIONS = {
    "token_k1": "0.85_1.2", "token_k2": 0.01, "token_k3": "0.01", "seq_sum_k1": "0.6_1.5", "seq_sum_k2": "0.2",
    "seq_sum_k3": "0.2", "seq_mean_k1": "1.02", "seq_mean_k2": "0.01", "seq_mean_k3": "0.01",
    "seq_max_k2": "0.05", "seq_max_k3": "0.05",
    "token_k1,seq_sum_k3": "1.2,0.3",
}  # fmt: skip
CASES: dict[str, Case] = {
    **{f"vanilla, {mode}": Case(actor={"loss_agg_mode": mode}, critic_agg=mode) for mode in AGGREGATIONS},
    **{f"gspo, {mode}": Case(loss={"loss_mode": "gspo"}, actor={"loss_agg_mode": mode}, spread=0.1) for mode in AGGREGATIONS},
    "scaled": Case(actor={"loss_agg_mode": "seq-mean-token-sum-norm", "loss_scale_factor": 50}),
    **{
        name: Case(loss={"loss_mode": name})
        for name in ("dppo_tv", "dppo_kl", "cispo", "sapo", "geo_mean", "gpg", "kl_cov", "clip_cov")
    },
    "dro": Case(loss={"loss_mode": "dro", "dro_beta": 0.1}),
    **{f"kl {kind}": Case(actor={"kl_loss_type": kind}, penalty=kind) for kind in KL_TYPES},
    "token weights": Case(correction={"rollout_is": "token", "rollout_is_threshold": 1.1, "rollout_is_batch_normalize": True}),
    "sequence weights": Case(
        correction={"rollout_is": "sequence", "rollout_is_threshold": 2.0, "rollout_is_batch_normalize": True}
    ),
    "token weights or none": Case(correction={"rollout_is": "token", "rollout_is_threshold": "0.9_1.1"}),
    "sequence weights or none": Case(correction={"rollout_is": "sequence", "rollout_is_threshold": "0.5_2.0"}),
    "weighted geo_mean": Case(loss={"loss_mode": "geo_mean"}, correction={"rollout_is": "token", "rollout_is_threshold": 2.0}),
    **{
        f"reject {how}": Case(correction={"rollout_is": "token", "rollout_rs": how, "rollout_rs_threshold": threshold})
        for how, threshold in REJECTIONS.items()
    },
    "reject, by sequence": Case(
        correction={"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "1.02"}, actor={"loss_agg_mode": "seq-mean-token-mean"}
    ),
    "bypass, clipped": Case(
        loss={"loss_mode": "bypass_mode"},
        correction={"bypass_mode": True, "loss_type": "ppo_clip", "rollout_is": "token", "rollout_is_threshold": 2.0},
    ),
    "bypass, reinforce": Case(
        loss={"loss_mode": "bypass_mode"}, correction={"bypass_mode": True, "loss_type": "reinforce", "rollout_is": None}
    ),
    "one epoch": Case(epochs=1),
}  # fmt: skip
UNKNOWN = {
    "clip_cov": {"actor/pg_loss", "actor/loss", "actor/pg_clipfrac"},
    "kl_cov": {"actor/pg_loss", "actor/loss"},
    "geo_mean": {"actor/loss"},
    "weighted geo_mean": {"actor/loss"},
}
"""Losses that draw which tokens they leave out, choose them over the micro-batch, or average otherwise than their other terms."""
CONFIGURED = {"actor/reward_kl_penalty_coeff"}

Recorded = Callable[[str], Run]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    @cache
    def make(name: str) -> Run:
        return train(CASES[name], Path(tmp_path_factory.mktemp("run")) / "run")

    return make


@pytest.mark.parametrize("name", CASES)
def test_every_logged_number_is_recomputed(name: str, recorded: Recorded) -> None:
    run = recorded(name)
    found = compared(run)
    assert uncompared(run, found) - CONFIGURED == UNKNOWN.get(name, set())
    assert differing(found) == {}


def test_the_made_up_batches_have_what_may_go_wrong(recorded: Recorded) -> None:
    """Else the numbers would be easy to match."""
    run = recorded("vanilla, token-mean")
    log = run.metrics()
    for key in ("actor/pg_clipfrac", "actor/pg_clipfrac_lower", "response/aborted_ratio", "critic/vf_clipfrac"):
        assert log.series(key)[1].min() > 0, key
    assert len(log.series("actor/ppo_kl")[0]) == STEPS
    assert run.facts.sequences == STEPS * 2 * MINI_BATCHES * RANKS * MICRO_BATCHES * ROWS
    assert recorded("reject seq_sum_k1").metrics().series("rollout_corr/rollout_rs_seq_masked_fraction")[1].min() > 0


def test_tolerances_are_tight(recorded: Recorded) -> None:
    """A relative change of a thousandth of any number that is not near 0 is seen."""
    for name in ("vanilla, token-mean", "reject seq_sum_k1"):
        for key, item in compared(recorded(name)).items():
            assert (item.tolerance <= np.maximum(1e-3 * np.abs(item.logged), 1e-4)).all(), (key, item.tolerance, item.logged)


@pytest.mark.parametrize("name", ["vanilla, token-mean", "reject token_k1", "bypass, reinforce"])
def test_corrupted_numbers_are_found(name: str, recorded: Recorded) -> None:
    run = recorded(name)
    log = run.metrics()
    found = compared(run)
    assert set(differing(compared(run, corrupted(log, found)))) == set(found)
    assert findings(run, log) == []
    (finding,) = findings(run, corrupted(log, ["actor/ppo_kl"]))
    assert "actor/ppo_kl" in finding.message


def test_steps_that_lack_the_rows_of_a_rank_are_not_compared(recorded: Recorded) -> None:
    run = recorded("vanilla, token-mean")
    found = compared(cast(Run, Part(run, lambda batch: (batch.columns["rank"] == 0) | (batch.step != 2))))
    assert len(found) > 40
    for item in found.values():
        np.testing.assert_array_equal(item.steps, [1, 3], err_msg=item.name)


class Part:
    """Rows of a run, without the passes of its critic."""

    critic = None

    def __init__(self, run: Run, kept: Callable[[Batch], Any]) -> None:
        self.info, self.columns, self.metrics = run.info, run.columns, run.metrics
        self._run, self._kept = run, kept

    def batches(self, columns: Collection[str]) -> Iterator[Batch]:
        for batch in self._run.batches(columns):
            yield restricted(batch, self._kept(batch), tuple(batch.columns))
