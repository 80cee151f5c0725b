"""Runs on a wandb server, read by the real client from a small server in the test."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from rl_doctor import open_run
from rl_doctor.errors import InputError
from tests.unit.collectors.importers.wandb_server import server
from tests.unit.collectors.importers.writing import written

_ROWS: list[dict[str, Any]] = [
    {
        "_step": row, "_runtime": float(row), "_timestamp": 1.7e9 + row, "train/global_step": row // 2 + 1, "note": "text",
        **({"train/loss": "NaN" if row == 4 else row / 8, "nested": {"inner": row}} if row % 2 == 0 else {"profiling/time": 0.5}),
        "h": {"_type": "histogram", "values": [1], "bins": [0, 1]},
    }
    for row in range(2500)
]  # fmt: skip
_CONFIG = {
    "num_generations": 8, "max_completion_length": 64, "beta": 0.0, "loss_type": "grpo", "epsilon": 0.2,
    "_wandb": {"m": [{"1": "train/global_step", "6": [3]}, {"2": "*", "5": 1, "6": [1]}]},
}  # fmt: skip
_READ = """
import json
from rl_doctor import open_run
from rl_doctor.errors import DoctorError
answers = []
for address in json.loads({addresses!r}):
    try:
        run = open_run(address)
    except DoctorError as error:
        answers.append([str(error), error.exit_code])
        continue
    log = run.metrics()
    series = {{name: [part.tolist() for part in log.series(name)] for name in log.names()}}
    config = run.info.config
    answers.append([series, list(run.facts.notes), run.info.run_id, run.info.trainer, config.clip_low, config.group_size])
print(json.dumps(answers))
"""


def asked(folder: Path, addresses: list[str], **variables: str) -> list[Any]:
    answers: list[Any] = json.loads(written(_READ.format(addresses=json.dumps(addresses)), folder, **variables).splitlines()[-1])
    return answers


def test_runs_are_read_whole_and_errors_are_one_line(tmp_path: Path) -> None:
    with server(_ROWS, _CONFIG) as url:
        page = f"{url}/team/proj/runs/abc?nw=user"
        addresses = ["wandb://team/proj/abc", page, "wandb://team/proj/other", "wandb://team/nothing/abc", "wandb://team/proj"]
        whole, same, *refused = asked(tmp_path, addresses, WANDB_BASE_URL=url, WANDB_API_KEY="a" * 40)
    series, notes, *told = whole
    assert told == ["abc", "trl", 0.2, 8]
    assert same[0].keys() == series.keys() == {"train/loss", "nested.inner", "profiling/time"}
    assert same[0]["nested.inner"] == series["nested.inner"] == [list(range(1, 1251)), [2.0 * row for row in range(1250)]]
    assert series["train/loss"][0] == list(range(1, 1251))
    assert math.isnan(series["train/loss"][1][2])
    assert series["train/loss"][1][3:] == [row / 4 for row in range(3, 1250)]
    assert series["profiling/time"][0] == list(range(1, 1251))
    assert "run 'nice run' (team/proj/abc), finished" in notes
    assert "histograms, tables and media left out: h" in notes
    (other, code), (project, _), (short, _) = refused
    assert code == 2
    assert other == "wandb://team/proj/other: no such run, or it is not open to your login; check ENTITY/PROJECT/RUN_ID"
    assert project.startswith("wandb://team/nothing/abc: no such run")
    assert "not recognised" in short
    assert not (tmp_path / "wandb").exists()


def test_without_a_login_nothing_is_asked_for(tmp_path: Path) -> None:
    with server(_ROWS[:4], {}) as url:
        ((message, code),) = asked(tmp_path, ["wandb://team/proj/abc"], WANDB_BASE_URL=url)
    assert (message, code) == ("wandb://team/proj/abc: not logged in to wandb; run wandb login, or set WANDB_API_KEY", 2)


def test_a_run_without_history_is_nothing_to_judge(tmp_path: Path) -> None:
    with server([], {}) as url:
        ((message, code),) = asked(tmp_path, ["wandb://team/proj/abc"], WANDB_BASE_URL=url, WANDB_API_KEY="a" * 40)
    assert (message, code) == ("wandb://team/proj/abc: nothing was logged in this run", 3)


def test_without_wandb_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InputError, match=r"pip install 'rl-doctor\[wandb\]'"):
        open_run("wandb://team/proj/abc")
