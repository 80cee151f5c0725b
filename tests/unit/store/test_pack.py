from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_doctor.errors import InputError, NothingToJudgeError
from rl_doctor.schema import MISSING_INT, RunConfig, RunInfo
from rl_doctor.store import pack as packing
from rl_doctor.store.pack import pack
from rl_doctor.store.rows import Rows, splits_of
from rl_doctor.store.run import open_run
from rl_doctor.store.writer import RunWriter
from tests.unit.store.content import contents, record, rows, write

FLOATS = st.floats(width=32)
INTS = st.integers(-5, 5) | st.just(MISSING_INT["int32"])
NUMBERS = ("logprob", "reward", "reward/format")
TEXTS = st.none() | st.text(max_size=3)


@st.composite
def parts(draw: st.DrawFn) -> list[Rows]:
    """Parts of one session: any values, empty sequences, steps in any order, columns that come and go."""
    return [_part(draw) for _ in range(draw(st.integers(1, 4)))]


def _part(draw: st.DrawFn) -> Rows:
    lengths = draw(st.lists(st.integers(0, 4), min_size=1, max_size=5))
    size, total = len(lengths), sum(lengths)

    def many(values: st.SearchStrategy[Any], count: int, dtype: Any) -> np.ndarray[Any, Any]:
        array = np.empty(count, dtype)
        array[:] = draw(st.lists(values, min_size=count, max_size=count))
        return array

    columns = {
        "step": many(st.integers(-2, 3), size, np.int64),
        "logprob": many(FLOATS, total, np.float32),
        "response_mask": many(st.booleans(), total, np.bool_),
        "reward": many(st.floats(), size, np.float64),
        "uid": many(TEXTS, size, object),
        "turns": many(INTS, size, np.int32),
    }
    optional = {
        "token_id": lambda: many(INTS, total, np.int32),
        "role": lambda: many(st.integers(-1, 3), total, np.int8),
        "is_padding": lambda: many(st.booleans(), size, np.bool_),
        "reward/format": lambda: many(st.floats(), size, np.float64),
        "padded_width": lambda: np.full(size, 4, np.int32),
    }
    for name, make in optional.items():
        if draw(st.booleans()):
            columns[name] = make()
    return Rows(columns, splits_of(np.array(lengths)))


@settings(max_examples=60, deadline=None)
@given(parts(), st.integers(1, 9))
def test_folder_and_file_hold_the_same(tmp_path_factory: Any, written: list[Rows], max_tokens: int) -> None:
    folder = tmp_path_factory.mktemp("run")
    record(folder / "run", written, info=RunInfo(trainer="custom", config=RunConfig(clip_low=0.2)))
    if all(np.isnan(part.columns[name]).all() for part in written for name in part.columns if name in NUMBERS):
        with pytest.raises(NothingToJudgeError, match="NaN"):
            open_run(folder / "run")
        return
    run = open_run(folder / "run")
    pack(run, folder / "run.parquet")
    packed = open_run(folder / "run.parquet")
    assert packed.columns == run.columns
    assert packed.info == run.info
    expected = contents(run)
    assert len(expected) == sum(part.n_sequences for part in written)
    assert contents(packed) == expected
    assert contents(packed, max_tokens=max_tokens) == expected
    assert contents(run, max_tokens=max_tokens) == expected
    pack(packed, folder / "again.parquet")
    assert contents(open_run(folder / "again.parquet")) == expected
    assert (packed.facts.sequences, packed.facts.tokens) == (run.facts.sequences, run.facts.tokens)
    assert packed.facts.repeated_rows == run.facts.repeated_rows


def test_metrics_travel_in_the_metadata(tmp_path: Path) -> None:
    values = [1.5, float("nan"), float("inf"), float("-inf")]
    writer = record(tmp_path / "run", [rows(1, [1])])
    writer.write_metrics([{"step": step, "name": "actor/ppo_kl", "value": value} for step, value in enumerate(values)])
    writer.write_metrics([{"step": 1, "name": "actor/ppo_kl", "value": 7.0, "split": "eval"}])
    pack(open_run(tmp_path / "run"), tmp_path / "run.parquet")
    text = pq.read_metadata(tmp_path / "run.parquet").metadata[b"rl_doctor"]
    document = json.loads(text, parse_constant=pytest.fail)
    assert document["metrics"][0] == {"step": 0, "name": "actor/ppo_kl", "value": 1.5}
    log = open_run(tmp_path / "run.parquet").metrics()
    np.testing.assert_array_equal(log.series("actor/ppo_kl")[1], values)
    assert log.series("actor/ppo_kl", "eval")[1].tolist() == [7.0]


def test_large_metrics_go_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "METRICS_LIMIT", 10)
    record(tmp_path / "run", [rows(1, [1])]).write_metrics([{"step": 1, "name": "loss", "value": float("nan")}])
    (tmp_path / "out").mkdir()
    pack(open_run(tmp_path / "run"), tmp_path / "out" / "a.parquet")
    assert (tmp_path / "out" / "a.metrics.parquet").exists()
    np.testing.assert_array_equal(open_run(tmp_path / "out" / "a.parquet").metrics().series("loss")[1], [np.nan])
    (tmp_path / "out" / "a.metrics.parquet").unlink()
    with pytest.raises(InputError, match=r"a\.metrics\.parquet"):
        open_run(tmp_path / "out" / "a.parquet")


@pytest.mark.parametrize(
    "member",
    [
        [
            {"step": 1, "name": "a", "value": 0.5},
            {"step": 2, "name": "a", "value": None},
            {"step": 3.0, "name": "a", "value": "Infinity"},
        ],
        {"a": {"steps": [1, 2, 3], "values": [0.5, "NaN", "Infinity"]}},
    ],
)
def test_both_forms_of_metrics_are_read(tmp_path: Path, member: Any) -> None:
    table = pq.read_table(write(tmp_path / "run.parquet", {"step": [1], "reward": [1.0]}))
    pq.write_table(table.replace_schema_metadata({"rl_doctor": json.dumps({"metrics": member})}), tmp_path / "run.parquet")
    steps, values = open_run(tmp_path / "run.parquet").metrics().series("a")
    assert steps.tolist() == [1, 2, 3]
    np.testing.assert_array_equal(values, [0.5, np.nan, np.inf])


def test_what_the_folder_told_travels(tmp_path: Path) -> None:
    record(tmp_path / "run", [rows(1, [1])], info=RunInfo(writing_ranks=(0, 1), extra={"note": "kept"})).count_dropped(3)
    record(tmp_path / "run", [rows(1, [1])])
    (tmp_path / "run" / "x.tmp").touch()
    run = open_run(tmp_path / "run")
    pack(run, tmp_path / "run.parquet")
    packed = open_run(tmp_path / "run.parquet")
    assert packed.facts == run.facts
    assert packed.facts.dropped_steps == 3
    assert packed.info.extra == run.info.extra


def test_a_kill_while_packing_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "run", [rows(1, [1])])
    pack(open_run(tmp_path / "run"), tmp_path / "run.parquet")
    before = (tmp_path / "run.parquet").read_bytes()

    def die(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(packing, "_table", die)
    with pytest.raises(KeyboardInterrupt):
        pack(open_run(tmp_path / "run"), tmp_path / "run.parquet")
    assert (tmp_path / "run.parquet").read_bytes() == before


def test_nothing_to_pack(tmp_path: Path) -> None:
    RunWriter(tmp_path / "run", RunInfo()).write_metrics([{"step": 1, "name": "loss", "value": 2.0}])
    with pytest.raises(NothingToJudgeError, match="no sequence rows to pack"):
        pack(open_run(tmp_path / "run"), tmp_path / "run.parquet")
