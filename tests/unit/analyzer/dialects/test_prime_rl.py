"""prime-rl's keys against the numbers that its own functions gave for the same tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rl_doctor import Run
from rl_doctor.analyzer.dialects.prime_rl import PRIME_RL
from tests.unit.analyzer.dialects.golden_runs import (
    Row,
    comparisons,
    findings,
    golden,
    logged_in,
    recorded,
    unequal,
    without_recipe,
)

GOLDEN = golden("prime_rl")
CASES = {case["name"]: case for case in GOLDEN["cases"]}
LEFT = ("/median", "loss/std")
"""What cannot be recomputed."""


def rows_of(case: dict[str, Any]) -> list[Row]:
    tokens = sum(sum(row["response_mask"]) for row in GOLDEN["sequences"])
    one = case["world_size"] == 1
    return [
        {**row, "epoch": 0, "minibatch": 0, "rank": 0 if one else row["rank"], "batch_num_tokens": tokens}
        for row in GOLDEN["sequences"]
    ]


def run_of(name: str, folder: Path, **changed: float) -> Run:
    case = CASES[name]
    config = {"native": {"loss": case["loss"]}}
    algorithm = "opd" if "component" in case else "grpo"
    info = {"trainer": "prime-rl", "algorithm": algorithm, "world_size": case["world_size"], "config": config}
    return recorded(folder / "run", info, {1: (rows_of(case), {**logged_in(GOLDEN, case), **changed})})


@pytest.mark.parametrize("name", CASES)
def test_every_key_is_what_prime_rl_made_of_the_same_tensors(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    run = run_of(name, tmp_path)
    found = comparisons(run)
    names = set(logged_in(GOLDEN, case))
    assert not without_recipe(PRIME_RL, names)
    # Distillation's loss mixes components, which a recording does not tell apart.
    left = (*LEFT, *(("loss/mean", "loss/min", "loss/max") if "component" in case else ()))
    assert not {key for key in names - set(found) if not key.endswith(left)}
    assert not unequal(found)
    assert not findings(run)


def test_a_changed_number_is_found(tmp_path: Path) -> None:
    mean = logged_in(GOLDEN, CASES["default"])["mismatch_kl/all/mean"]
    found = findings(run_of("default", tmp_path, **{"mismatch_kl/all/mean": 1.01 * mean}))
    assert set(found) == {"mismatch_kl/all/mean"}


@pytest.mark.parametrize("name", CASES)
def test_every_number_that_is_wrong_is_found(name: str, tmp_path: Path) -> None:
    wrong = {key: 1.5 * value + 0.1 for key, value in logged_in(GOLDEN, CASES[name]).items()}
    run = run_of(name, tmp_path, **wrong)
    assert set(findings(run)) == set(comparisons(run))
