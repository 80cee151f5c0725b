from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from rl_doctor.errors import InputError
from rl_doctor.store.layout import PartName
from rl_doctor.store.lookup import group_of, members_of, passes_of, rows_of_step, sequence_of
from rl_doctor.store.pack import pack
from rl_doctor.store.rows import Rows, concatenate, is_token
from rl_doctor.store.run import Run, open_run
from rl_doctor.store.thinning import thin_part
from tests.unit.store.content import contents, plain, record, rows

STEPS, PROMPTS, SAMPLES = 6, 3, 4
"""Two steps train on each generation batch, in two passes each; the rows of a group are spread over both steps."""


def _rows(step: int) -> Rows:
    batch, generator = (step - 1) // 2, np.random.default_rng(step)
    index = np.array([i for i in range(PROMPTS * SAMPLES) if i % 2 == step % 2] * 2)
    n = len(index)
    lengths = [(7 * int(i) + batch) % 5 for i in index]
    return rows(
        step, lengths,
        rollout_step=np.full(n, batch, np.int64), epoch=np.repeat([0, 1], n // 2).astype(np.int32),
        minibatch=np.zeros(n, np.int32),
        uid=np.array([f"{batch}:{i}" for i in index], np.object_),
        group=np.array([f"p{i // SAMPLES}" for i in index], np.object_),
        reward=generator.random(n), entropy=generator.random(sum(lengths)).astype(np.float32),
    )  # fmt: skip


def _folder(path: Path) -> Path:
    record(path / "run", [concatenate([_rows(1), _rows(2)]), _rows(3), _rows(4), concatenate([_rows(5), _rows(6)])]).close()
    return path / "run"


def _file(path: Path) -> Path:
    pack(open_run(_folder(path)), path / "run.parquet")
    return path / "run.parquet"


def _unnumbered(path: Path) -> Path:
    table = pq.read_table(_file(path)).drop_columns(["sequence"])
    pq.write_table(table, path / "plain.parquet", row_group_size=5)
    return path / "plain.parquet"


def _flat(path: Path, *, key: str, drop: tuple[str, ...] = ()) -> Path:
    frame = pq.read_table(_file(path)).to_pandas()
    tokens = ["logprob", "response_mask", "entropy"]
    frame = frame[frame["stored_length"] > 0].drop(columns=["stored_length", *drop])
    frame = frame.explode(tokens).astype({"logprob": "float32", "response_mask": bool, "entropy": "float32"})
    if key == "position":
        frame["position"] = frame.groupby("sequence").cumcount()
        frame = frame.drop(columns=["sequence", "uid"])
    frame.to_parquet(path / "flat.parquet", row_group_size=17)
    return path / "flat.parquet"


FORMS: dict[str, Callable[[Path], Path]] = {
    "folder": _folder,
    "file": _file,
    "file without numbers": _unnumbered,
    "flat": lambda path: _flat(path, key="sequence"),
    "flat by position": lambda path: _flat(path, key="position"),
}


@pytest.fixture(params=FORMS, scope="module")
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return open_run(FORMS[request.param](tmp_path_factory.mktemp("forms")))


def listed(found: Rows | None) -> list[dict[str, Any]]:
    """Rows as plain Python, as ``contents`` gives them."""
    if found is None:
        return []
    return [
        {
            name: [plain(v) for v in values[found.splits[i] : found.splits[i + 1]]] if is_token(name) else plain(values[i])
            for name, values in found.columns.items()
        }
        for i in range(found.n_sequences)
    ]


def numbered(run: Run) -> list[dict[str, Any]]:
    """All rows of the run, read whole; numbered in the order of the file where they have no number."""
    return [{"sequence": index, **row} for index, row in enumerate(contents(run))]


def test_every_row_is_found_by_its_number(run: Run) -> None:
    for expected in numbered(run):
        for step in (None, expected["step"]):
            assert listed(sequence_of(run, expected["sequence"], run.columns, step)) == [expected]


def test_a_number_that_is_not_there(run: Run) -> None:
    first = numbered(run)[0]
    assert sequence_of(run, 10**15, run.columns) is None
    assert sequence_of(run, -1, run.columns) is None
    assert sequence_of(run, first["sequence"], run.columns, first["step"] + 1) is None
    assert sequence_of(run, first["sequence"], run.columns, 999) is None


def test_rows_of_a_step_have_what_was_asked_and_their_keys(run: Run) -> None:
    keys = {"step", "sequence", "epoch", "group", "reward", "rollout_step"}
    for step in run.steps:
        found = listed(rows_of_step(run, step, ["reward", "no_such_column"]))
        expected = [row for row in numbered(run) if row["step"] == step]
        assert [{name: row[name] for name in keys} for row in found] == [{name: row[name] for name in keys} for row in expected]
        assert "logprob" not in found[0]
    assert rows_of_step(run, 999) is None


def test_all_passes_over_a_sequence_in_the_order_of_training(run: Run) -> None:
    if "uid" not in run.columns:
        row = sequence_of(run, 3, run.columns)
        assert row is not None
        assert listed(passes_of(run, row, run.columns)) == listed(row)
        return
    every = numbered(run)
    for expected in every[::5]:
        row = sequence_of(run, expected["sequence"])
        assert row is not None
        passes = [one for one in every if one["uid"] == expected["uid"]]
        passes.sort(key=lambda one: (one["step"], one["epoch"]))
        assert len(passes) == 2
        assert listed(passes_of(run, row, run.columns)) == passes


def test_a_group_is_gathered_over_the_steps_of_its_generation_batch(run: Run) -> None:
    every = numbered(run)
    for expected in every[::7]:
        row = sequence_of(run, expected["sequence"])
        assert row is not None
        own = [one for one in every if (one["group"], one["rollout_step"]) == (expected["group"], expected["rollout_step"])]
        first: dict[Any, dict[str, Any]] = {}
        for one in sorted(own, key=lambda one: (one["step"], one["epoch"], one["sequence"])):
            first.setdefault(one.get("uid", one["sequence"]), one)
        assert listed(group_of(run, row, run.columns)) == list(first.values())
        found = members_of(run, expected["step"], expected["group"], run.columns)
        assert listed(found) == list(first.values())
    assert members_of(run, run.steps[0], "no such group") is None


def test_without_group_or_uid_a_row_is_alone(tmp_path: Path) -> None:
    pd.DataFrame({"step": [1, 1, 2], "reward": [0.0, 1.0, 2.0], "logprob": [[-1.0], [-2.0, -3.0], []]}).to_parquet(
        tmp_path / "r.parquet"
    )
    run = open_run(tmp_path / "r.parquet")
    row = sequence_of(run, 1, run.columns)
    assert row is not None
    assert listed(row) == [{"sequence": 1, "step": 1, "reward": 1.0, "logprob": [-2.0, -3.0], "stored_length": 2}]
    assert listed(passes_of(run, row, run.columns)) == listed(group_of(run, row, run.columns)) == listed(row)
    assert members_of(run, 1, "g") is None


def test_only_the_row_groups_of_the_step_are_read(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    run = open_run(folder)
    number = next(row["sequence"] for row in numbered(run) if row["step"] == 4)
    for part in (0, 1, 3):
        (folder / str(PartName(1, 0, part, "tokens"))).write_bytes(b"gone")
    assert sequence_of(run, number, run.columns, 4) is not None
    assert sequence_of(run, number, run.columns) is not None


def test_left_out_tokens_are_told(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    whole = numbered(open_run(folder))
    thin_part(folder, PartName(1, 0, 0, "sequences"), lambda step: step != 1)
    run = open_run(folder)
    for expected in whole:
        found = listed(sequence_of(run, expected["sequence"], run.columns, expected["step"]))[0]
        left_out = expected["step"] == 1
        assert found["tokens_dropped"] is left_out
        assert found["logprob"] == ([] if left_out else expected["logprob"])
        assert found["reward"] == expected["reward"]


def test_a_damaged_part_is_told_in_one_line(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    run = open_run(folder)
    number = next(row["sequence"] for row in numbered(run) if row["step"] == 3)
    path = folder / str(PartName(1, 0, 1, "tokens"))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"tokens-s1-r0-1\.parquet: a Parquet file that is cut short") as caught:
        sequence_of(run, number, run.columns, 3)
    assert "\n" not in str(caught.value)
    assert rows_of_step(run, 3, ["reward"]) is not None  # what is whole can be read
    assert sequence_of(run, number, ["reward"], 3) is not None


def test_a_part_without_its_sequences_is_not_there(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    (folder / str(PartName(1, 0, 1, "sequences"))).unlink()
    run = open_run(folder)
    assert rows_of_step(run, 3) is None
    assert run.steps == [1, 2, 4, 5, 6]
