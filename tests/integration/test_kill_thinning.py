"""A process that is killed while it thins leaves a run with every row, and every token right or marked as gone."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rl_doctor import Recorder, open_run
from rl_doctor.store import layout
from rl_doctor.store.thinning import read_plan
from tests.integration.thinning import ROWS, noise

KILLS = 20


def killed_while_thinning(folder: Path, seconds: float) -> int:
    """Kill a recording process some seconds after its first plan; the last step that it called flushed."""
    command = [sys.executable, "-m", "tests.integration.thinning", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as process:
        assert process.stdout is not None
        said = [process.stdout.readline()]
        while not (folder / layout.THINNING_NAME).exists():
            said.append(process.stdout.readline())
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        said += process.stdout
    assert process.returncode == -signal.SIGKILL
    return int([line for line in said if line.endswith("\n")][-1])


def tokens_of_steps(folder: Path) -> dict[int, bool]:
    """Whether each step has its tokens; asserts that they are right, and the rows complete."""
    found: dict[int, bool] = {}
    for part in open_run(folder).batches(["logprob", "reward", "tokens_dropped"]):
        assert part.columns["reward"].tolist() == [part.step] * ROWS
        dropped = part.columns.get("tokens_dropped", np.zeros(ROWS, np.bool_))
        found[part.step] = not dropped.any()
        expected = noise(part.step).ravel() if found[part.step] else np.empty(0, np.float32)
        np.testing.assert_array_equal(part.columns["logprob"], expected)
        assert dropped.all() or not dropped.any()
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_kill_while_thinning_leaves_a_readable_run(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    interrupted = 0
    for number in range(KILLS):
        folder = tmp_path / str(number)
        flushed = killed_while_thinning(folder, float(rng.uniform(0, 0.4)))
        assert not open_run(folder).facts.skipped_parts
        steps = tokens_of_steps(folder)
        assert set(steps) >= set(range(2, flushed + 1))
        plan = read_plan(folder)
        assert plan is not None
        assert all(steps[step] for step in steps if plan.keeps(step) and not plan.stopped)
        interrupted += any(steps[step] for step in steps if not plan.keeps(step))
        Recorder(folder).close()  # the next session finishes what was begun
        assert not any(whole for step, whole in tokens_of_steps(folder).items() if not plan.keeps(step))
        names = [part for path in folder.iterdir() if (part := layout.parse_part(path.name)) and part.table == "tokens"]
        assert len({(part.session, part.number) for part in names}) == len(names)
    assert interrupted
