"""The command of the guide, with Ray's processes: they are found, recorded, and closed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.trainers.openrlhf.conftest import Trained
from tests.trainers.openrlhf.cpu import ROOT
from tests.trainers.openrlhf.test_exact import NOT_FROM_TOKENS, comparisons
from tests.trainers.said import of_ours
from tests.trainers.warm import TIMEOUT, result_of

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(600)]

GUIDE = (ROOT / "docs" / "guide" / "openrlhf.md").read_text("utf-8")
COMMAND = r"^RL_DOCTOR_RUN=(\S+) python (-m rl_doctor\.collectors\.openrlhf) openrlhf\.cli\.train_ppo_ray"

CHECK = r"^rl-doctor (check \S+)$"


def test_the_command_of_the_guide(tmp_path: Path, variables: dict[str, str]) -> None:
    found = re.search(COMMAND, GUIDE, re.MULTILINE)
    assert found is not None
    folder = tmp_path / found[1]
    command = [*found[2].split(), "tests.trainers.openrlhf.ray_job", json.dumps({"steps": 3})]
    own = {**variables, "RL_DOCTOR_RUN": str(folder)}
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=own, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    result, said = result_of(done.stdout), done.stdout + done.stderr
    assert of_ours(said) == []
    trained = Trained(folder, said, **result)
    run = trained.run
    assert run.info.status == "complete"
    assert (run.facts.first_step, run.facts.last_step) == (1, 3)
    logged = comparisons(run)
    assert set(run.metrics().names()) - set(logged) - NOT_FROM_TOKENS == {"kl", "logprobs_diff"}  # no reference model
    for item in logged.values():
        assert (np.abs(item.logged - item.recomputed) <= item.tolerance).all(), item.name
    assert [row["policy_loss"] for row in trained.log] == run.metrics().series("policy_loss")[1].tolist()
    (line,) = re.findall(CHECK, GUIDE, re.MULTILINE)
    checked = subprocess.run(
        [sys.executable, "-m", "rl_doctor", *line.split()],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout
    assert "0 errors" in checked.stdout


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("", "RL_DOCTOR_RUN does not name a run folder"),
        ("runs/a", "openrlhf 0.99.0 is installed; supported are openrlhf >= 0.11.2"),
    ],
)
def test_what_cannot_be_recorded_is_told_once_and_the_command_runs(
    tmp_path: Path, variables: dict[str, str], path: str, told: str
) -> None:
    (tmp_path / "command.py").write_text("import sys; print('ran with', sys.argv[1:])")
    distribution = tmp_path / "openrlhf-0.99.0.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: openrlhf\nVersion: 0.99.0\n")
    command = [sys.executable, "-m", "rl_doctor.collectors.openrlhf", "command", "--flag"]
    own = {**variables, "RL_DOCTOR_RUN": path, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True, timeout=TIMEOUT, check=True)
    assert done.stdout == "ran with ['--flag']\n"
    (line,) = done.stderr.splitlines()
    assert told in line
    assert line.startswith("rl-doctor records nothing")
    assert not (tmp_path / "runs").exists()
