"""A script that ends without closing its recorder loses nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rl_doctor import demo, open_run

HEALTHY = Path(demo.__file__).parent / "healthy.parquet"
SCRIPT = """
import sys
import numpy as np
from rl_doctor import Recorder

recorder = Recorder(sys.argv[1], info={"trainer": "custom"})
for step in range(1, 4):
    recorder.log_batch(step=step, uid=["a", "b"], response_mask=np.ones((2, 3)), logprob=np.full((2, 3), -0.5))
    recorder.log_metrics(step, {"loss": 0.5})
"""


@pytest.mark.parametrize(
    ("end", "status", "code"), [("", "complete", 0), ("sys.exit(3)", "complete", 3), ("1 / 0", "running", 1)]
)
def test_what_was_logged_is_there_after_the_end(tmp_path: Path, end: str, status: str, code: int) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-c", f"{SCRIPT}\n{end}\n", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code
    assert "rl-doctor" not in done.stderr
    run = open_run(folder)
    assert run.info.status == status
    assert sorted(batch.step for batch in run.batches(["logprob"])) == [1, 2, 3]
    assert len(run.metrics()) == 3
    assert run.facts.notes == ()


def test_two_processes_that_open_a_folder_at_once_both_record(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-c", f"{SCRIPT}\nrecorder.close()\n", str(folder)]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    said = [process.communicate(timeout=120)[1] for process in running]
    assert "rl-doctor" not in "".join(said)
    assert len(list(folder.glob("sequences-*.parquet"))) == 3
    assert not list(folder.glob("*.tmp"))


PRINTING = [["rules"], ["--help"], ["--version"], ["check", "RUN"], ["watch", "RUN"], ["explain", "RLD601"]]


@pytest.mark.parametrize("words", PRINTING, ids=lambda words: words[0])
@pytest.mark.parametrize("target", [">/dev/full", ">&-"])
def test_a_standard_output_that_takes_nothing_is_one_line(words: list[str], target: str) -> None:
    if target == ">/dev/full" and not Path("/dev/full").is_char_device():
        pytest.skip("there is no full device")
    called = [sys.executable, "-m", "rl_doctor", *(str(HEALTHY) if word == "RUN" else word for word in words)]
    done = subprocess.run(
        ["sh", "-c", f'"$@" {target}', "sh", *called], stderr=subprocess.PIPE, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    why = "No space left on device" if target == ">/dev/full" else "Bad file descriptor"
    assert done.stderr.splitlines() == [f"rl-doctor: error: standard output: cannot write: {why}"]
