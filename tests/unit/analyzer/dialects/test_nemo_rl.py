"""NeMo-RL's table against numbers that its own functions gave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_doctor import Run, check
from rl_doctor.analyzer.dialects.nemo_rl import NEMO_RL
from rl_doctor.schema import RunConfig
from tests.unit.analyzer.dialects import golden

NAMES = golden.scenarios("nemo_rl")
NORMALISERS = {"train/global_valid_seqs", "train/global_valid_toks", "train/lr"}
BY_THRESHOLD = {"train/masked_correct_pct", "train/num_masked_seqs_by_logprob_error"}
ERRORS = {f"train/{end}_seq_mult_prob_error" for end in ("mean", "min", "max")}
BASELINES = {f"train/baseline_reward/pct_{share}" for share in ("0", "1", "mixed")}
LEFT = {
    "gspo, sequence level, k1": {"train/sampling_importance_ratio"},
    "reinforce, seq-mask-tis": ERRORS,
    "on policy, sequence mean, positive nll": ERRORS | {f"{name}_after_mask" for name in ERRORS} | BASELINES,
    "ppo": BASELINES | {f"train/critic/{key}" for key in ("global_valid_seqs", "global_valid_toks", "lr")},
}


def recorded(path: Path, name: str, changed: str | None = None, more: dict[str, list[Any]] | None = None, **info: Any) -> Run:
    one = golden.scenario("nemo_rl", name)
    columns = golden.columns_of("nemo_rl", name)
    sample_mask = one["sample_mask"]
    columns["step"] = [1] * 16
    columns["loss_mask"] = columns["response_mask"]
    kept = zip(columns["response_mask"], sample_mask, strict=True)
    columns["response_mask"] = [mask if sampled else [0] * len(mask) for mask, sampled in kept]
    if one["native"]["loss_fn"]["force_on_policy_ratio"]:
        columns["old_logprob"] = columns["logprob"]
    valid = {
        at: int(sum(flag for flag, here in zip(sample_mask, columns["minibatch"], strict=True) if here == at)) for at in (0, 1)
    }
    columns["global_batch_size"] = [valid[at] for at in columns["minibatch"]]
    columns |= more or {}
    metrics = golden.metrics_of("nemo_rl", name)
    if changed is not None:
        metrics[1][changed] += 0.01 + 0.01 * abs(metrics[1][changed])
    described = {"trainer": "nemo-rl", "algorithm": "grpo", "config": {"native": one["native"]}, **info}
    return golden.record(path, described, columns, metrics)


@pytest.mark.parametrize("name", NAMES)
def test_every_number_is_recomputed(tmp_path: Path, name: str) -> None:
    run = recorded(tmp_path / "run", name)
    found = golden.compared(run)
    assert set(run.metrics().names()) - set(found) == NORMALISERS | BY_THRESHOLD | LEFT.get(name, set())
    assert golden.apart(found) == {}


def test_tolerances_are_a_millionth_of_the_summands(tmp_path: Path) -> None:
    found = golden.compared(recorded(tmp_path / "run", NAMES[0]))
    for name in ("train/approx_entropy", "train/probs_ratio_clamped", "train/mean_seq_mult_prob_error"):
        np.testing.assert_array_less(found[name].tolerance, 3e-6 * np.abs(found[name].logged), err_msg=name)


@pytest.mark.parametrize("key", ["train/loss", "train/gen_kl_error", "train/advantages/mean", "train/baseline_reward/pct_0"])
def test_a_changed_number_is_found(tmp_path: Path, key: str) -> None:
    whole = check(recorded(tmp_path / "right", NAMES[0]))
    assert not [one for one in whole.results if one.code == "RLD801" and one.findings]
    wrong = check(recorded(tmp_path / "wrong", NAMES[0], changed=key))
    (finding,) = next(one for one in wrong.results if one.code == "RLD801").findings
    assert key in finding.message


def test_the_weight_of_sequences_is_said_to_be_multiplied() -> None:
    (name,) = (item for item in NEMO_RL.names if item.native == "train/sampling_importance_ratio")
    assert "number of valid samples of each micro-batch" in name.told(
        RunConfig(native={"loss_fn": {"sequence_level_importance_ratios": True}})
    )
    assert name.told(RunConfig(native={"loss_fn": {"sequence_level_importance_ratios": False}})) == ""


def test_the_weight_of_sequences_is_off_by_the_rows_of_a_micro_batch(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", "gspo, sequence level, k1")
    columns = golden.columns_of("nemo_rl", "gspo, sequence level, k1")
    totals = [0.0, 0.0]
    for at in range(16):
        rows = [
            row for row in range(16) if all(columns[key][row] == columns[key][at] for key in ("rank", "minibatch", "microbatch"))
        ]
        valid = sum(row != 14 for row in rows)
        x = zip(columns["old_logprob"][at], columns["rollout_logprob"][at], columns["response_mask"][at], strict=True)
        weight = np.exp(sum(float(np.float32(old)) - float(np.float32(new)) for old, new, flag in x if flag and at != 14))
        totals[columns["minibatch"][at]] += weight * valid
    _, logged = run.metrics().series("train/sampling_importance_ratio")
    assert (totals[0] / 8 + totals[1] / 7) / 2 == pytest.approx(float(logged[0]), rel=1e-6)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("train/avg_turns_per_sample", 7.5), ("train/total_turns", 120), ("train/truncation_rate", 0.25),
        ("train/natural_termination_rate", 0.75), ("train/filtered_reward", 0.546875), ("train/max_total_reward", 1.0),
        ("train/mean_gen_tokens_per_sample", 80 / 16), ("train/max_gen_tokens_per_sample", 12),
        ("train/mean_env_tokens_per_sample", 11 / 16), ("train/mean_total_tokens_per_sample", 195 / 16),
    ],
)  # fmt: skip
def test_what_rollouts_say_follows_from_the_rows(tmp_path: Path, key: str, value: float) -> None:
    more: dict[str, list[Any]] = {
        "turns": list(range(16)),
        "finish_reason": ["length" if row % 4 == 0 else "stop" for row in range(16)],
    }
    one = golden.scenario("nemo_rl", NAMES[0])
    columns = {**golden.columns_of("nemo_rl", NAMES[0]), **more, "step": [1] * 16}
    info = {"trainer": "nemo-rl", "algorithm": "grpo", "config": {"native": one["native"]}}
    found = golden.compared(golden.record(tmp_path / "run", info, columns, {1: {key: value}}))[key]
    assert found.recomputed == pytest.approx(value, rel=1e-12)


def test_every_name_of_a_policy_says_what_it_is() -> None:
    for item in NEMO_RL.names:
        if not item.algorithms and item.native != "train/preference_loss" and not item.family:
            assert item.definition is not None, item.native
            assert (item.definition.proof is None) == bool(item.definition.reason), item.native
