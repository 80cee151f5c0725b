from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest

from rl_doctor.api import check
from rl_doctor.errors import InputError, UsageError
from rl_doctor.schema import RunConfig, RunInfo
from rl_doctor.store.pack import pack
from rl_doctor.store.rows import Rows
from rl_doctor.store.run import open_run
from rl_doctor.store.writer import RunWriter
from tests.unit.store.content import contents, record, rows


def test_what_was_written_comes_back(tmp_path: Path) -> None:
    part = rows(
        [2, 1, 1],
        [2, 0, 3],
        uid=np.array(["a", None, "c"], object),
        reward=np.array([1.0, np.nan, -np.inf]),
        weight_version=np.array([3, -(2**63), 4]),
        is_padding=np.array([False, True, False]),
        role=np.array([0, 1, -1, 2, 3], np.int8),
        padded_width=np.array([8, 8, 8], np.int32),
        microbatch=np.array([0, 0, 0], np.int32),
    )
    info = RunInfo(
        trainer="custom", algorithm="grpo", config=RunConfig(clip_low=0.2, top_k=5, native={"a": [1]}), eos_token_ids=(1, 2)
    )
    record(tmp_path / "run", [part], info=info).close()
    run = open_run(tmp_path / "run")
    found = contents(run)
    assert [row["step"] for row in found] == [1, 1, 2]
    assert [row["uid"] for row in found] == [None, "c", "a"]
    assert [row["reward"] for row in found] == ["NaN", -np.inf, 1.0]
    assert [row["weight_version"] for row in found] == [-(2**63), 4, 3]
    assert [row["role"] for row in found] == [[], [-1, 2, 3], [0, 1]]
    assert [row["logprob"] for row in found] == [[], [-0.25, -0.375, -0.5], [0.0, -0.125]]
    assert [row["padded_width"] for row in found] == [8, 8, 8]
    assert len({row["sequence"] for row in found}) == 3
    assert run.info.config == info.config
    assert (run.info.status, run.info.eos_token_ids) == ("complete", (1, 2))
    assert (run.facts.sequences, run.facts.tokens, run.facts.incomplete_steps) == (3, 5, ())


def test_contexts_join_by_micro_batch(tmp_path: Path) -> None:
    part = rows(
        [1, 1, 1],
        [1, 1, 1],
        microbatch=np.array([0, 1, 0], np.int32),
        padded_width=np.array([8, 16, 8], np.int32),
        loss_scale_factor=np.array([0.5, np.nan, 0.5]),
    )
    record(tmp_path, [part])
    assert pq.read_metadata(tmp_path / "contexts-s1-r0-0.parquet").num_rows == 2
    assert [(row["padded_width"], row["loss_scale_factor"]) for row in contents(open_run(tmp_path))] == [
        (8, 0.5),
        (16, "NaN"),
        (8, 0.5),
    ]


def test_parts_are_tidy_tables_for_other_tools(tmp_path: Path) -> None:
    record(tmp_path, [rows(1, [2, 1]), rows(2, [3])])
    tokens, sequences = (duckdb.read_parquet(f"{tmp_path}/{table}-*.parquet") for table in ("tokens", "sequences"))
    joined = tokens.project("sequence, logprob").join(sequences.project("sequence, step"), "sequence")
    found = joined.aggregate("step, count(*), sum(logprob)", "step").order("step").fetchall()
    assert found == [(1, 3, -0.375), (2, 3, -0.375)]


def test_only_asked_columns_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, [rows(1, [2], reward=np.ones(1))])
    asked: list[str] = []
    read = pq.ParquetFile.read_row_group

    def spy(self: Any, group: int, columns: list[str], **settings: Any) -> Any:
        asked.extend(columns)
        return read(self, group, columns, **settings)

    run = open_run(tmp_path)
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", spy)
    (batch,) = run.batches(["reward"])
    assert set(asked) == {"reward", "stored_length"}
    assert batch.n_tokens == 2
    assert run.columns >= {"step", "sequence", "logprob", "response_mask", "reward", "stored_length"}


def test_a_resume_replaces_the_steps_it_repeats(tmp_path: Path) -> None:
    record(tmp_path, [rows(step, [1], reward=np.array([1.0])) for step in (1, 2, 3)]).close()
    record(tmp_path, [rows(step, [1], reward=np.array([2.0])) for step in (2, 4)]).close()
    run = open_run(tmp_path)
    assert [(row["step"], row["reward"]) for row in contents(run)] == [(1, 1.0), (2, 2.0), (3, 1.0), (4, 2.0)]
    assert run.facts.notes == (
        "sessions overlap: step 2 of session 1 is replaced by a later session",
        "step 3 of session 1 is from before the training went back to step 2",
    )
    assert [item["session"] for item in run.info.sessions] == [1, 2]


def test_a_column_that_a_session_lacks_is_unknown_there(tmp_path: Path) -> None:
    record(tmp_path, [rows(1, [2])])
    record(tmp_path, [rows(2, [1], ref_logprob=np.array([-1], np.float32), turns=np.array([3], np.int32))])
    found = contents(open_run(tmp_path))
    assert [row["ref_logprob"] for row in found] == [["NaN", "NaN"], [-1.0]]
    assert [row["turns"] for row in found] == [-(2**31), 3]


def test_two_writers_with_one_session_and_rank_are_refused(tmp_path: Path) -> None:
    first = RunWriter(tmp_path, RunInfo(), session=1)
    with pytest.raises(UsageError, match="session 1, rank 0 has a writer already"):
        RunWriter(tmp_path, RunInfo(), session=1)
    other_rank = RunWriter(tmp_path, RunInfo(), rank=1)
    assert (first.session, other_rank.session, RunWriter(tmp_path, RunInfo()).session) == (1, 1, 2)


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("x")
    with pytest.raises(InputError, match="a file stands where"):
        RunWriter(tmp_path / "run", RunInfo())


def test_steps_are_complete_when_every_rank_has_them(tmp_path: Path) -> None:
    info = RunInfo(writing_ranks=(0, 1))
    zero = record(tmp_path, [rows(1, [1]), rows(2, [1]), rows(3, [1])], info=info)
    assert open_run(tmp_path).facts.incomplete_steps == (1, 2, 3)
    one = RunWriter(tmp_path, info, rank=1)
    one.write_part(rows(2, [1]), completes=[2])
    assert open_run(tmp_path).facts.incomplete_steps == (3,)
    one.write_part(rows([], []), completes=[3])
    assert open_run(tmp_path).facts.incomplete_steps == ()
    assert [row["step"] for row in contents(open_run(tmp_path))] == [1, 2, 2, 3]
    assert zero.session == one.session


def test_a_rank_that_stopped_recording_is_named(tmp_path: Path) -> None:
    info = RunInfo(writing_ranks=(0, 1))
    first = RunWriter(tmp_path, info)
    second = RunWriter(tmp_path, info, rank=1)
    for writer in (first, second):
        writer.write_part(rows([1], [2]), completes=[1])
    second.set_status("detached")
    first.close()
    (note,) = open_run(tmp_path).facts.notes
    assert "stopped early" in note
    assert "rank 1" in note


def test_dropped_steps_are_counted_over_ranks(tmp_path: Path) -> None:
    writers = [record(tmp_path, [rows(1, [1])], rank=rank) for rank in (0, 1)]
    writers[0].count_dropped(2)
    writers[1].count_dropped(1)
    writers[1].count_dropped(1)
    assert open_run(tmp_path).facts.dropped_steps == 4
    (tmp_path / "writer-s1-r0.json").write_text("{")
    facts = open_run(tmp_path).facts
    assert (facts.dropped_steps, facts.notes) == (
        2,
        ("writer-s1-r0.json cannot be read: the steps that this writer dropped are unknown",),
    )


def test_torn_parts_are_left_out_and_named(tmp_path: Path) -> None:
    record(tmp_path, [rows(step, [1]) for step in range(1, 7)]).write_metrics([{"step": 1, "name": "loss", "value": 1.0}])
    (tmp_path / "sequences-s1-r0-0.parquet").write_bytes(b"")
    part = tmp_path / "tokens-s1-r0-1.parquet"
    part.write_bytes(part.read_bytes()[:-8])
    (tmp_path / "tokens-s1-r0-2.parquet").unlink()
    (tmp_path / "sequences-s1-r0-3.parquet").unlink()
    (tmp_path / "metrics-s1-r0-0.parquet").write_bytes(b"PAR1PAR1")
    (tmp_path / "tokens-s1-r0-6.parquet.tmp").write_bytes(b"PAR1")
    run = open_run(tmp_path)
    assert [row["step"] for row in contents(run)] == [5, 6]
    named = {text.split(":")[0] for text in run.facts.skipped_parts}
    assert named == {
        "sequences-s1-r0-0.parquet",
        "tokens-s1-r0-1.parquet",
        "tokens-s1-r0-2.parquet",
        "tokens-s1-r0-3.parquet",
        "metrics-s1-r0-0.parquet",
    }
    assert run.facts.notes == ("tokens-s1-r0-6.parquet.tmp: a file that was not finished",)
    assert all("\n" not in text and str(tmp_path) not in text for text in run.facts.skipped_parts)
    assert len(run.metrics()) == 0


def test_a_torn_part_does_not_complete_its_step(tmp_path: Path) -> None:
    record(tmp_path, [rows(1, [1]), rows(2, [1])])
    (tmp_path / "tokens-s1-r0-1.parquet").write_bytes(b"PAR1")
    record_again = RunWriter(tmp_path, RunInfo(), rank=1, session=1)
    record_again.write_part(rows(2, [1]), completes=[2])
    assert open_run(tmp_path).facts.incomplete_steps == (2,)


def test_metrics_keep_the_last_of_a_name(tmp_path: Path) -> None:
    writer = record(tmp_path, [rows(1, [1])])
    writer.write_metrics(
        [
            {"step": 2, "name": "loss", "value": 2.0},
            {"step": 1, "name": "loss", "value": float("nan"), "time": 5.0, "source": "log"},
            {"step": 1, "name": "loss", "value": 0.5, "split": "eval"},
        ]
    )
    writer.write_metrics([{"step": 2, "name": "loss", "value": 3.0}])
    log = open_run(tmp_path).metrics()
    assert log.steps().tolist() == [1, 2]
    steps, values = log.series("loss")
    assert steps.tolist() == [1, 2]
    np.testing.assert_array_equal(values, [np.nan, 3.0])
    assert log.series("loss", "eval")[1].tolist() == [0.5]


def test_a_folder_of_metrics_alone_is_a_run(tmp_path: Path) -> None:
    RunWriter(tmp_path, RunInfo()).write_metrics([{"step": 1, "name": "loss", "value": 2.0}])
    run = open_run(tmp_path)
    assert contents(run) == []
    assert (len(run.metrics()), run.facts.first_step, run.columns) == (1, 1, frozenset())


def test_run_json_is_whole_at_any_time_and_kept_on_resume(tmp_path: Path) -> None:
    writer = record(tmp_path, [], info=RunInfo(trainer="custom", world_size=2))
    assert json.loads((tmp_path / "run.json").read_text())["status"] == "running"
    writer.set_status("detached")
    assert json.loads((tmp_path / "run.json").read_text())["status"] == "detached"
    again = RunWriter(tmp_path, RunInfo(trainer="custom"))
    assert [item["session"] for item in again.info.sessions] == [1, 2]
    assert again.info.status == "running"
    assert not list(tmp_path.glob("*.tmp"))


def test_without_run_json_the_parts_are_read(tmp_path: Path) -> None:
    record(tmp_path, [rows(1, [1])])
    (tmp_path / "run.json").unlink()
    run = open_run(tmp_path)
    assert len(contents(run)) == 1
    assert run.facts.notes == ("run.json is missing: trainer and configuration are unknown",)


def test_rows_need_a_step(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, RunInfo())
    with pytest.raises(UsageError, match="'step'"):
        writer.write_part(Rows({"reward": np.ones(1)}, np.zeros(2, np.int64)))


def test_long_steps_are_written_in_several_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_doctor.store.writer.ROW_GROUP_TOKENS", 4)
    record(tmp_path, [rows([1, 1, 1, 1, 2], [3, 9, 1, 2, 1])])
    tokens = pq.ParquetFile(tmp_path / "tokens-s1-r0-0.parquet").metadata
    assert [tokens.row_group(index).num_rows for index in range(tokens.num_row_groups)] == [3, 9, 3, 1]
    assert [len(row["logprob"]) for row in contents(open_run(tmp_path))] == [3, 9, 1, 2, 1]


@pytest.mark.skipif(sys.platform == "darwin", reason="its file system takes only names that are UTF-8")
def test_a_path_that_is_not_utf8_is_read_like_any_other(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"r\xff\xfen")
    record(folder, [rows(1, [2, 3]), rows(2, [1])], info=RunInfo(trainer="custom"))
    run = open_run(folder)
    file = folder.with_name(f"{folder.name}.parquet")
    pack(run, file)
    assert contents(open_run(file)) == contents(run)
    assert [row["step"] for row in contents(run)] == [1, 1, 2]
    assert check(run).run.sequences == check(open_run(file)).run.sequences == 3
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(InputError, match="cut short"):
        open_run(file)
