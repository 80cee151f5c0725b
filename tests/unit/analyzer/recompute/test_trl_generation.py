"""What TRL logs of a generation batch, by version, again in plain Python; and asynchronous GRPO and PPO, which are recipes."""

from __future__ import annotations

import math
import random
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import pytest

from rl_doctor import Recorder, open_run
from rl_doctor.analyzer import reconcile
from rl_doctor.analyzer.comparison import Comparison, differing, fits
from rl_doctor.analyzer.engine import analyze
from rl_doctor.analyzer.explain import explained
from rl_doctor.rules.registry import rules

Row = dict[str, Any]
VERSIONS = (
    "0.16.1", "0.17.0", "0.18.0", "0.18.1", "0.21.0", "0.22.1", "0.22.2", "0.25.1", "0.27.0", "0.29.1", "1.0.0", "1.5.0", "1.6.0",
    "1.8.0", "1.9.0", "1.16.0",
)  # fmt: skip
WEIGHTS = {"quality": 1.0, "style": 0.5}
NATIVE: Row = {
    "epsilon": 0.2, "beta": 0.1, "loss_type": "grpo", "per_device_train_batch_size": 4, "gradient_accumulation_steps": 1,
    "steps_per_generation": 1, "num_generations": 4, "use_vllm": True, "vllm_importance_sampling_correction": True,
}  # fmt: skip


def rows_of(seed: int) -> list[Row]:
    """Two groups of four rows, one on each rank; one row that no function scored, one that one of them left out, one empty."""
    rng = random.Random(seed)
    rows = []
    for number in range(8):
        size = 0 if number == 6 else rng.randint(1, 5)
        old = [-rng.expovariate(0.7) for _ in range(size)]
        engine = [x + rng.gauss(0, 0.1) for x in old]
        rows.append({
            "rank": number // 4, "group": f"g{number // 4}", "size": size, "old": old, "engine": engine,
            "reference": [x + rng.gauss(0, 0.4) for x in old],
            "weight": [math.exp(a - b) for a, b in zip(old, engine, strict=True)],
            "quality": math.nan if number == 5 else rng.gauss(0, 1), "style": math.nan if number in (2, 5) else rng.gauss(0, 1),
            "reason": rng.choice(["stop", "length"]),
        })  # fmt: skip
    return rows


def total(row: Row, weights: dict[str, float], *, nothing: float) -> float:
    known = [weights[name] * row[name] for name in WEIGHTS if not math.isnan(row[name])]
    return sum(known) if known else nothing


def at_least(version: str, *wanted: int) -> bool:
    return tuple(map(int, version.split("."))) >= (*wanted, 0, 0)[:3]


def expected(rows: list[Row], version: str, algorithm: str, scaling: str) -> dict[str, float]:
    """The numbers as the release computes them."""
    nothing = math.nan if at_least(version, 1, 6) else 0.0
    weighted = not at_least(version, 0, 27) or at_least(version, 1, 0)
    rewards = [total(row, WEIGHTS if weighted else dict.fromkeys(WEIGHTS, 1.0), nothing=nothing) for row in rows]
    used = [row["reward"] if not math.isnan(row["reward"]) else nothing for row in rows]
    if algorithm == "rloo" and not at_least(version, 0, 27):
        rewards = used

    def kept(values: list[float]) -> list[float]:
        return [value for value in values if not math.isnan(value)]

    swapped = at_least(version, 0, 22) and not at_least(version, 0, 22, 2)
    by_group = algorithm == "rloo" or scaling == "none" or ((scaling == "group") is not swapped)
    groups = [[index for index, row in enumerate(rows) if row["group"] == group] for group in ("g0", "g1")]
    spread_of_groups = mean(stdev(kept([rewards[index] for index in group])) for group in groups)
    found = {
        "reward": mean(kept(rewards)),
        "reward_std": spread_of_groups if by_group and not at_least(version, 0, 27) else stdev(kept(rewards)),
        "frac_reward_zero_std": 0.0,
    }
    for name in WEIGHTS:
        values = kept([row[name] for row in rows])
        if at_least(version, 0, 17):
            found |= {f"rewards/{name}/mean": mean(values), f"rewards/{name}/std": stdev(values)}
        else:
            found[f"rewards/{name}"] = mean(values)
    return found | _lengths(rows, version) | _distances(rows, version, algorithm)


def _lengths(rows: list[Row], version: str) -> dict[str, float]:
    sizes = [row["size"] for row in rows]
    if not at_least(version, 0, 17):
        return {"completion_length": mean(sizes)}
    ended = [row["size"] for row in rows if row["reason"] == "stop"]
    ranks = 2 if at_least(version, 0, 18) and not at_least(version, 0, 18, 1) else 1
    found: dict[str, float] = {"completions/clipped_ratio": 1.0 - ranks * len(ended) / len(rows)}
    for name, function in (("mean", mean), ("min", min), ("max", max)):
        found |= {f"completions/{name}_length": function(sizes), f"completions/{name}_terminated_length": function(ended)}
    return found


def _distances(rows: list[Row], version: str, algorithm: str) -> dict[str, float]:
    def by_rank(of_row: Any) -> list[list[float]]:
        return [[value for row in rows if row["rank"] == rank for value in of_row(row)] for rank in (0, 1)]

    if algorithm == "rloo":
        parts = by_rank(lambda row: [a - b for a, b in zip(row["old"], row["reference"], strict=True)])
        pooled = [value for part in parts for value in part]
        return {"kl": mean(pooled) if at_least(version, 1, 9) else mean(map(mean, parts))}
    apart = by_rank(lambda row: [abs(a - b) for a, b in zip(row["old"], row["engine"], strict=True)])
    weights = by_rank(lambda row: row["weight"])
    return {
        "sampling/sampling_logp_difference/mean": mean(map(mean, apart)),
        "sampling/sampling_logp_difference/max": max(map(max, apart)),
        "sampling/importance_sampling_ratio/min": min(map(min, weights)),
        "sampling/importance_sampling_ratio/mean": mean(map(mean, weights)),
        "sampling/importance_sampling_ratio/max": max(map(max, weights)),
    }


def padded(rows: list[Row], name: str) -> Any:
    width = max(row["size"] for row in rows)
    return np.array([[*row[name], *[0.0] * (width - row["size"])] for row in rows], np.float32)


def compared(path: Path, info: Row, rows: list[Row], columns: Row, logged: dict[str, float]) -> dict[str, Comparison]:
    with Recorder(path, info=info) as recorder:
        width = max(row["size"] for row in rows)
        mask = np.arange(width) < np.array([[row["size"]] for row in rows])
        recorder.log_batch(step=1, rollout_step=1, epoch=0, minibatch=0, microbatch=0, response_mask=mask, **columns)
        recorder.log_metrics(1, logged)
    run = open_run(path)
    plan = reconcile.plan(run.info, run.columns, run.metrics())
    return {item.name: item for item in reconcile.compare(plan, analyze(run, [], plan.metrics).series)}


def recorded(path: Path, version: str | None, algorithm: str, scaling: str, seed: int, wanted: str) -> dict[str, Comparison]:
    rows = rows_of(seed)
    for row in rows:
        penalty = sum(a - b for a, b in zip(row["old"], row["reference"], strict=True)) if algorithm == "rloo" else 0.0
        row["reward"] = total(row, WEIGHTS, nothing=math.nan if at_least(wanted, 1, 6) else 0.0) - 0.1 * penalty
    for name in ("old", "engine", "reference", "weight"):
        for row in rows:
            row[name] = [float(np.float32(value)) for value in row[name]]
    native = {**NATIVE, "scale_rewards": scaling, "vllm_importance_sampling_mode": "token_truncate"}
    info = {
        "trainer": "trl", "trainer_version": version, "algorithm": algorithm, "world_size": 2, "writing_ranks": [0, 1],
        "config": {"native": native, "reward_weights": WEIGHTS},
    }  # fmt: skip
    columns = {
        "rank": np.array([row["rank"] for row in rows]), "group": [row["group"] for row in rows],
        "uid": [f"u{number}" for number in range(len(rows))], "reward": np.array([row["reward"] for row in rows]),
        "reward_components": {name: np.array([row[name] for row in rows]) for name in WEIGHTS},
        "finish_reason": [row["reason"] for row in rows], "response_length": np.array([row["size"] for row in rows]),
        "old_logprob": padded(rows, "old"), "rollout_logprob": padded(rows, "engine"),
        "ref_logprob": padded(rows, "reference"), "is_weight": padded(rows, "weight"),
    }  # fmt: skip
    return compared(path, info, rows, columns, expected(rows, wanted, algorithm, scaling))


def cases() -> list[tuple[str, str, str]]:
    """Each version with each scaling, and with RLOO since that is the trainer that it is."""
    scaled = [(version, "grpo", scaling) for version in VERSIONS for scaling in ("group", "batch", "none")]
    return scaled + [(version, "rloo", "group") for version in VERSIONS if at_least(version, 0, 22)]


@pytest.mark.parametrize(("version", "algorithm", "scaling"), cases())
def test_every_number_of_a_generation(tmp_path: Path, version: str, algorithm: str, scaling: str) -> None:
    found = recorded(tmp_path / "run", version, algorithm, scaling, 5, version)
    assert found.keys() == expected_names(version, algorithm)
    for key, item in found.items():
        assert np.allclose(item.logged, item.recomputed, rtol=1e-7, atol=1e-7), key


def expected_names(version: str, algorithm: str) -> set[str]:
    rows = rows_of(5)
    for row in rows:
        row["reward"] = 0.0
    return set(expected(rows, version, algorithm, "group"))


@pytest.mark.parametrize("wanted", ["0.25.1", "1.16.0"])
def test_a_meaning_that_the_version_leaves_open_is_not_guessed(tmp_path: Path, wanted: str) -> None:
    found = recorded(tmp_path / "run", ">=0.25", "grpo", "group", 5, wanted)
    assert "reward_std" not in found
    assert "reward" not in found
    assert "rewards/quality/mean" in found
    run = open_run(tmp_path / "run")
    doubts = reconcile.plan(run.info, run.columns, run.metrics()).doubts
    assert "reward, reward_std" in doubts
    assert "0.25 or later" in doubts


def test_weights_of_whole_rows(tmp_path: Path) -> None:
    rows = rows_of(6)
    weights = [0.0 if number == 2 else math.exp(sum(a - b for a, b in zip(row["old"], row["engine"], strict=True)))
               for number, row in enumerate(rows)]  # fmt: skip
    weights = [float(np.float32(weight)) for weight in weights]
    prefix = "sampling/importance_sampling_ratio"
    wanted = {f"{prefix}/min": min(weights), f"{prefix}/mean": mean(weights), f"{prefix}/max": max(weights)}
    info = {
        "trainer": "trl", "trainer_version": "1.16.0", "algorithm": "grpo", "world_size": 2, "writing_ranks": [0, 1],
        "config": {"native": {**NATIVE, "vllm_importance_sampling_mode": "sequence_mask"}},
    }  # fmt: skip
    columns = {"rank": np.array([row["rank"] for row in rows]), "is_weight": np.array(weights, np.float32)[:, None]}
    found = compared(tmp_path / "run", info, rows, columns, wanted)
    assert found.keys() == wanted.keys()
    for key, item in found.items():
        assert np.allclose(item.logged, item.recomputed, rtol=1e-7, atol=1e-7), key


def test_asynchronous_grpo(tmp_path: Path) -> None:
    rows = rows_of(3)
    for row in rows:
        row["new"] = [float(np.float32(x + 0.3 * math.sin(9.0 * x))) for x in row["old"]]
        row["entropy"] = [float(np.float32(-0.5 * x)) for x in row["old"]]
        row["old"] = [float(np.float32(x)) for x in row["old"]]
        row["gain"] = [1.0 if row["rank"] else -1.0] * row["size"]
    pairs = [(math.exp(a - b), c) for row in rows for a, b, c in zip(row["new"], row["old"], row["gain"], strict=True)]
    low, high = ([float(r < 0.8 and gain < 0) for r, gain in pairs], [float(r > 1.2 and gain > 0) for r, gain in pairs])
    wanted = {
        "ratio": mean(r for r, _ in pairs), "kl": mean(r - 1.0 - math.log(r) for r, _ in pairs),
        "entropy": mean(value for row in rows for value in row["entropy"]), "clip_ratio/low_mean": mean(low),
        "clip_ratio/high_mean": mean(high), "clip_ratio/region_mean": mean(a + b for a, b in zip(low, high, strict=True)),
    }  # fmt: skip
    assert min(wanted["clip_ratio/low_mean"], wanted["clip_ratio/high_mean"]) > 0
    info = {
        "trainer": "trl", "trainer_version": "1.16.0", "algorithm": "async_grpo", "config": {"native": {"epsilon": 0.2}},
    }  # fmt: skip
    columns = {
        "logprob": padded(rows, "new"), "old_logprob": padded(rows, "old"), "entropy": padded(rows, "entropy"),
        "advantage": padded(rows, "gain"),
    }  # fmt: skip
    found = compared(tmp_path / "run", info, rows, columns, wanted)
    assert found.keys() == wanted.keys()
    for key, item in found.items():
        assert np.allclose(item.logged, item.recomputed, rtol=1e-6, atol=1e-7), key


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_ppo(tmp_path: Path, kind: str) -> None:
    rows = rows_of(4)
    for row in rows:
        row["old"], row["reference"] = ([float(np.float32(x)) for x in row[name]] for name in ("old", "reference"))
        row["new"] = [float(np.float32(x + 0.3 * math.sin(9.0 * x))) for x in row["old"]]
        row["gain"] = [1.0 if row["rank"] else -1.0] * row["size"]

    def estimate(old: float, reference: float) -> float:
        return old - reference if kind == "k1" else math.expm1(reference - old) - (reference - old)

    by_rank = [[row for row in rows if row["rank"] == rank] for rank in (0, 1)]

    def means(of_pair: Any) -> Any:
        return mean(
            mean(of_pair(math.exp(a - b), c) for row in part for a, b, c in zip(row["new"], row["old"], row["gain"], strict=True))
            for part in by_rank
        )

    wanted = {
        "objective/kl": mean(sum(map(estimate, row["old"], row["reference"])) for row in rows),
        "objective/scores": mean(range(8)),
        "policy/clipfrac_avg": means(lambda r, gain: float((r > 1.2 and gain > 0) or (r < 0.8 and gain < 0))),
        "loss/policy_avg": means(lambda r, gain: max(-gain * r, -gain * min(max(r, 0.8), 1.2))),
    }
    info = {
        "trainer": "trl", "trainer_version": "0.24.0", "algorithm": "ppo", "world_size": 2, "writing_ranks": [0, 1],
        "config": {"native": {"cliprange": 0.2, "kl_estimator": kind}},
    }  # fmt: skip
    columns = {
        "rank": np.array([row["rank"] for row in rows]), "score": np.arange(8.0), "logprob": padded(rows, "new"),
        "old_logprob": padded(rows, "old"), "ref_logprob": padded(rows, "reference"), "advantage": padded(rows, "gain"),
    }  # fmt: skip
    found = compared(tmp_path / "run", info, rows, columns, wanted)
    assert found.keys() == wanted.keys()
    for key, item in found.items():
        assert np.allclose(item.logged, item.recomputed, rtol=1e-6, atol=1e-7), key


def lengths_with_tools(
    path: Path, version: str, factor: float, left_out: tuple[str, ...] = (), **native: Any
) -> dict[str, Comparison]:
    """Two of eight responses have tool tokens in them, the third by default none of its tokens in the mask."""
    sizes, tools = np.array([9, 4, 7, 8, 3, 5, 6, 9]), {0: slice(2, 5), 3: slice(6, 8)}
    attended = np.arange(9) < sizes[:, None]
    mask = attended.copy()
    for row, place in tools.items():
        mask[row, place] = False
    if "tools" in left_out:
        mask = attended.copy()
    if "row" in left_out:
        mask[2] = False
    generated = attended.sum(1) if "row" in left_out and "tools" in left_out else mask.sum(1)
    ended = np.arange(8) != 2
    wanted = {f"completions/{name}_length": factor * function(generated)
              for name, function in (("mean", np.mean), ("min", np.min), ("max", np.max))}  # fmt: skip
    wanted |= {f"completions/{name}_terminated_length": factor * function(generated[ended])
               for name, function in (("mean", np.mean), ("min", np.min), ("max", np.max))}  # fmt: skip
    info = {
        "trainer": "trl", "trainer_version": version, "algorithm": "grpo", "world_size": 2, "writing_ranks": [0, 1],
        "config": {"native": {**NATIVE, **native}},
    }  # fmt: skip
    with Recorder(path, info=info) as recorder:
        recorder.log_batch(
            step=1, rollout_step=1, epoch=0, minibatch=0, microbatch=0, rank=np.arange(8) // 4, attention_mask=attended,
            response_mask=mask, logprob=-np.ones((8, 9), np.float32), finish_reason=["stop"] * 2 + ["length"] + ["stop"] * 5,
        )  # fmt: skip
        recorder.log_metrics(1, {name: float(value) for name, value in wanted.items()})
    run = open_run(path)
    plan = reconcile.plan(run.info, run.columns, run.metrics())
    found = {item.name: item for item in reconcile.compare(plan, analyze(run, [], plan.metrics).series)}
    return {name: item for name, item in found.items() if name in wanted and len(item.steps)}


def test_lengths_leave_out_what_the_mask_tells_to_be_a_tools(tmp_path: Path) -> None:
    found = lengths_with_tools(tmp_path / "right", "1.16.0", 1.0)
    assert len(found) == 6
    for key, item in found.items():
        assert np.allclose(item.logged, item.recomputed, rtol=1e-7), key
    wrong = lengths_with_tools(tmp_path / "wrong", "1.16.0", 1.25)
    assert all((np.abs(item.logged - item.recomputed) > item.tolerance).all() for item in wrong.values())
    assert len(wrong) == 6


def test_lengths_count_truncated_responses_that_are_not_trained_on(tmp_path: Path) -> None:
    found = lengths_with_tools(tmp_path / "run", "1.16.0", 1.0, ("tools", "row"), mask_truncated_completions=True)
    assert len(found) == 6
    for key, item in found.items():
        assert np.allclose(item.logged, item.recomputed, rtol=1e-7), key


def test_lengths_that_the_mask_does_not_tell_are_not_compared(tmp_path: Path) -> None:
    assert lengths_with_tools(tmp_path / "older", ">=0.25", 1.0) == {}
    both = lengths_with_tools(tmp_path / "both", "1.16.0", 1.0, ("row",), mask_truncated_completions=True)
    assert set(both) == {f"completions/{name}_terminated_length" for name in ("mean", "min", "max")}


def rewards(rows: list[Row]) -> list[float]:
    return [row["reward"] for row in rows]


MISTAKES: list[tuple[str, str, Any]] = [
    ("reward", "max", lambda rows: max(rewards(rows))),
    ("reward", "rank 0 only", lambda rows: mean(rewards(rows)[:4])),
    ("reward_std", "ddof 0", lambda rows: float(np.std(rewards(rows)))),
    ("reward_std", "variance", lambda rows: stdev(rewards(rows)) ** 2),
    ("rewards/style/std", "variance", lambda rows: float(np.nanvar([row["style"] for row in rows], ddof=1))),
    ("rewards/style/mean", "min", lambda rows: float(np.nanmin([row["style"] for row in rows]))),
    ("completions/mean_length", "with the prompt", lambda rows: mean(row["size"] + 3 for row in rows)),
    ("completions/max_length", "min", lambda rows: min(row["size"] for row in rows)),
    ("completions/mean_length", "rank 0 only", lambda rows: mean(row["size"] for row in rows[:4])),
    ("completions/mean_terminated_length", "truncated responses included", lambda rows: mean(r["size"] for r in rows)),
    ("completions/clipped_ratio", "1 minus the share", lambda rows: mean(row["reason"] == "stop" for row in rows)),
    ("frac_reward_zero_std", "1 minus the share", lambda _: 1.0),
]


@pytest.mark.parametrize(("key", "name", "of"), MISTAKES)
def test_a_mistake_of_a_statistic_of_the_generation_is_named(tmp_path: Path, key: str, name: str, of: Any) -> None:
    rows = rows_of(5)
    for row in rows:
        row["quality"], row["style"] = (float(number) for number in np.float32([row["quality"], row["style"]]))
        row["reward"] = row["score"] = total(row, WEIGHTS, nothing=math.nan)
        row["quality"] = 0.25 if math.isnan(row["quality"]) else row["quality"]
        row["reward"] = total(row, WEIGHTS, nothing=math.nan)
    rows[0]["reason"], rows[1]["reason"] = "stop", "length"
    logged = expected(rows, "1.16.0", "grpo", "group")
    wrong = {**logged, key: float(of(rows))}
    info = {
        "trainer": "trl", "trainer_version": "1.16.0", "algorithm": "grpo", "world_size": 2, "writing_ranks": [0, 1],
        "config": {"native": {**NATIVE, "scale_rewards": "group"}, "reward_weights": WEIGHTS},
    }  # fmt: skip
    columns = {
        "rank": np.array([row["rank"] for row in rows]), "group": [row["group"] for row in rows],
        "uid": [f"u{number}" for number in range(len(rows))], "reward": np.array([row["reward"] for row in rows]),
        "reward_components": {name: np.array([row[name] for row in rows]) for name in WEIGHTS},
        "finish_reason": [row["reason"] for row in rows], "response_length": np.array([row["size"] for row in rows]),
        "prompt_length": np.full(8, 3),
    }  # fmt: skip
    names = {other for other in wrong if not other.startswith("sampling")}
    compared(tmp_path / "run", info, rows, columns, {other: wrong[other] for other in names})
    run = open_run(tmp_path / "run")
    plan = reconcile.plan(run.info, run.columns, run.metrics())
    comparisons = reconcile.compare(plan, analyze(run, [], plan.metrics).series)
    found = {item.name: item for item in explained(plan, run, comparisons, rules()["RLD801"].limits)}
    assert names <= set(found)
    item = found[key]
    different = differing(item, rules()["RLD801"].limits)
    assert different is not None
    assert name in [fit.explanation.name for fit in fits(item, different) if fit.fits(0.95)]
    assert all(not other.explanations for other in found.values() if other is not item)
