"""Databases that trackio wrote: one run, several, while it still writes, and older forms of the table."""

import json
import math
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from rl_doctor import open_run
from rl_doctor.collectors.importers.registry import Fit, find, sample
from rl_doctor.errors import DoctorError, InputError, NothingToJudgeError
from tests.unit.collectors.importers.writing import environment, written

_ONE = """
import math, trackio
trackio.init(project="single", name="first try", config={"num_generations": 8, "max_completion_length": 64, "beta": 0.0,
    "loss_type": "grpo", "epsilon": 0.2, "nested": {"lr": 1e-6}})
for step in range(20):
    trackio.log({"train/reward": step / 4, "train/kl": math.nan if step == 3 else 0.5, "train/inf": -math.inf,
                 "train/global_step": step * 10 + 10, "inner": {"deep": step}, "note": "text"})
trackio.log({"eval/reward": 2.5, "train/global_step": 200})
trackio.finish()
"""
_TWO = """
for name in ("alpha", "beta"):
    trackio.init(project="double", name=name)
    for step in range(5):
        trackio.log({"loss": step + (name == "beta") / 2}, step=step * 2)
    trackio.log({"t": trackio.Table(dataframe=__import__("pandas").DataFrame({"a": [1]}))}, step=9)
    trackio.finish()
"""
_LIVE = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1])
insert = "INSERT INTO metrics (run_id, timestamp, run_name, step, metrics) SELECT run_id, '', run_name, ?, ? FROM metrics LIMIT 1"
for step in range(100, 130):
    database.execute(insert, (step, '{"train/reward": 7.0, "train/global_step": %d}' % (step * 10)))
    database.commit()
database.execute(insert, (999, '{"train/reward": 8.0}'))
print("written", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("trackio")
    written(_ONE + _TWO, made, TRACKIO_DIR=str(made / "store"))
    return made / "store"


def test_a_run_is_read_whole(folder: Path) -> None:
    before = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    run = open_run(folder / "single.db")
    log = run.metrics()
    steps, values = log.series("train/reward")
    assert steps.tolist() == [step * 10 + 10 for step in range(20)]
    assert values.tolist() == [step / 4 for step in range(20)]
    assert [bool(np.isnan(value)) for value in log.series("train/kl")[1][:5]] == [False, False, False, True, False]
    assert set(log.series("train/inf")[1]) == {-math.inf}
    assert log.series("inner.deep")[1].tolist() == list(range(20))
    assert log.series("eval/reward", "eval")[0].tolist() == [200]
    assert "_step" not in log.names()
    assert run.facts.notes[:2] == ("read as a SQLite file of trackio", "run 'first try'")
    assert (run.info.trainer, run.info.config.group_size) == ("trl", 8)
    assert run.info.config.native is not None
    assert run.info.config.native["nested"] == {"lr": 1e-6}
    assert not {"_Username", "_Created", "_Group"} & run.info.config.native.keys()
    assert {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()} == before


def test_one_of_several_runs_is_named_after_the_file(folder: Path) -> None:
    with pytest.raises(InputError, match=r"^[^\n]+$") as caught:
        open_run(folder / "double.db")
    message = str(caught.value)
    assert "holds 2 runs; give one of them as double.db#beta, the newest first: beta (steps 0-9, 6 rows); alpha" in message
    for name, more in (("alpha", 0.0), ("beta", 0.5)):
        steps, values = open_run(f"{folder / 'double.db'}#{name}").metrics().series("loss")
        assert (steps.tolist(), values.tolist()) == ([0, 2, 4, 6, 8], [step + more for step in range(5)])
    with pytest.raises(InputError, match="has no run 'gamma'; give one of them as"):
        open_run(f"{folder / 'double.db'}#gamma")
    assert "histograms, tables and media left out: t" in open_run(f"{folder / 'double.db'}#alpha").facts.notes


def test_only_files_of_several_runs_have_parts(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"log_history": [{"step": 1, "loss": 0.5}]}\n')
    with pytest.raises(InputError, match=r"state\.json#x: no such file; state\.json holds one run"):
        open_run(tmp_path / "state.json#x")
    with pytest.raises(InputError, match=r"nothing\.db#x: no such file or folder"):
        open_run(tmp_path / "nothing.db#x")
    (tmp_path / "a#b.jsonl").write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 0.5}\n')
    assert open_run(tmp_path / "a#b.jsonl").metrics().series("loss")[0].tolist() == [1, 2]


@contextmanager
def writer(file: Path) -> Iterator[None]:
    """A process that has written to the file, has a change that is not committed, and keeps it open."""
    process = subprocess.Popen(
        [sys.executable, "-c", _LIVE, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=environment(file.parent),
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "written\n"
        yield
    finally:
        process.stdin.close()
        process.wait(timeout=60)
        process.stdout.close()


def test_a_run_that_is_being_written_is_read_as_it_stands(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "single.db", tmp_path / "live.db")
    with writer(tmp_path / "live.db"):
        assert (tmp_path / "live.db-wal").stat().st_size > 0
        steps, values = open_run(tmp_path / "live.db").metrics().series("train/reward")
    assert steps[-1] == 1290
    assert values[-30:].tolist() == [7.0] * 30
    assert len(steps) == 50


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_an_older_table_without_ids_is_read(tmp_path: Path, journal: str) -> None:
    file = tmp_path / "old.sqlite"
    with closing(sqlite3.connect(file)) as database:
        database.execute(f"PRAGMA journal_mode = {journal}")
        database.execute(
            "CREATE TABLE metrics (id INTEGER PRIMARY KEY, timestamp TEXT, run_name TEXT, step INTEGER, metrics TEXT)"
        )
        rows = [("now", "r", step, json.dumps({"loss": "NaN" if step == 2 else step})) for step in range(4)]
        rows += [("now", "r", 4, "no JSON"), ("now", "r", 5, "[1]")]
        database.executemany("INSERT INTO metrics (timestamp, run_name, step, metrics) VALUES (?, ?, ?, ?)", rows)
        database.commit()
    run = open_run(file)
    np.testing.assert_array_equal(run.metrics().series("loss")[1], [0, 1, math.nan, 3])
    assert "2 rows that are no JSON left out" in run.facts.notes
    assert [entry.name for entry in tmp_path.iterdir()] == ["old.sqlite"]


def test_other_databases_are_not_claimed(tmp_path: Path) -> None:
    file = tmp_path / "other.db"
    with closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE metrics (name TEXT, value REAL)")
        database.commit()
    assert find(sample(file)) is None
    with closing(sqlite3.connect(file)) as database:
        database.execute("DROP TABLE metrics")
        database.execute("CREATE TABLE metrics (run_name TEXT, step INTEGER, metrics TEXT)")
        database.commit()
    with pytest.raises(NothingToJudgeError, match="no run in it has logged anything"):
        open_run(file)


def test_damaged_files_are_refused_in_one_line(folder: Path, tmp_path: Path) -> None:
    data = (folder / "single.db").read_bytes()
    generator = np.random.default_rng(2)
    refused = 0
    for cut in [16, 100, 1000, *generator.integers(100, len(data), 40).tolist()]:
        path = tmp_path / "cut.db"
        path.write_bytes(data[:cut] if cut % 2 else data[:cut] + generator.bytes(4096) + data[cut + 4096 :])
        seen = sample(path)
        assert (found := find(seen)) is None or found.recognises(seen) in (Fit.SHAPE, Fit.SIGNATURE)
        try:
            open_run(path)
        except DoctorError as error:
            refused += 1
            assert "\n" not in str(error)  # noqa: PT017 - whether it is refused depends on where the damage is
    assert refused > 10
