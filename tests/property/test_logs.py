"""Whatever a log has become, it gives a result or one clear error: no traceback, no hang, no more than a gigabyte."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from rl_doctor import check, open_run
from rl_doctor.collectors.importers.registry import Fit, find, importers, sample
from tests.integration.bad_input import run_cli
from tests.property.log_files import SEEDS, STEPS, WITHOUT_FILE, mutated

ROOT = Path(__file__).parents[2]
LOGS = 2000
CHECKED_EVERY = 16
THROUGH_THE_COMMAND_LINE = range(0, LOGS, LOGS // 50)


def test_every_importer_has_a_seed() -> None:
    assert {name.partition(",")[0] for name in SEEDS} == set(importers()) - WITHOUT_FILE


@pytest.mark.parametrize("name", SEEDS)
def test_each_format_is_recognised_by_one_importer_best(tmp_path: Path, name: str) -> None:
    (tmp_path / "log").write_bytes(SEEDS[name]())
    seen = sample(tmp_path / "log")
    fits = {known.name: known.recognises(seen) for known in importers().values()}
    best = max(fits.values())
    assert best > Fit.NO
    assert [known for known, fit in fits.items() if fit is best] == [name.partition(",")[0]]


@pytest.mark.parametrize("name", [name for name in SEEDS if name != "wandb-runs"])
def test_each_format_is_read_and_checked(tmp_path: Path, name: str) -> None:
    (tmp_path / "log").write_bytes(SEEDS[name]())
    run = open_run(tmp_path / "log")
    assert {len(steps) for steps, _ in run.metrics().points.values()} == {STEPS}
    assert {result.outcome for result in check(run).results} <= {"passed", "found", "skipped"}


def test_recognition_never_raises_on_damaged_logs(tmp_path: Path) -> None:
    for seed in range(len(SEEDS) * 5):
        (tmp_path / "log").write_bytes(mutated(seed)[1])
        find(sample(tmp_path / "log"))


@pytest.mark.parametrize("half", [0, 1])
def test_a_damaged_log_gives_a_result_or_a_clear_error(tmp_path: Path, half: int) -> None:
    command = [sys.executable, "-m", "tests.property.fuzzing", tmp_path, half * LOGS // 2, LOGS // 2, CHECKED_EVERY]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("COV")} | {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(part) for part in command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=900
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"ended after {told[-1:]}: {done.stderr[-2000:]}"
    assert len(told) == LOGS // 2
    bad = [one for one in told if one["outcome"].startswith(("FAULT", "crashed"))]
    assert not bad, bad[:5]
    kinds = Counter(one["outcome"].split(":")[0].split(" ")[-1] for one in told)
    assert kinds["values"] > LOGS // 8
    assert kinds["checked"] > LOGS // 2 // CHECKED_EVERY // 4
    assert kinds["InputError"] > LOGS // 20


def test_the_command_line_ends_with_one_line_and_no_traceback(tmp_path: Path) -> None:
    paths = []
    for seed in THROUGH_THE_COMMAND_LINE:
        paths.append(tmp_path / f"log{seed}")
        paths[-1].write_bytes(mutated(seed)[1])
    for path in paths:
        outcome = run_cli("check", path)
        assert outcome.code in {0, 1, 2, 3}
        if outcome.code in {2, 3}:
            assert str(path) in outcome.error_line
        else:
            assert outcome.err == ""
