"""Compressed logs, and logs whose first record is longer than what recognition looks at."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rl_doctor import open_run
from rl_doctor.collectors.importers.registry import HEAD_BYTES

STEPS = 4000
RECORDS = [{"step": step, "reward": step / 7, "kl": step / 9e3, "entropy": 1 / step} for step in range(1, STEPS + 1)]


def json_lines() -> str:
    return "".join(json.dumps(record) + "\n" for record in RECORDS)


def document() -> str:
    return json.dumps(RECORDS, indent=1)


def table() -> str:
    return "\n".join([",".join(RECORDS[0]), *(",".join(map(repr, record.values())) for record in RECORDS), ""])


def text() -> str:
    return "".join(
        f"step {record['step']}: {', '.join(f'{k}={v}' for k, v in record.items() if k != 'step')}\n" for record in RECORDS
    )


@pytest.mark.parametrize("made", [json_lines, document, table, text])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_every_text_is_read_compressed(tmp_path: Path, made: Callable[[], str], encoding: str) -> None:
    (tmp_path / "log.gz").write_bytes(gzip.compress(made().encode(encoding)))
    log = open_run(tmp_path / "log.gz").metrics()
    assert log.names() == ("entropy", "kl", "reward")
    assert log.series("reward")[0].tolist() == list(range(1, STEPS + 1))


@pytest.mark.parametrize("made", [json_lines, table, text])
def test_a_compressed_log_that_was_cut_is_read_as_far_as_it_goes(tmp_path: Path, made: Callable[[], str]) -> None:
    data = gzip.compress(made().encode())
    (tmp_path / "log.gz").write_bytes(data[: len(data) // 2])
    run = open_run(tmp_path / "log.gz")
    assert STEPS // 10 < len(run.metrics().series("reward")[0]) < STEPS
    assert any("compressed file is cut short" in note for note in run.facts.notes)


@pytest.mark.parametrize("size", [1000, HEAD_BYTES + 1, 5 * HEAD_BYTES])
def test_a_first_record_may_be_long(tmp_path: Path, size: int) -> None:
    (tmp_path / "log").write_text(json.dumps({"step": 0, "reward": 0.0, "text": "y" * size}) + "\n" + json_lines())
    assert open_run(tmp_path / "log").metrics().series("reward")[0].tolist() == list(range(STEPS + 1))


def test_a_first_record_may_have_a_very_long_name(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(json.dumps({"step": 0, "reward": 0.0, "y" * 20 * HEAD_BYTES: 1}) + "\n" + json_lines())
    assert len(open_run(tmp_path / "log").metrics().series("reward")[0]) == STEPS + 1
