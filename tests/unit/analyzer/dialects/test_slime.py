"""slime's table against numbers that its own functions gave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_doctor import Run, check
from rl_doctor.analyzer.dialects.registry import trainers
from tests.unit.analyzer.dialects import golden

NAMES = golden.scenarios("slime")
NOT_RECOMPUTED = {
    "rollout/avg_cached_tokens_per_sample", "rollout/prefix_cache_hit_rate", "rollout/repetition_frac",
}  # fmt: skip
ALONE = {"rollout/kl": "no KL in the reward", "rollout/log_probs": "not what the ratio divides by"}


def recorded(path: Path, name: str, without: tuple[str, ...] = (), changed: str | None = None, **info: Any) -> Run:
    one = golden.scenario("slime", name)
    columns = golden.columns_of("slime", name)
    if one["native"]["use_rollout_logprobs"]:
        columns["old_logprob"] = columns["rollout_logprob"]
    columns.setdefault("old_logprob", columns["logprob"])
    left_out = set(one["left_out_rows"])
    sizes = zip(columns["global_batch_size"], columns["step"], strict=True)
    columns["global_batch_size"] = [size - len(left_out) * (step == 10) for size, step in sizes]
    for column in without:
        del columns[column]
    metrics = golden.metrics_of("slime", name)
    if changed is not None:
        for values in metrics.values():
            values[changed] += 0.01 + 0.01 * abs(values[changed])
    described = {"trainer": "slime", "algorithm": "grpo", "config": {"native": one["native"]}, **info}
    return golden.record(path, described, columns, metrics, [row for row in range(16) if row not in left_out])


@pytest.mark.parametrize("name", NAMES)
def test_every_number_is_recomputed(tmp_path: Path, name: str) -> None:
    run = recorded(tmp_path / "run", name)
    found = golden.compared(run)
    assert set(run.metrics().names()) - set(found) - set(ALONE) == NOT_RECOMPUTED
    assert golden.apart(found) == {}
    assert golden.known(run) >= set(found)


def test_the_kl_of_the_reward_is_a_mean_over_all_tokens_of_a_rank(tmp_path: Path) -> None:
    assert "rollout/kl" in golden.compared(recorded(tmp_path / "run", "ppo"))


def test_tolerances_are_a_millionth_of_the_summands(tmp_path: Path) -> None:
    found = golden.compared(recorded(tmp_path / "run", NAMES[0]))
    entropy, distance = found["train/entropy_loss"], found["train/train_rollout_logprob_abs_diff"]
    for item in (entropy, distance):
        np.testing.assert_array_less(item.tolerance, 3e-6 * np.abs(item.logged))


@pytest.mark.parametrize("name", NAMES[:3])
@pytest.mark.parametrize("key", ["train/pg_loss", "train/entropy_loss", "train/ppo_kl"])
def test_a_changed_number_is_found(tmp_path: Path, name: str, key: str) -> None:
    whole = check(recorded(tmp_path / "right", name))
    assert not [one for one in whole.results if one.code == "RLD801" and one.findings]
    wrong = check(recorded(tmp_path / "wrong", name, changed=key))
    (finding,) = next(one for one in wrong.results if one.code == "RLD801").findings
    assert key in finding.message


def test_without_the_segments_every_row_is_a_rollout(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", NAMES[0], without=("session_id", "global_batch_size"))
    found = golden.compared(run)["train/entropy_loss"]
    columns = golden.columns_of("slime", NAMES[0])
    for step, value in zip(found.steps, found.recomputed, strict=True):
        rows = [row for row in range(16) if columns["step"][row] == step]
        means = [_mean(columns["entropy"][row], columns["response_mask"][row]) for row in rows]
        assert value == pytest.approx(sum(means) / len(means), rel=1e-12)


def _mean(values: list[float], mask: list[int]) -> float:
    kept = [float(np.float32(value)) for value, flag in zip(values, mask, strict=True) if flag]
    return sum(kept) / max(len(kept), 1)


def test_what_no_number_stands_for_follows_from_its_definition(tmp_path: Path) -> None:
    columns = golden.columns_of("slime", NAMES[0])
    columns["teacher_logprob"] = columns["ref_logprob"]
    columns["turns"] = list(range(16))
    native = golden.scenario("slime", "ppo")["native"]
    ranks = [[row for row in range(16) if columns["rank"][row] == rank] for rank in (0, 1)]
    whole = golden.metrics_of("slime", NAMES[0])
    logged = {
        "multi_turn/multi_turn_metric/round_number_mean": np.mean([np.mean(rows) for rows in ranks]),
        "multi_turn/multi_turn_metric/round_number_max": np.mean([max(rows) for rows in ranks]),
        "multi_turn/multi_turn_metric/round_number_min": np.mean([min(rows) for rows in ranks]),
        "rollout/teacher_log_probs": whole[10]["rollout/ref_log_probs"],
    }
    by_step = {
        10: {**logged, "train/opd_reverse_kl": _rollouts(columns, 10)},
        11: {"train/opd_reverse_kl": _rollouts(columns, 11)},
    }
    info = {"trainer": "slime", "algorithm": "ppo", "config": {"native": native}}
    found = golden.compared(golden.record(tmp_path / "run", info, columns, by_step))
    assert set(found) == {*logged, "train/opd_reverse_kl"}
    assert golden.apart(found) == {}


def _rollouts(columns: golden.Columns, step: int) -> float:
    """The mean over rollouts of the mean of old - teacher over the tokens of all their segments."""
    sums: dict[str, list[float]] = {}
    for row in range(16):
        if columns["step"][row] == step:
            pairs = zip(columns["old_logprob"][row], columns["teacher_logprob"][row], columns["response_mask"][row], strict=True)
            terms = [float(np.float32(old)) - float(np.float32(teacher)) for old, teacher, flag in pairs if flag]
            sums.setdefault(columns["session_id"][row], []).extend(terms)
    return sum(sum(terms) / max(len(terms), 1) for terms in sums.values()) / len(sums)


def test_the_value_has_the_same_numbers_without_the_role(tmp_path: Path) -> None:
    columns, left_out = golden.columns_of("slime", "ppo"), {6}
    logged = {
        step: {name.replace("critic-", ""): number for name, number in values.items() if "critic-" in name}
        for step, values in golden.metrics_of("slime", "ppo").items()
    }
    info = {"trainer": "slime", "algorithm": "ppo", "config": {"native": golden.scenario("slime", "ppo")["native"]}}
    found = golden.compared(golden.record(tmp_path / "run", info, columns, logged, set(range(16)) - left_out))
    assert set(found) == {"train/value_loss", "train/value_clipfrac"}
    assert golden.apart(found) == {}


@pytest.mark.parametrize(
    ("settings", "lost"),
    [
        ({"eps_clip": None}, {"train/pg_loss", "train/loss", "train/pg_clipfrac"}),
        (
            {"custom_tis_function_path": "mine.weights"},
            {"train/pg_loss", "train/loss", "train/tis", "train/tis_abs", "train/tis_clipfrac"},
        ),
        ({"kl_loss_type": None}, {"train/loss", "train/kl_loss"}),
        ({"advantage_estimator": "another"}, {"train/pg_loss", "train/loss", "train/pg_clipfrac", "train/ois"}),
    ],
)  # fmt: skip
def test_what_is_not_known_is_not_compared(tmp_path: Path, settings: dict[str, Any], lost: set[str]) -> None:
    native = {**golden.scenario("slime", NAMES[0])["native"], **settings}
    run = recorded(tmp_path / "run", NAMES[0], config={"native": native})
    found = golden.compared(run)
    assert golden.apart(found) == {}
    assert {name for name in run.metrics().names() if name.startswith("train/")} - set(found) == lost


def test_every_name_says_what_it_is() -> None:
    for item in trainers()["slime"].names:
        assert item.definition is not None, item.native
        assert (item.definition.proof is None) == bool(item.definition.reason), item.native
