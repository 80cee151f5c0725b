"""Every bad input is one clear line with the right exit code; faults in the data are kept."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_doctor.errors import DoctorError, InputError, NothingToJudgeError
from rl_doctor.schema import SCHEMA_VERSION
from rl_doctor.store.run import open_run
from tests.unit.store.content import contents, record, rows, write, write_arrow

GOOD: dict[str, Any] = {"step": [1, 2], "logprob": [[-0.1, -0.2], [-0.3]]}


def missing(path: Path) -> Path:
    return path / "absent.parquet"


def below_a_file(path: Path) -> Path:
    return write(path / "run.parquet", GOOD) / "x"


def zero_bytes(path: Path) -> Path:
    (path / "run.parquet").touch()
    return path / "run.parquet"


def cut(path: Path) -> Path:
    file = write(path / "run.parquet", GOOD)
    file.write_bytes(file.read_bytes()[:-20])
    return file


def cut_to_the_magic(path: Path) -> Path:
    (path / "run.parquet").write_bytes(b"PAR1")
    return path / "run.parquet"


def binary(path: Path) -> Path:
    (path / "run.parquet").write_bytes(bytes(range(256)) * 8)
    return path / "run.parquet"


def broken_footer(path: Path) -> Path:
    file = write(path / "run.parquet", GOOD)
    data = bytearray(file.read_bytes())
    data[-60:-12] = b"\xff" * 48
    file.write_bytes(bytes(data))
    return file


def text(path: Path) -> Path:
    (path / "metrics.jsonl").write_text('{"step": 1}\n')
    return path / "metrics.jsonl"


def empty_folder(path: Path) -> Path:
    return path


def folder_of_files(path: Path) -> Path:
    write(path / "run.parquet", GOOD)
    return path


def broken_run_json(path: Path) -> Path:
    record(path / "run", [rows(1, [2])])
    (path / "run" / "run.json").write_text("{")
    return path / "run"


def newer_folder(path: Path) -> Path:
    record(path / "run", [rows(1, [2])])
    (path / "run" / "run.json").write_text(json.dumps({"schema_version": SCHEMA_VERSION + 1}))
    return path / "run"


def with_metadata(document: Any) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        table = pa.table({"step": [1], "reward": [1.0]})
        text = document if isinstance(document, str) else json.dumps(document)
        pq.write_table(table.replace_schema_metadata({"rl_doctor": text}), path / "run.parquet")
        return path / "run.parquet"

    make.__name__ = f"metadata {document}"
    return make


def hand_made(**columns: Any) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        return write(path / "run.parquet", {"step": [1, 2], **columns})

    make.__name__ = ", ".join(columns)
    return make


def folder_of_torn_parts(path: Path) -> Path:
    record(path / "run", [rows(1, [2])])
    (path / "run" / "tokens-s1-r0-0.parquet").write_bytes(b"PAR1")
    return path / "run"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (missing, ["absent.parquet: no such file"]),
        (below_a_file, ["no such file"]),
        (zero_bytes, ["empty (0 bytes)"]),
        (cut, ["cut short"]),
        (cut_to_the_magic, ["cut short"]),
        (binary, ["not a Parquet file"]),
        (broken_footer, ["damaged"]),
        (text, ["not a Parquet file", "to_parquet"]),
        (empty_folder, ["not a run folder"]),
        (folder_of_torn_parts, ["no rows recorded", "tokens-s1-r0-0.parquet", "cut short"]),
        (folder_of_files, ["not a run folder", "run.parquet"]),
        (broken_run_json, ["run.json", "not valid JSON"]),
        (newer_folder, ["schema version", "newer"]),
        (with_metadata({"schema_version": SCHEMA_VERSION + 1}), ["schema version", "newer"]),
        (with_metadata("{"), ["metadata 'rl_doctor'", "not valid JSON"]),
        (with_metadata([1]), ["must be a JSON object"]),
        (with_metadata({"config": {"clip_low": "wide"}}), ["config.clip_low", "a number", "'wide'"]),
        (with_metadata({"config": {"kl_in_reward": 1}}), ["config.kl_in_reward", "true or false"]),
        (with_metadata({"metrics": 3}), ["metrics must be"]),
        (with_metadata({"metrics": [{"step": 1}]}), ["metrics[0]", "step, name and value"]),
        (with_metadata({"metrics": {"a": {"steps": [1], "values": []}}}), ["1 steps and 0 values"]),
        (with_metadata({"metrics_file": "gone.parquet"}), ["gone.parquet", "beside"]),
        (hand_made(logprob=[["a"], ["b"]]), ["'logprob'", "string", "row 0, position 0", "'a'"]),
        (hand_made(reward=["good", "bad"]), ["'reward'", "numbers belong", "row 0", "'good'"]),
        (
            hand_made(response_mask=[[1, 0], [0, 2]], logprob=[[0.1, 0.2], [0.3, 0.4]]),
            ["'response_mask'", "row 1, position 1", "0 or 1"],
        ),
        (
            hand_made(logprob=[[0.1], [0.2]], old_logprob=[[0.1], [0.2, 0.3]]),
            ["row 1", "'logprob'", "'old_logprob'", "equally long"],
        ),
        (hand_made(stored_length=[1, 3], logprob=[[0.1], [0.2, 0.3]]), ["row 1", "'stored_length'", "equally long"]),
        (hand_made(stored_length=[1, -2], logprob=[[0.1], [0.2, 0.3]]), ["'stored_length' is -2 in row 1"]),
        (hand_made(response_length=[1, -2], reward=[1.0, 2.0]), ["'response_length' is -2 in row 1"]),
        (hand_made(logprob=[0.1, 0.2]), ["'logprob'", "one value per row", "lists"]),
        (hand_made(reward=[[0.1], [0.2]]), ["'reward'", "lists", "one value per sequence"]),
        (hand_made(logprob=[[[0.1]], [[0.2]]]), ["'logprob'", "lists of lists"]),
        (hand_made(token_id=[[0.5], [1.0]]), ["'token_id'", "0.5", "row 0, position 0"]),
        (hand_made(token_id=[[2**40], [1]]), ["'token_id'", "int32"]),
        (hand_made(log_probs=[[0.1], [0.2]], per_token_logps=[[0.1], [0.2]]), ["'log_probs'", "'per_token_logps'", "'logprob'"]),
        (hand_made(step=[1.0, math.nan], reward=[1.0, 2.0]), ["'step' is null in row 1"]),
        (hand_made(step=[1.5, 2.0], reward=[1.0, 2.0]), ["'step'", "1.5", "row 0"]),
        (hand_made(step=["one", "two"], reward=[1.0, 2.0]), ["'step'", "row 0", "'one'"]),
        (hand_made(sequence=[1, 1], turn=[0, 0], step=[1, 1], logprob=[[0.1], [0.2]]), ["'turn'", "one value per row"]),
        (hand_made(sequence=[1, 2, 1], step=[1, 1, 1], logprob=[0.1, 0.2, 0.3]), ["sequence 1", "not together", "row 2"]),
    ],
)
def test_unreadable_is_exit_2(make: Callable[[Path], Path], words: list[str], tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        contents(open_run(make(tmp_path)))
    check_message(caught.value, words)
    assert caught.value.exit_code == 2


def no_rows(path: Path) -> Path:
    return write_arrow(path / "run.parquet", {"step": pa.array([], pa.int64()), "reward": pa.array([], pa.float64())})


def folder_without_parts(path: Path) -> Path:
    record(path / "run", [])
    return path / "run"


def folder_of_nan(path: Path) -> Path:
    nan = np.full(2, np.nan, np.float32)
    record(path / "run", [rows(1, [2], logprob=nan)])
    return path / "run"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (no_rows, ["no row"]),
        (folder_without_parts, ["no rows recorded"]),
        (folder_of_nan, ["nothing but NaN", "logprob"]),
        (hand_made(colour=["red", "blue"]), ["nothing known", "colour"]),
        (hand_made(logprob=[[math.nan], [math.nan, math.nan]]), ["nothing but NaN", "logprob"]),
        (hand_made(logprob=[[math.nan], [math.nan]], response_mask=[[1], [1]]), ["nothing but NaN"]),
        (hand_made(reward=[np.float32("nan"), np.float32("nan")]), ["nothing"]),
        (hand_made(logprob=[None, None]), ["nothing but NaN or null in logprob"]),
        (hand_made(loss=[None, None]), ["nothing known"]),
    ],
)
def test_nothing_to_judge_is_exit_3(make: Callable[[Path], Path], words: list[str], tmp_path: Path) -> None:
    with pytest.raises(NothingToJudgeError) as caught:
        open_run(make(tmp_path))
    check_message(caught.value, words)
    assert caught.value.exit_code == 3


def test_no_step_column(tmp_path: Path) -> None:
    file = write(tmp_path / "run.parquet", {"reward": [1.0], "loss": [2.0]})
    with pytest.raises(NothingToJudgeError, match="no column 'step' among reward, loss"):
        open_run(file)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_no_permission(tmp_path: Path) -> None:
    file = write(tmp_path / "run.parquet", GOOD)
    file.chmod(0)
    with pytest.raises(InputError, match="no permission"):
        open_run(file)


def test_no_permission_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    file = write(tmp_path / "run.parquet", GOOD)
    monkeypatch.setattr(pq, "ParquetFile", refuse)
    with pytest.raises(InputError, match="no permission to read it"):
        open_run(file)


def test_damaged_pages_are_one_line(tmp_path: Path) -> None:
    n = 20000
    file = write(tmp_path / "run.parquet", {"step": np.arange(n), "reward": np.random.default_rng(0).normal(size=n)})
    data = bytearray(file.read_bytes())
    middle = len(data) * 3 // 4
    data[middle : middle + 200] = b"\xff" * 200
    start = data.index(b"reward")
    assert start > middle + 200
    offset = pq.ParquetFile(tmp_path / "run.parquet").metadata.row_group(0).column(1).data_page_offset
    data[offset : offset + 40] = b"\xff" * 40
    file.write_bytes(bytes(data))
    with pytest.raises(InputError) as caught:
        contents(open_run(file))
    check_message(caught.value, ["damaged"])


def test_faults_in_the_data_are_kept(tmp_path: Path) -> None:
    file = write(
        tmp_path / "run.parquet",
        {
            "step": [2, 1, 1],
            "uid": ["a", "b", "b"],
            "logprob": [[math.inf, 0.5], [], [math.nan, -1.0]],
            "reward": [math.inf, -math.inf, 1e300],
        },
    )
    run = open_run(file)
    assert [row["logprob"] for row in contents(run)] == [[], ["NaN", -1.0], [math.inf, 0.5]]
    assert [row["reward"] for row in contents(run)] == [-math.inf, 1e300, math.inf]
    assert run.facts.unsorted_steps == 1
    assert run.facts.repeated_rows == 1
    assert (run.facts.first_step, run.facts.last_step, run.facts.sequences, run.facts.tokens) == (1, 2, 3, 4)


def test_one_row_is_enough(tmp_path: Path) -> None:
    run = open_run(write(tmp_path / "run.parquet", {"step": [7], "reward": [0.5]}))
    assert contents(run) == [{"step": 7, "reward": 0.5}]


def check_message(error: DoctorError, words: list[str]) -> None:
    message = str(error)
    assert "\n" not in message
    assert all(word in message for word in words), message
