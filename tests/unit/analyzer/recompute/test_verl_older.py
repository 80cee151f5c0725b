"""What verl 0.5 to 0.7 logged for seeded tensors, against what is recomputed for these versions."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_doctor.analyzer.comparison import Comparison
from rl_doctor.schema import RunConfig, RunInfo
from tests.unit.analyzer.memory import Row, log
from tests.unit.analyzer.recompute.test_verl import Memory, compare

HERE = Path(__file__).parents[3] / "golden" / "trainers"
VERSIONS = ("0.5.0", "0.6.1", "0.7.1")
LIMITS = {"max_response_length": 10, "max_prompt_length": 8}
CONFIGURED = {"actor/kl_coef", "actor/reward_kl_penalty_coeff"}
UNKNOWN = {
    "clip_cov": {"actor/pg_loss", "actor/pg_clipfrac", "actor/pg_clipfrac_lower"},
    "kl_cov": {"actor/pg_loss", "actor/pg_clipfrac", "actor/pg_clipfrac_lower"},
    "gpg": {"actor/ppo_kl", "actor/pg_clipfrac", "actor/pg_clipfrac_lower"},
}
"""Losses that draw or choose tokens over a micro-batch; 0.5 logs zeros for what a loss does not have."""
TIGHT = {"actor/pg_loss", "actor/kl_loss", "actor/ppo_kl", "actor/entropy", "critic/vf_loss", "critic/vpred_mean"}
"""Not counts, and no shares of what may lie at a threshold, which have a wide tolerance."""
VETOES = {"rollout_corr/rollout_is_veto_fraction", "rollout_corr/rollout_is_catastrophic_token_fraction"}
"""Of 0.6 alone."""


@cache
def golden(name: str) -> Any:
    return json.loads((HERE / f"verl_{name}.json").read_text("utf-8"))


def rows_of(case: dict[str, Any]) -> list[Row]:
    """The rows of all passes of a scenario."""
    columns, correction = golden("rows")["columns"], case["native"]["algorithm"]["rollout_correction"] or {}
    found = []
    for number, (rank, epoch, mini, micro, at) in enumerate(case["places"]):
        row = {name: values[at] for name, values in columns.items() if name[-2:] not in {" 0", " 1"}}
        row |= {name: columns[f"{name} {epoch}"][at] for name in ("logprob", "entropy", "value")}
        row |= {
            "step": 1, "sequence": number, "rank": rank, "epoch": epoch, "minibatch": mini, "microbatch": micro,
            "reward": row["score"], "loss_mask": row["response_mask"],
        }  # fmt: skip
        for name in {"response_mask", "is_weight"} & set(case):
            row[name] = [float(value) if name == "is_weight" else bool(value) for value in case[name][at]]
        if correction.get("bypass_mode"):
            row["old_logprob"] = row["rollout_logprob"]
        elif not correction:
            del row["rollout_logprob"]
        found.append(row)
    return found


def info(version: str, native: dict[str, Any]) -> RunInfo:
    tree = {**native, "data": {"max_prompt_length": LIMITS["max_prompt_length"]}}
    config = RunConfig(native=tree, max_response_length=LIMITS["max_response_length"])
    return RunInfo(trainer="verl", trainer_version=version, algorithm="ppo", config=config)


def compared(version: str, name: str, as_version: str | None = None) -> tuple[dict[str, float], dict[str, Comparison]]:
    case = golden(version)["scenarios"][name]
    logged = {key: value for key, value in case["logged"].items() if np.isfinite(value)}
    run = Memory(
        rows_of(case), info(as_version or version, case["native"]), log({key: {1: value} for key, value in logged.items()})
    )
    return logged, compare(run)


def test_where_no_definition_fits_nothing_is_said() -> None:
    case = golden("0.6.1")["scenarios"]["token-mean"]
    logged = {"actor/pg_loss": {1: 7.0}, "critic/advantages/max": {1: 7.0}}
    run = Memory(rows_of(case), info(">=0.5,<0.8", case["native"]), log(logged))
    found = compare(run)
    assert set(found) == {"critic/advantages/max"}
    assert off(found["critic/advantages/max"])


def off(item: Comparison) -> bool:
    return bool((np.abs(item.logged - item.recomputed) > item.tolerance).any())


@pytest.mark.parametrize(("version", "name"), [(version, name) for version in VERSIONS for name in golden(version)["scenarios"]])
def test_what_the_version_logged_is_recomputed(version: str, name: str) -> None:
    logged, found = compared(version, name)
    left = set(logged) - set(found) - CONFIGURED
    assert left <= UNKNOWN.get(name, set()) | VETOES
    assert {key: (item.logged.tolist(), item.recomputed.tolist()) for key, item in found.items() if off(item)} == {}
    assert len(found) > 30
    tight = [item for key, item in found.items() if key in TIGHT and item.logged[0] != 0]
    assert len(tight) >= 2
    assert all((item.tolerance <= 1e-5 * np.maximum(1.0, np.abs(item.logged))).all() for item in tight)


DEPENDENT = {"actor/pg_loss", "actor/kl_loss", "actor/ppo_kl", "actor/pg_clipfrac", "critic/vf_loss", "actor/entropy"}


@pytest.mark.parametrize(("version", "bounds"), [("0.5.0", ">=0.5,<0.7"), ("0.6.1", ">=0.5,<0.8"), ("0.7.1", ">=0.6,<0.9")])
@pytest.mark.parametrize("name", ["token-mean", "seq-mean-token-sum-norm, none empty", "one mini-batch, entropy"])
def test_where_the_version_is_open_the_definition_that_fits_is_taken(version: str, bounds: str, name: str) -> None:
    _, told = compared(version, name)
    _, found = compared(version, name, bounds)
    for key in DEPENDENT & set(told):
        assert key in found, key
        assert not off(found[key]), key
