"""minimind's keys against what its own lines, and its own loops, made of the same tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rl_doctor import Run
from rl_doctor.analyzer.dialects.minimind import MINIMIND
from tests.unit.analyzer.dialects.golden_runs import Row, comparisons, findings, golden, recorded, unequal, without_recipe

GOLDEN = golden("minimind")
CASES = {case["name"]: case for case in GOLDEN["cases"]}
LOOPS = {f"{loop['script']} {loop['args'].get('loss_type', '')}": loop for loop in GOLDEN["loops"]}
SCHEDULED = {"learning_rate", "actor_lr", "critic_lr"}


def info_of(case: dict[str, Any]) -> dict[str, Any]:
    native = case["args"] | ({"max_total_len": 2500} if case["script"] == "train_agent.py" else {})
    algorithm = "ppo" if case["script"] == "train_ppo.py" else "grpo"
    return {"trainer": "minimind", "algorithm": algorithm, "world_size": 1, "config": {"native": native}}


def rows_of(case: dict[str, Any]) -> list[Row]:
    sequences, passes = GOLDEN["sequences"], GOLDEN["passes"]
    number = len(sequences)
    if case["script"] == "train_ppo.py":
        rows = []
        for update, inds in enumerate(case["minibatches"]):
            epoch, minibatch = divmod(update, 3)
            rows += [{**sequences[at], **passes[epoch * number + at], "epoch": epoch, "minibatch": minibatch} for at in inds]
        return rows
    (epoch,) = case["passes"]
    return [
        {
            **row,
            **passes[epoch * number + at],
            "advantage": [case["advantages"][at]] * row["response_length"],
            "epoch": 0,
            "minibatch": 0,
        }
        for at, row in enumerate(sequences)
    ]


def steps_of(loop: dict[str, Any]) -> dict[int, tuple[list[Row], dict[str, float]]]:
    """The batches of a loop by step: those of PPO are its updates."""
    logged = dict(zip(loop["logged_at"], loop["logged"], strict=True))
    steps: dict[int, tuple[list[Row], dict[str, float]]] = {}
    for batch in loop["batches"]:
        rows, _ = steps.setdefault(batch["step"], ([], logged.get(batch["step"], {})))
        for at, mask in enumerate(batch["mask"]):
            row: Row = {"epoch": batch.get("epoch", 0), "minibatch": batch.get("minibatch", 0), "response_length": len(mask)}
            row |= {
                "response_mask": mask,
                "reward": batch["reward"][at],
                "uid": f"{batch['step']}-{batch.get('uid', range(99))[at]}",
            }
            if "value" in batch:
                row |= {name: batch[name][at] for name in ("advantage", "value", "old_value")} | {"return": batch["returns"][at]}
            else:
                row |= {
                    "advantage": [batch["advantage"][at]] * len(mask),
                    "group": f"{batch['step']}-{at // loop['args']['num_generations']}",
                }
            rows.append(row | {name: batch[name][at] for name in ("logprob", "old_logprob", "ref_logprob")})
    return steps


def run_of(name: str, folder: Path, **changed: float) -> Run:
    case = CASES[name]
    return recorded(folder / "run", info_of(case), {1: (rows_of(case), {**case["logged"], **changed})})


@pytest.mark.parametrize("name", CASES)
def test_every_key_is_what_its_own_lines_made_of_the_same_tensors(name: str, tmp_path: Path) -> None:
    run = run_of(name, tmp_path)
    found = comparisons(run)
    assert set(found) == set(CASES[name]["logged"])
    assert not without_recipe(MINIMIND, found)
    assert not unequal(found, ties={"clipfrac"})
    assert not findings(run)


@pytest.mark.parametrize("name", LOOPS)
def test_every_key_of_its_own_loops_is_recomputed(name: str, tmp_path: Path) -> None:
    loop = LOOPS[name]
    run = recorded(tmp_path / "run", info_of(loop), steps_of(loop))
    found = comparisons(run)
    assert set(found) == {key for logged in loop["logged"] for key in logged} - SCHEDULED
    assert all(len(item.steps) == len(loop["logged"]) for item in found.values())
    assert not unequal(found)
    assert not findings(run)


def test_the_kl_is_minus_k1_and_its_other_sign_is_found(tmp_path: Path) -> None:
    name = next(iter(CASES))
    right = CASES[name]["logged"]["kl_ref"]
    assert set(findings(run_of(name, tmp_path, kl_ref=-right))) == {"kl_ref"}


def test_a_changed_number_is_found(tmp_path: Path) -> None:
    name = next(name for name, case in CASES.items() if case["script"] == "train_ppo.py")
    wrong = 1.01 * CASES[name]["logged"]["critic_loss"]
    assert set(findings(run_of(name, tmp_path, critic_loss=wrong))) == {"critic_loss"}


@pytest.mark.parametrize("name", CASES)
def test_every_number_that_is_wrong_is_found(name: str, tmp_path: Path) -> None:
    wrong = {key: 1.5 * value + 0.1 for key, value in CASES[name]["logged"].items()}
    assert set(findings(run_of(name, tmp_path, **wrong))) == set(wrong)


def test_what_the_console_says_is_the_same_rounded(tmp_path: Path) -> None:
    case = next(case for case in CASES.values() if case["script"] == "train_grpo.py")
    own = case["logged"]
    said = {
        "Reward": round(own["reward"], 4),
        "Actor Loss": round(own["policy_loss"], 4),
        "Avg Response Len": round(own["avg_response_len"], 2),
    }
    run = recorded(tmp_path / "run", info_of(case), {1: (rows_of(case), said)})
    assert set(comparisons(run)) == set(said)
    assert not findings(run)
