"""The driver's methods with the real transfer queue and workers in processes of Ray: what of a row survives the way."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rl_doctor import open_run
from tests.trainers.said import of_ours
from tests.trainers.verl.conftest import ROOT, environment
from tests.trainers.warm import result_of

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, float]], list[list[str]]]:
    folder = tmp_path_factory.mktemp("cluster")
    options = json.dumps({"record": str(folder / "run"), "ranks": 2, "steps": 2})
    command = [sys.executable, "-m", "tests.trainers.verl.cluster", options]
    log = folder / "log.jsonl"
    variables = environment(VERL_FILE_LOGGER_PATH=str(log), RAY_TMPDIR=None)
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=850, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert of_ours(done.stdout + done.stderr) == []
    rows = [json.loads(row)["data"] for row in log.read_text().splitlines()]
    return folder / "run", rows, result_of(done.stdout)["left"]


def test_rows_carry_their_identity_through_the_transfer_queue(
    recorded: tuple[Path, list[dict[str, float]], list[list[str]]],
) -> None:
    folder, _, left = recorded
    run = open_run(folder)
    assert left == [[], []]
    assert (run.info.world_size, run.info.writing_ranks, len(run.info.sessions)) == (2, (0, 1, 2), 1)
    assert run.info.logprob_dtype == "float32"
    assert run.facts.incomplete_steps == ()
    names = ["uid", "group", "session_id", "rank", "epoch", "is_padding", "weight_version", "data_source", "step"]
    batches = list(run.batches(names))
    columns = {name: np.concatenate([batch.columns[name] for batch in batches]) for name in names}
    assert set(columns["rank"].tolist()) == {0, 1}
    assert set(columns["epoch"].tolist()) == {0, 1}
    real = ~columns["is_padding"].astype(bool)
    expected = {
        f"{step}-{number}_{session}_{index}"
        for step in (1, 2)
        for number in range(4)
        for session in range(4)
        for index in range(2 if (number, session) == (1, 1) else 1)
        if (number, session) not in {(1, 2), (3, 3)}
    }
    assert set(columns["uid"][real]) == expected
    assert (~real).sum() == 2 * 2 * (16 - 15)
    assert set(columns["group"][real]) == {f"{step}-{number}" for step in (1, 2) for number in range(4)}
    np.testing.assert_array_equal(columns["weight_version"], columns["step"] - 1)
    assert set(columns["data_source"][real]) == {"random"}


def test_what_the_driver_logs_follows(recorded: tuple[Path, list[dict[str, float]], list[list[str]]]) -> None:
    folder, log, _ = recorded
    run = open_run(folder)
    names = ["reward", "response_length", "epoch", "is_padding", "step"]
    batches = list(run.batches(names))
    columns = {name: np.concatenate([batch.columns[name] for batch in batches]) for name in names}
    for step, logged in enumerate(log, 1):
        rows = (columns["epoch"] == 0) & (columns["step"] == step) & ~columns["is_padding"].astype(bool)
        assert columns["reward"][rows].mean() == pytest.approx(logged["critic/rewards/mean"], rel=1e-6)
        assert columns["response_length"][rows].mean() == pytest.approx(logged["response_length/mean"], rel=1e-6)
    assert run.metrics().series("actor/ppo_kl")[1].tolist() == [logged["actor/ppo_kl"] for logged in log]
