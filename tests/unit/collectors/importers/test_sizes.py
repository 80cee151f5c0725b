"""What is far larger than a log, or cut by what compressed it: refused or read in seconds, and said."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest

from rl_doctor import open_run
from rl_doctor.collectors.importers import columns, text_file
from rl_doctor.errors import DoctorError, InputError, NothingToJudgeError

MANY = 100_000


def _nested(depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {"loss": 1.0}
    for _ in range(depth):
        made = {"a": made}
    return made


WIDE: dict[str, Any] = {
    "one record": {f"w{i}": i for i in range(MANY)},
    "one record of sections": {f"a{i}": {f"b{j}": j / 2 for j in range(20)} for i in range(MANY // 20)},
    "records of different names": [{f"w{i}": 1.0, "step": i} for i in range(MANY)],
    "columns": {"step": [1, 2, 3], **{f"w{i}": [1.0, 2.0, 3.0] for i in range(MANY)}},
    "keyed by step": {str(i): {f"w{i}": 1.0} for i in range(MANY)},
    "lists of records": {f"w{i}": [{"step": 1, "value": 1.0}, {"step": 2, "value": 2.0}] for i in range(MANY // 5)},
    "a long form": [{"name": f"w{i}", "value": i, "step": i % 9} for i in range(MANY)],
    "a history": {"log_history": [{"step": i, f"w{i}": 1.0} for i in range(MANY)]},
}


@pytest.mark.parametrize("form", WIDE)
def test_more_names_than_any_log_has_are_refused_at_once(tmp_path: Path, form: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(WIDE[form]))
    start = time.process_time()
    with pytest.raises(DoctorError, match=r"a\.json: more than 10,000 different names") as refused:
        open_run(path)
    assert "\n" not in str(refused.value)
    assert time.process_time() - start < 20.0


def test_lines_and_tables_of_too_many_names_are_refused(tmp_path: Path) -> None:
    lines = tmp_path / "a.jsonl"
    lines.write_text("".join(json.dumps({"step": i, f"w{i}": 1.0}) + "\n" for i in range(20_000)))
    table = tmp_path / "a.csv"
    table.write_text("step," + ",".join(f"w{i}" for i in range(20_000)) + ("\n1" + ",2" * 20_000) * 3)
    for path in (lines, table):
        with pytest.raises(InputError, match="more than 10,000 different names"):
            open_run(path)


def test_a_record_of_many_names_that_is_still_a_log_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    names = [f"layer/{i}/norm" for i in range(columns.MOST_NAMES - 1)]
    path.write_text("".join(json.dumps({"step": step, **dict.fromkeys(names, 1.0)}) + "\n" for step in (1, 2)))
    assert len(open_run(path).metrics().names()) == len(names)


def test_what_is_nested_without_end_or_one_long_list_is_no_log(tmp_path: Path) -> None:
    deep, flat = tmp_path / "deep.json", tmp_path / "flat.json"
    deep.write_text(json.dumps(_nested(900)))
    flat.write_text(json.dumps(list(range(1_000_000))))
    with pytest.raises(NothingToJudgeError, match="neither records nor columns"):
        open_run(deep)
    with pytest.raises(InputError, match="not recognised"):
        open_run(flat)


def test_a_document_that_is_too_large_to_be_held_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_file, "LARGEST_DOCUMENT", 1000)
    rows = [{"step": step, "loss": step / 4} for step in range(100)]
    listed, history = tmp_path / "list.json", tmp_path / "history.json"
    listed.write_text(json.dumps(rows))
    history.write_text(json.dumps({"log_history": rows}))
    for path in (listed, history):
        with pytest.raises(InputError, match="one record per line"):
            open_run(path)
    lines = tmp_path / "a.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len(open_run(lines).metrics().steps()) == 100


def test_a_compressed_log_that_was_cut_says_so(tmp_path: Path) -> None:
    rows = [{"step": step, "loss": (step * 7919 % 1009) / 1009} for step in range(4000)]
    texts = {
        "state.gz": json.dumps({"log_history": rows}),
        "console.gz": "".join(f"step:{row['step']} - actor/pg_loss:{row['loss']} - critic/score/mean:0.5\n" for row in rows),
    }
    for name, text in texts.items():
        packed = gzip.compress(text.encode())
        whole, torn = tmp_path / name, tmp_path / f"torn-{name}"
        whole.write_bytes(packed)
        torn.write_bytes(packed[: len(packed) // 2])
        read, cut = open_run(whole), open_run(torn)
        assert not any("compressed" in note for note in read.facts.notes)
        assert cut.facts.notes[1] == "the compressed file is cut short or damaged: read up to there"
        assert 100 < len(cut.metrics().steps()) < 4000
