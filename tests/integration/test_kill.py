"""A killed process loses nothing that a flush had acknowledged."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rl_doctor import open_run
from rl_doctor.errors import DoctorError
from tests.integration.recording import values

KILLS = 25


def killed_after(folder: Path, flushes: int, seconds: float) -> int:
    """Kill a recording process some seconds after it said that many steps were flushed; the last step it called flushed."""
    command = [sys.executable, "-m", "tests.integration.recording", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(flushes + 1)]
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        said += process.stdout
    assert process.returncode == -signal.SIGKILL
    return int([line for line in said if line.endswith("\n")][-1])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_flushed_step_survives_a_kill(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(KILLS):
        folder = tmp_path / str(number)
        flushed = killed_after(folder, number % 5, float(rng.uniform(0, 0.05)))
        if not flushed and not list(folder.glob("sequences-*.parquet")):
            with pytest.raises(DoctorError):
                open_run(folder)
            continue
        run = open_run(folder)
        steps: dict[int, list[float]] = {}
        for batch in run.batches(["logprob", "uid", "microbatch"]):
            expected = np.concatenate([values(batch.step, micro).ravel()[:64] for micro in batch.columns["microbatch"]])
            np.testing.assert_array_equal(batch.columns["logprob"], expected)
            steps.setdefault(batch.step, []).extend(batch.columns["uid"].tolist())
        for step in range(1, flushed + 1):
            assert len(set(steps[step])) == 24
        assert max(steps) - flushed <= 1, "at most the step in work is there beyond"
        logged, losses = run.metrics().series("loss")
        assert set(range(1, flushed + 1)) <= set(logged.tolist())
        np.testing.assert_array_equal(losses, logged)
        assert run.info.status == "running"
        assert flushed >= number % 5
