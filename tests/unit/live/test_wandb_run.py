"""Findings in wandb: what the real package wrote offline, read back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rl_doctor.collectors.importers import wandb_offline
from rl_doctor.live.looking import Look
from rl_doctor.live.wandb_run import WandbFindings, levels_of, verdict
from tests.unit.live.sights import sight, trouble

needs_wandb = pytest.mark.skipif(find_spec("wandb") is None, reason="needs wandb")
ROOT = Path(__file__).parents[3]
QUIET = 'wandb.Settings(console="off", silent=True, x_disable_stats=True, x_disable_meta=True)'


class Run:
    """Remembers what it was asked for."""

    def __init__(self) -> None:
        self.logged: list[tuple[dict[str, Any], bool]] = []
        self.defined: list[tuple[str, dict[str, Any]]] = []
        self.summary: dict[str, str] = {}

    def define_metric(self, name: str, **options: Any) -> None:
        self.defined.append((name, options))

    def log(self, values: dict[str, Any], *, commit: bool) -> None:
        self.logged.append(({name: value for name, value in values.items() if not name.endswith("findings")}, commit))


def test_levels_and_verdict() -> None:
    seen = sight(trouble("a"), trouble("b", severity="warning", going_on=False))
    assert levels_of(seen) == {"RLD101": 2}
    assert levels_of(sight(trouble("b", severity="warning"))) == {"RLD101": 1}
    assert levels_of(sight(trouble("b", going_on=False))) == {"RLD101": 0}
    assert verdict(seen) == "error: a is wrong. (RLD101, since step 3)"
    assert verdict(sight(trouble("b", going_on=False))) == "error: b is wrong. (RLD101, since step 3, not since step 9)"
    assert verdict(sight()) == "nothing found up to step 9"
    assert verdict(sight(why="nothing could be judged")) == "not judged: nothing could be judged"


@needs_wandb
def test_a_rule_that_finds_nothing_more_goes_back_to_0_and_nothing_is_logged_twice() -> None:
    run = Run()
    sink = WandbFindings(lambda: run, own=False)
    for seen in (sight(step=8), sight(step=8), sight(trouble()), sight(trouble()), sight(step=10)):
        sink.take(Look(seen))
    assert [values for values, _ in run.logged] == [
        {"rl_doctor/step": 8},
        {"rl_doctor/step": 9, "rl_doctor/RLD101": 2},
        {"rl_doctor/step": 10, "rl_doctor/RLD101": 0},
    ]
    assert not any(commit for _, commit in run.logged)
    assert run.defined[1] == ("rl_doctor/*", {"step_metric": "rl_doctor/step"})
    assert run.summary["rl_doctor/verdict"] == "nothing found up to step 10"


def test_without_an_active_run_nothing_happens() -> None:
    WandbFindings(lambda: None, own=False).take(Look(sight(trouble())))


def program(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program with wandb offline in a folder."""
    environment = {
        **os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": str(folder), "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1", "WANDB_PROJECT": "p",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def alerts(file: Path) -> list[str]:
    """Titles of the alerts in a .wandb file, each as often as it was sent."""
    data = file.read_bytes()
    return [title for title in ("ERROR in run: ",) for _ in range(data.count(title.encode()))]


_INSIDE = f"""
import time, wandb, rl_doctor
from rl_doctor.live.inside import WandbReport
from tests.integration.growing import INFO, log_step
if __name__ == "__main__":
    run = wandb.init(project="p", settings={QUIET})
    recorder = rl_doctor.Recorder("run", info=INFO)
    findings = WandbReport("run", interval=0.2)
    for step in range(1, 13):
        log_step(recorder, step, fault=step >= 6)
        run.log({{"loss": 1.0 / step}}, step=step)
        deadline = time.monotonic() + 60
        while step in (5, 9) and time.monotonic() < deadline:
            if run.summary.get("rl_doctor/verdict", "").startswith("nothing" if step == 5 else "error"):
                break
            time.sleep(0.1)
    recorder.close()
    findings.close()
    run.finish()
"""


@needs_wandb
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_in_the_run_of_the_training_no_step_of_its_own_is_lost(tmp_path: Path) -> None:
    done = program(_INSIDE, tmp_path)
    assert done.stdout == ""
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    log = wandb_offline.read(folder).log
    steps, losses = log.series("loss")
    assert steps.tolist() == list(range(1, 13)), "the trainer's own rows are all there"
    assert losses.tolist() == [1.0 / step for step in range(1, 13)]
    rows, level = log.series("rl_doctor/RLD010")
    assert set(level.tolist()) == {2.0}
    assert rows.tolist()[0] >= 6
    judged = log.series("rl_doctor/step")[1].tolist()
    assert judged == sorted(judged)
    assert judged[-1] == 12
    axes = [b"rl_doctor/*", b"rl_doctor/step"]
    assert all(axis in next(folder.glob("*.wandb")).read_bytes() for axis in axes)
    (file,) = folder.glob("*.wandb")
    assert len(alerts(file)) == 1
    tables = [json.loads(each.read_text()) for each in folder.rglob("*findings*.table.json")]
    assert {row[1] for table in tables for row in table["data"]} >= {"RLD010"}
    assert tables[0]["columns"][:3] == ["severity", "code", "rule"]


_OUTSIDE = """
import rl_doctor
from rl_doctor.cli.main import main
from tests.integration.growing import INFO, log_step
if __name__ == "__main__":
    with rl_doctor.Recorder("run", info=INFO) as recorder:
        for step in range(1, 9):
            log_step(recorder, step, fault=step >= 6)
    for _ in range(2):
        try:
            main(["watch", "run", "--interval", "0.2", "--wandb"])
        except SystemExit as ended:
            assert ended.code == 1
"""


@needs_wandb
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_from_outside_a_run_of_its_own_is_written_and_gone_on_with(tmp_path: Path) -> None:
    program(_OUTSIDE, tmp_path)
    folders = sorted((tmp_path / "wandb").glob("offline-run-*"))
    assert len(folders) == 2
    files = [file for folder in folders for file in folder.glob("*.wandb")]
    assert len({file.stem for file in files}) == 1, "the same run, gone on with"
    assert sum(len(alerts(file)) for file in files) == 1, "one alert of one onset"
    assert all(b"rl-doctor run" in file.read_bytes() and b"rl_doctor/verdict" in file.read_bytes() for file in files)
    found = wandb_offline.read(folders[0])
    assert found.log.series("rl_doctor/RLD010")[1].tolist() == [2.0]
    assert found.log.series("rl_doctor/step")[1].tolist() == [8.0]


def test_where_nobody_is_logged_in_the_watch_does_not_begin(tmp_path: Path) -> None:
    if find_spec("wandb") is None:
        pytest.skip("needs wandb")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    done = subprocess.run(
        [sys.executable, "-m", "rl_doctor", "watch", str(tmp_path), "--wandb"],
        cwd=ROOT, env={**environment, "HOME": str(tmp_path), "NETRC": str(tmp_path / "none"), "WANDB_CONFIG_DIR": str(tmp_path)},
        capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].endswith("run `wandb login`, or set WANDB_MODE=offline")
