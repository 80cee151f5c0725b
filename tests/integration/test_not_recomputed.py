"""What a check says of the numbers of the trainer's log that it did not recompute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_doctor import Recorder, check, open_run
from rl_doctor.cli import explain
from rl_doctor.cli.metrics import Format, command
from rl_doctor.errors import NothingToJudgeError
from rl_doctor.report.model import Report, Result

ACTOR = {"clip_ratio": 0.2, "loss_agg_mode": "token-mean", "use_kl_loss": False, "entropy_coeff": 0}
NATIVE = {"actor_rollout_ref": {"actor": ACTOR}, "trainer": {"use_v1": False}}
STEPS = range(1, 9)


def recorded(path: Path, metrics: Any, ranks: tuple[int, ...] = (0,), *, say: bool = True, **info: Any) -> Report:
    random = np.random.default_rng(0)
    described = {
        "trainer": "verl",
        "trainer_version": "0.9.1",
        "algorithm": "grpo",
        "world_size": 1,
        "config": {"native": NATIVE},
    }
    with Recorder(path, info={**described, **info}) as recorder:
        for step in STEPS:
            for rank in ranks:
                old, shift = -random.exponential(1, (4, 6)), random.normal(0, 0.1, (4, 6))
                placed: dict[str, Any] = {"minibatch": 0, "microbatch": 0, **({"rank": rank} if say else {})}
                recorder.log_batch(
                    step=step, logprob=old - np.abs(shift), old_logprob=old, advantage=shift, reward=shift[:, 0],
                    response_mask=np.ones((4, 6), bool), group=["a"] * 4, **placed,
                )  # fmt: skip
            recorder.log_metrics(step, metrics(step) if callable(metrics) else metrics)
    return check(open_run(path))


def verdict(report: Report) -> Result:
    return next(result for result in report.results if result.code == "RLD801")


def told(report: Report) -> dict[str, str]:
    return dict(report.run.not_recomputed)


KEYS = {"actor/ppo_kl": 1.0, "actor/pg_loss": 1.0, "prompt_length/mean": 1.0, "perf/mfu/actor": 0.1, "home/made": 1.0}


def test_what_is_compared_does_not_hide_what_is_not(tmp_path: Path) -> None:
    report = recorded(tmp_path / "run", KEYS)
    assert told(report) == {
        "actor/pg_loss": "needs config.native.actor_rollout_ref.actor.clip_ratio_c", "prompt_length/mean": "needs prompt_length"
    }  # fmt: skip
    assert (report.run.not_recomputable, report.run.undefined) == (1, 1)
    assert verdict(report).detail == "1 of 3 compared"


@pytest.mark.parametrize(
    ("info", "reason"),
    [
        ({"trainer_version": "main"}, "what it means depends on the version (main), and it equals none of these at every step"),
        ({"trainer_version": "0.4.1"}, "it is not known how verl 0.4.1 computes it"),
        ({"world_size": 2, "writing_ranks": (0,)}, "rank 1 is not recorded, of 2"),
        ({"world_size": 2}, "no step has rows of all 2 ranks"),
    ],
)
def test_the_reason_is_the_real_one(tmp_path: Path, info: dict[str, Any], reason: str) -> None:
    report = recorded(tmp_path / "run", {"actor/ppo_kl": 1.0}, **info)
    assert told(report) == {"actor/ppo_kl": reason}
    result = verdict(report)
    assert (result.outcome, result.reason) == ("skipped", "data")
    assert reason in result.detail or "how verl 0.4.1 computes what it logs is not known" in result.detail


def test_rows_of_some_ranks_alone_are_not_held_against_what_all_logged(tmp_path: Path) -> None:
    assert told(recorded(tmp_path / "silent", KEYS, (0, 1), say=False, world_size=2))["actor/ppo_kl"] == (
        "no step has rows of all 2 ranks"
    )
    assert "actor/ppo_kl" not in told(recorded(tmp_path / "both", KEYS, (0, 1), world_size=2))


def test_a_log_alone_and_a_run_without_a_single_number(tmp_path: Path) -> None:
    with Recorder(tmp_path / "log", info={"trainer": "verl", "trainer_version": "0.9.1"}) as recorder:
        for step in STEPS:
            recorder.log_metrics(step, KEYS)
    assert verdict(check(open_run(tmp_path / "log"))).detail == "no recording: nothing to recompute from"


def test_nan_where_the_recomputation_is_finite_is_a_warning(tmp_path: Path) -> None:
    report = recorded(tmp_path / "run", {"actor/ppo_kl": float("nan")})
    (finding,) = verdict(report).findings
    assert finding.severity == "warning"
    assert finding.message == "actor/ppo_kl: logged NaN at 8 of 8 steps where the recomputation is finite"
    assert [(item.compared, item.differing) for item in report.run.reconciled] == [(8, 8)]


def test_what_is_no_number_is_left_out_and_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    odd = {"text": "0.5", "list": [1, 2], "yes": True, "flag": np.bool_(True), "huge": 10**400, "dict": {}, "loss": 0.5}
    report = recorded(tmp_path / "run", odd)
    assert report.run.logged_values == len(STEPS)
    lines = [record.getMessage() for record in caplog.records if "no numbers" in record.getMessage()]
    assert len(lines) == 1
    assert "6 metrics are no numbers and left out, here and at later steps: text, list, yes, flag, huge and 1 more" in lines[0]


@pytest.mark.parametrize("algorithm", ["dapo", "dr_grpo", "gspo"])
def test_variants_of_grpo_are_trained_by_the_same_trainer(tmp_path: Path, algorithm: str) -> None:
    native = {"epsilon": 0.2, "beta": 0.0, "loss_type": "grpo", "per_device_train_batch_size": 4}
    reports = [
        recorded(tmp_path / name, {"reward": 1.0, "clip_ratio/low_mean": 0.1}, trainer="trl", trainer_version="1.16.0",
                 algorithm=name, config={"native": native})
        for name in ("grpo", algorithm)
    ]  # fmt: skip
    assert reports[0].run.reconciled == reports[1].run.reconciled
    assert reports[0].run.reconciled


def test_the_trainers_own_numbers_are_printed_as_they_are_recomputed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path / "run", KEYS)
    command(tmp_path / "run", select=["actor/ppo_kl,policy.ratio_mean"], output_format=Format.csv)
    shown = capsys.readouterr().out
    assert "actor/ppo_kl" in shown
    assert "policy.ratio_mean" in shown
    with pytest.raises(NothingToJudgeError, match="prompt_length/mean cannot be recomputed"):
        command(tmp_path / "run", select=["prompt_length/mean"])


def test_the_page_of_a_rule_has_single_backticks(capsys: pytest.CaptureFixture[str]) -> None:
    explain.command("RLD801")
    shown = capsys.readouterr().out
    assert "``" not in shown.replace("```python", "").replace("```", "")  # but for the fences of its example
    assert "`min_steps`" in shown
