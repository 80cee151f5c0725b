"""What TRL's table says can be recomputed is what is recomputed, under some settings and in some version."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from rl_doctor.analyzer.dialects.registry import Name, bounds_of
from rl_doctor.analyzer.dialects.trl import TRL
from rl_doctor.analyzer.recompute.registry import find_dialect
from rl_doctor.schema import RunInfo
from rl_doctor.store.info import info_from_json

VERSIONS = ("0.16.1", "0.21.0", "0.22.2", "0.26.2", "0.28.0", "1.4.0", "1.8.0", "1.9.1", "1.16.0")
COLUMNS = (
    "group", "reward", "score", "reward/quality", "response_length", "finish_reason", "rank", "logprob", "old_logprob",
    "ref_logprob", "rollout_logprob", "advantage", "entropy", "is_weight", "pair", "chosen",
)  # fmt: skip
POLICY: dict[str, Any] = {
    "epsilon": 0.2, "beta": 0.1, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "entropy_coef": 0.1,
    "use_vllm": True, "kl_estimator": "k1", "cliprange": 0.2, "num_generations": 2,
}  # fmt: skip
DPO = {"beta": 0.1, "loss_type": "sigmoid", "f_divergence_type": "reverse_kl"}


def settings() -> list[RunInfo]:
    """Every version with every loss, on two ranks."""
    made = []
    kinds = [("grpo", {**POLICY, "loss_type": kind}) for kind in ("grpo", "cispo", "vespo")]
    kinds += [("rloo", POLICY), ("ppo", POLICY), ("async_grpo", POLICY), ("dpo", DPO)]
    for version, (algorithm, native) in product(VERSIONS, kinds):
        config = {"native": native, "clip_low": 0.2, "clip_high": 0.2}
        made.append(info_from_json(
            {"trainer": "trl", "trainer_version": version, "algorithm": algorithm, "world_size": 2, "config": config}, "info",
        ))  # fmt: skip
    return made


def meaning(native: str, info: RunInfo) -> list[Name]:
    """The entries of the table for a key of a run."""
    bounds, found = bounds_of(info.trainer_version), []
    for item in TRL.names:
        same = item.native.replace("{function}", "quality") == native
        if same and bounds.within(item) and (not item.algorithms or info.algorithm in item.algorithms):
            found.append(item)
    return found


@pytest.fixture(scope="module")
def produced() -> list[tuple[str, RunInfo]]:
    names = {item.native.replace("{function}", "quality") for item in TRL.names}
    found = []
    for info in settings():
        dialect = find_dialect(info)
        assert dialect is not None
        fused = {"clip_ratio"} if info.trainer_version != "0.16.1" else set()
        keys = dialect.logged(info, COLUMNS, names - {"aux_loss", "tools/call_frequency"} - fused)
        found += [(item.name, info) for item in keys]
    return found


def test_every_name_has_a_definition_with_a_formula_or_a_reason() -> None:
    for item in TRL.names:
        assert item.definition is not None, item.native
        assert (item.definition.proof is None) == bool(item.definition.reason), item.native
        assert item.definition.formula or item.definition.reason, item.native


def test_what_is_recomputed_is_defined(produced: list[tuple[str, RunInfo]]) -> None:
    for name, info in produced:
        found = meaning(name, info)
        definition = found[0].definition if found else None
        assert definition is not None, (name, info.trainer_version, info.algorithm)
        assert definition.proof, (name, info.trainer_version, info.algorithm)


def test_what_is_defined_is_recomputed(produced: list[tuple[str, RunInfo]]) -> None:
    reached = {id(meaning(name, info)[0]) for name, info in produced}
    left = [item for item in TRL.names if item.definition is not None and item.definition.proof and id(item) not in reached]
    assert [(item.native, item.since, item.until, sorted(item.algorithms)) for item in left] == []


@pytest.mark.parametrize(("version", "fused"), [("0.16.1", False), ("0.24.0", True)])
def test_what_the_liger_kernel_computes_is_left_alone(version: str, fused: bool) -> None:
    config = {"native": {**POLICY, "loss_type": "grpo"}}
    info = info_from_json({"trainer": "trl", "trainer_version": version, "algorithm": "grpo", "config": config}, "info")
    dialect = find_dialect(info)
    assert dialect is not None
    found = {item.name for item in dialect.logged(info, COLUMNS, {"clip_ratio", "kl", "reward"})}
    assert ("kl" in found) is not fused
    assert "reward" in found
