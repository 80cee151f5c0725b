"""OpenRLHF's numbers before 0.11.2, held against what the losses of those releases gave; and what its table says of them all."""

from __future__ import annotations

import json
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_doctor.analyzer.dialects.openrlhf import OPENRLHF
from rl_doctor.analyzer.recompute.openrlhf import keys as openrlhf
from rl_doctor.analyzer.recompute.openrlhf.tokens import estimate
from rl_doctor.schema import RunInfo
from rl_doctor.store.batch import Batch
from rl_doctor.store.info import info_from_json

GOLDEN = Path(__file__).parents[3] / "golden" / "openrlhf_versions.json"
EXACT = 1e-6
NAMES = {
    "new": "logprob", "old": "old_logprob", "rollout": "rollout_logprob", "reference": "ref_logprob", "mask": "response_mask",
    "advantage": "advantage",
}  # fmt: skip
PREFIX = "algo.advantage.is_correction"
BASE: dict[str, Any] = {
    "algo.kl.init_coef": 0.1, "algo.kl.estimator": "k3", "train.micro_batch_size": 3, "rollout.batch_size": 3,
    "rollout.n_samples_per_prompt": 2, "reward.clip_range": [-1, 1], "data.max_len": 9, "algo.advantage.estimator": "rloo",
}  # fmt: skip


@cache
def golden() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return found


def info_of(version: str, own: dict[str, Any]) -> RunInfo:
    native = {
        "actor.eps_clip_low_high": [own.get("clip_eps_low", 0.2), own.get("clip_eps_high", 0.2)],
        "actor.policy_loss_type": own.get("policy_loss_type", "ppo"), "actor.dual_clip": own.get("dual_clip"),
        f"{PREFIX}_enable": own.get("enable_vllm_is_correction", False),
        f"{PREFIX}_threshold": own.get("vllm_is_truncated_threshold", [0.5, 5.0]),
        f"{PREFIX}_type": own.get("vllm_is_correction_type", "tis"),
    }  # fmt: skip
    return info_from_json({"trainer": "openrlhf", "trainer_version": version, "config": {"native": native}}, "info")


def batch_of(info: RunInfo) -> Batch:
    tensors = golden()["tensors"]
    columns: dict[str, Any] = {
        ours: np.array(tensors[name]).reshape(-1).astype(np.bool_ if name == "mask" else np.float32)
        for name, ours in NAMES.items()
    }
    rows, width = np.array(tensors["mask"]).shape
    columns |= {"batch_num_tokens": np.full(rows, 50), "global_batch_size": np.full(rows, 8), "step": np.full(rows, 1)}
    columns |= {name: np.zeros(rows, np.int64) for name in ("rank", "rollout_step", "epoch", "minibatch", "microbatch")}
    return Batch(1, columns, np.arange(rows + 1) * width, info)


@pytest.mark.parametrize("version", golden()["versions"])
def test_every_number_of_a_release(version: str) -> None:
    for name, given in golden()["versions"][version].items():
        if name in ("k1", "k2", "k3"):
            batch = batch_of(info_of(version, {}))
            covered = batch.columns["response_mask"]
            x = batch.columns["logprob"].astype(np.float64) - batch.columns["ref_logprob"].astype(np.float64)
            value, size = estimate(name, x)
            assert abs(value[covered].mean() - given["metrics"]["mean"]) <= EXACT * size[covered].mean()
            continue
        info = info_of(version, given["native"])
        keys = {item.name: item for item in openrlhf.openrlhf.logged(info, (), set(given["metrics"]))}
        assert keys.keys() == given["metrics"].keys()
        for key, item in keys.items():
            found = item.entries(item.reduction.partial(batch_of(info)))
            assert abs(found.total - given["metrics"][key]) <= found.tolerance + 1e-8 * abs(found.total), (name, key)


def settings() -> list[RunInfo]:
    made = []
    for in_loss, level, loss in product((False, True), ("off", "token", "seq"), ("ppo", "gspo")):
        native = {
            **BASE, "actor.eps_clip_low_high": [0.2, 0.2], "actor.policy_loss_type": loss, "actor.loss_agg_mode": "token-mean",
            f"{PREFIX}_level": level, "algo.kl.use_loss": in_loss,
        }  # fmt: skip
        made.append(info_from_json({"trainer": "openrlhf", "trainer_version": "0.11.2", "config": {"native": native}}, "info"))
    return made


def test_every_name_has_a_definition_with_a_formula_or_a_reason() -> None:
    for item in OPENRLHF.names:
        assert item.definition is not None, item.native
        assert (item.definition.proof is None) == bool(item.definition.reason), item.native


def test_what_is_recomputed_is_defined_and_what_is_defined_is_recomputed() -> None:
    names = {item.native for item in OPENRLHF.names}
    produced = {key.name for info in settings() for key in openrlhf.openrlhf.logged(info, (), names)}
    assert produced == {item.native for item in OPENRLHF.names if item.definition is not None and item.definition.proof}
