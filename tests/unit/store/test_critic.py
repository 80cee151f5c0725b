"""Passes of a critic inside a run folder: read beside the run, packed beside its file, and never in its way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_doctor import Recorder, Run, check, open_run
from rl_doctor.analyzer.engine import analyze
from rl_doctor.schema import RunConfig, RunInfo
from rl_doctor.store.pack import pack

INFO = RunInfo(trainer="verl", trainer_version="0.9.1", algorithm="ppo", config=RunConfig(value_clip=0.25, native={"a": 1}))
STEPS = range(1, 4)


def batch(step: int, seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed + step)
    return {
        "step": step, "epoch": 0, "minibatch": 0, "microbatch": 0, "uid": [f"{step}-{row}" for row in range(4)],
        "response_mask": random.random((4, 6)) < 0.8, "old_value": random.random((4, 6), np.float32),
        "returns": random.random((4, 6), np.float32),
    }  # fmt: skip


def recorded(folder: Path, *, own: RunInfo | None = None) -> Path:
    """A run without the column value, and its critic's passes, which have it."""
    with Recorder(folder, INFO) as recorder, Recorder(folder / "critic", own or RunInfo()) as critic:
        for step in STEPS:
            given = batch(step, 0)
            zeros = np.zeros((4, 6), np.float32)
            recorder.log_batch(**given, logprob=zeros, old_logprob=zeros)
            critic.log_batch(**given, value=given["old_value"] + np.float32(0.125) * step)
            recorder.log_metrics(step, {"critic/vpred_mean": mean_value(step), "critic/vf_loss": 1.0})
    return folder


def mean_value(step: int) -> float:
    given = batch(step, 0)
    return float((given["old_value"] + np.float32(0.125) * step)[given["response_mask"]].astype(np.float64).mean())


def of_value(run: Run) -> dict[str, list[float]]:
    return {name: series.values.tolist() for name, series in analyze(run, ["value."]).series.items()}


def test_metrics_of_the_value_come_from_the_critic(tmp_path: Path) -> None:
    run = open_run(recorded(tmp_path / "run"))
    assert run.critic is not None
    assert "value" in run.critic.columns
    found = of_value(run)
    np.testing.assert_allclose(found["value.mean"], [mean_value(step) for step in STEPS], rtol=1e-12)
    assert found["value.clip_frac"][0] == 0.0
    assert found["value.clip_frac"][2] > 0.0
    alone = of_value(open_run(tmp_path / "run" / "critic"))
    assert alone["value.mean"] == found["value.mean"]
    assert set(found) == {"value.mean", "value.loss", "value.clip_frac", "value.explained_var"}


def test_a_critic_knows_what_only_the_run_was_told(tmp_path: Path) -> None:
    run = open_run(recorded(tmp_path / "run", own=RunInfo(algorithm="own", config=RunConfig(native={"b": 2}))))
    assert run.critic is not None
    assert (run.critic.info.trainer, run.critic.info.algorithm) == ("verl", "own")
    assert run.critic.info.config.value_clip == 0.25
    assert run.critic.info.config.native == {"a": 1, "b": 2}


def test_without_a_critic_there_is_none(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run", INFO) as recorder:
        recorder.log_batch(**batch(1, 0))
    run = open_run(tmp_path / "run")
    assert run.critic is None
    assert not any("critic" in note for note in run.facts.notes)


def test_a_run_that_has_values_itself_is_asked_first(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with Recorder(folder, INFO) as recorder, Recorder(folder / "critic", INFO) as critic:
        given = batch(1, 0)
        recorder.log_batch(**given, value=np.full((4, 6), 2.0, np.float32))
        critic.log_batch(**given, value=np.full((4, 6), 3.0, np.float32))
    assert of_value(open_run(folder))["value.mean"] == [2.0]


def test_facts_tell_of_the_critic(tmp_path: Path) -> None:
    run = open_run(recorded(tmp_path / "run"))
    assert run.facts.notes == ("passes of the critic (critic): steps 1 to 3, 12 sequences",)
    assert run.facts.skipped_parts == ()
    assert run.facts.sequences == 12
    assert any("passes of the critic" in note for note in check(run).run.notes)


def test_check_compares_what_was_logged_of_the_critic(tmp_path: Path) -> None:
    report = check(open_run(recorded(tmp_path / "run")))
    (result,) = [result for result in report.results if result.code == "RLD801"]
    assert result.outcome == "passed"  # vpred_mean is right; vf_loss is not compared, as how it is aggregated is not known
    folder = recorded(tmp_path / "wrong")
    with Recorder(folder, INFO) as recorder:
        for step in STEPS:
            recorder.log_metrics(step, {"critic/vpred_mean": 9.0})
    (result,) = [result for result in check(open_run(folder)).results if result.code == "RLD801"]
    assert "critic/vpred_mean" in result.findings[0].message


@pytest.mark.parametrize("damage", ["torn part", "no rows", "a file", "bad description", "torn column"])
def test_a_damaged_critic_leaves_the_run_alone(tmp_path: Path, damage: str) -> None:
    folder = recorded(tmp_path / "run")
    whole = check(open_run(folder))
    critic = folder / "critic"
    for part in critic.glob("*-s1-r0-*.parquet"):
        content = part.read_bytes()
        if damage == "torn part":
            part.write_bytes(content[:40])
        elif damage == "torn column" and part.name.startswith("tokens"):
            part.write_bytes(content[:4] + b"\xff" * (len(content) // 3) + content[4 + len(content) // 3 :])
        elif damage in {"no rows", "a file"}:
            part.unlink()
    if damage == "bad description":
        (critic / "run.json").write_text("{")
    if damage == "a file":
        for file in critic.iterdir():
            file.unlink()
        critic.rmdir()
        critic.write_text("in the way")
    run = open_run(folder)
    report = check(run)
    assert [result.code for result in report.results] == [result.code for result in whole.results]
    assert report.run.sequences == whole.run.sequences
    assert not any(result.outcome == "crashed" for result in report.results)
    if damage != "a file":
        assert any("critic" in note and "left out" in note for note in report.run.notes), report.run.notes
    if damage != "torn column":
        assert run.critic is None


def test_a_packed_run_has_its_critic_beside_it(tmp_path: Path) -> None:
    run = open_run(recorded(tmp_path / "run"))
    file = tmp_path / "out" / "packed.parquet"
    file.parent.mkdir()
    pack(run, file)
    assert sorted(path.name for path in file.parent.iterdir()) == ["packed.critic.parquet", "packed.parquet"]
    packed = open_run(file)
    assert packed.critic is not None
    assert of_value(packed) == of_value(run)
    assert [note for note in packed.facts.notes if "critic" in note] == list(run.facts.notes)
    (file.parent / "packed.critic.parquet").unlink()
    alone = open_run(file)
    assert alone.critic is None
    assert any("left out" in note and "packed.critic.parquet" in note for note in alone.facts.notes)
    assert not any(result.outcome == "crashed" for result in check(alone).results)


def test_a_file_that_names_itself_as_its_critic_is_read(tmp_path: Path) -> None:
    run = open_run(recorded(tmp_path / "run"))
    file = tmp_path / "packed.parquet"
    pack(run, file)
    (tmp_path / "packed.critic.parquet").write_bytes(file.read_bytes())
    packed = open_run(file)
    assert packed.critic is not None
    assert packed.critic.critic is None
