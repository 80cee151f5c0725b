"""``check``, ``metrics`` and ``pack`` on a small run."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import threading
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow.parquet as pq
import pytest
from junitparser import JUnitXml

from rl_doctor import Recorder, check, open_run
from rl_doctor.cli import judging
from rl_doctor.cli.main import main
from rl_doctor.report import json_document
from tests.integration.bad_input import rows, write
from tests.unit.report.test_json_document import SCHEMA


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write(folder / "good.parquet", rows())
    broken = rows()
    broken[170]["logprob"] = [math.inf] * len(broken[170]["logprob"])
    write(folder / "broken.parquet", broken)
    return folder


@pytest.fixture
def call(capfdbinary: pytest.CaptureFixture[bytes]) -> Any:
    def run(*arguments: object) -> tuple[int, bytes, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        printed = capfdbinary.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return code, printed.out, printed.err.decode()

    return run


def test_one_check_writes_many_files(folder: Path, tmp_path: Path, call: Any) -> None:
    wanted = {form: tmp_path / f"report.{form}" for form in ("json", "junit", "text")}
    files = [word for form, path in wanted.items() for word in ("--output", f"{form}={path}")]
    code, out, err = call("check", folder / "broken.parquet", folder / "no.parquet", *files, "--output-format", "json")
    assert code == 2
    assert err.count("\n") == 1
    documents = json.loads(out)
    jsonschema.Draft202012Validator(SCHEMA).validate(documents)
    assert json.loads(wanted["json"].read_text("utf-8")) == documents
    assert JUnitXml.fromfile(str(wanted["junit"])).errors == 1
    assert "RLD601 non-finite" in wanted["text"].read_text("utf-8")


@pytest.mark.parametrize("verb", ["check", "compare", "metrics"])
def test_a_run_that_may_not_be_read_is_told_by_its_name(
    tmp_path: Path, call: Any, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    locked, opened = tmp_path / "locked.parquet", Path.open
    write(locked, rows())

    def refused(self: Path, *arguments: Any, **named: Any) -> Any:
        if self == locked:
            raise PermissionError(13, "Permission denied", str(self))
        return opened(self, *arguments, **named)

    monkeypatch.setattr(Path, "open", refused)
    code, out, err = call(verb, locked, *([locked.with_name("b")] if verb == "compare" else []))
    assert code == 2
    assert f"{locked}: no permission to read it; change its mode or run as its owner" in (err or out.decode())


def test_what_the_system_refuses_elsewhere_names_the_file(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "here")

    monkeypatch.setattr(judging, "judge", full)
    code, _, err = call("check", "x")
    assert (code, err) == (2, "rl-doctor: error: here: No space left on device; check the path, its permissions and the disk\n")


def test_the_python_call_and_the_command_say_the_same(folder: Path, call: Any) -> None:
    code, out, _ = call("check", folder / "broken.parquet", "--output-format", "json")
    report = check(open_run(folder / "broken.parquet"))
    assert code == report.exit_code() == 1
    told, computed = json.loads(out), json_document.document(report)
    for document in (told, computed):
        del document["created_at"]
    assert told == json.loads(json.dumps(computed))


def test_selected_rules_only(folder: Path, call: Any) -> None:
    code, out, _ = call("check", folder / "broken.parquet", "--select", "kl-spike,RLD204", "--output-format", "json")
    assert code == 0
    assert [result["code"] for result in json.loads(out)["results"]] == ["RLD203", "RLD204"]
    assert call("check", folder / "broken.parquet", "--ignore", "RLD601")[0] == 0


def test_fail_on(folder: Path, call: Any) -> None:
    assert call("check", folder / "broken.parquet", "--fail-on", "never")[0] == 0
    assert call("check", folder / "good.parquet", "--fail-on", "warning")[0] == 0


def test_a_required_rule_that_is_skipped_exits_with_3(folder: Path, call: Any) -> None:
    code, out, err = call("check", folder / "good.parquet", "--require", "kl-flatline")
    assert code == 3
    assert err.endswith("good.parquet: required, but not judged: RLD205\n")
    assert b"RLD205 kl-flatline" in out
    assert call("check", folder / "good.parquet", "--require", "RLD601")[0] == 0


def test_files_rules_alone_are_no_pass_for_a_run_without_values(tmp_path: Path, call: Any) -> None:
    path = write(tmp_path / "ids.parquet", [{"step": row["step"], "uid": row["uid"], "foo": "x"} for row in rows()])
    assert call("check", path)[0] == 3


def test_metrics_say_the_same_in_every_format(folder: Path, call: Any) -> None:
    arguments = ("metrics", folder / "broken.parquet", "--select", "policy.ratio_mean,reward.mean", "--output-format")
    document = json.loads(call(*arguments, "json")[1])
    assert list(document["metrics"]) == ["policy.ratio_mean", "reward.mean"]
    assert document["metrics"]["policy.ratio_mean"][21] == "Infinity"
    table = pq.read_table(io.BytesIO(call(*arguments, "parquet")[1]))
    header, *lines = csv.reader(io.StringIO(call(*arguments, "csv")[1].decode()))
    assert header == table.column_names == ["step", *document["metrics"]]
    assert [int(line[0]) for line in lines] == table["step"].to_pylist() == document["steps"]
    for place, name in enumerate(document["metrics"], 1):
        assert [float(line[place]) for line in lines] == [float(value) for value in document["metrics"][name]]
        assert table[name].to_pylist() == [float(value) for value in document["metrics"][name]]
    text = call(*arguments, "text")[1].decode()
    assert text.splitlines()[22].split() == ["21", "inf", f"{document['metrics']['reward.mean'][21]:.4g}"]


def test_metrics_go_to_a_file(folder: Path, tmp_path: Path, call: Any) -> None:
    path = tmp_path / "m.parquet"
    assert call("metrics", folder / "good.parquet", "--output-format", "parquet", "--output", path)[:2] == (0, b"")
    assert pq.read_table(path).num_rows == 40


def test_metrics_that_cannot_be_computed_name_the_column(folder: Path, call: Any) -> None:
    code, out, err = call("metrics", folder / "good.parquet", "--select", "ref.kl_k3")
    assert (code, out) == (3, b"")
    assert "ref_logprob" in err


def test_a_packed_run_gets_the_same_verdict(folder: Path, tmp_path: Path, call: Any) -> None:
    code, out, err = call("pack", folder / "broken.parquet", tmp_path / "packed.parquet")
    assert (code, err) == (0, "")
    assert out.decode().startswith(f"{tmp_path / 'packed.parquet'}: 320 sequences, 3,347 tokens, ")
    before = json.loads(call("check", folder / "broken.parquet", "--output-format", "json")[1])
    after = json.loads(call("check", tmp_path / "packed.parquet", "--output-format", "json")[1])
    assert after["summary"] == before["summary"]
    assert [result["findings"] for result in after["results"]] == [result["findings"] for result in before["results"]]


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "run", "--output", "json=run/report.json"),
        ("check", "good.parquet", "--output", "json=good.parquet"),
        ("check", "good.parquet", "--output", "json=link.parquet"),
        ("check", "good.parquet", "run", "--output", "json=run/run.json"),
        ("metrics", "good.parquet", "--output", "good.parquet"),
        ("metrics", "good.parquet", "--output", "run/sequences-s1-r0-0.parquet"),
        ("pack", "good.parquet", "good.parquet"),
        ("pack", "run", "run/tokens-s1-r0-0.parquet"),
        ("pack", "run", "run/packed.parquet"),
    ],
    ids=" ".join,
)
def test_no_output_overwrites_what_is_read(
    tmp_path: Path, call: Any, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "good.parquet", rows())
    (tmp_path / "link.parquet").symlink_to("good.parquet")
    with Recorder(tmp_path / "run") as recorder:
        recorder.log_batch(step=1, response_mask=[[1, 1]], logprob=[[-1.0, -0.5]])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    code, out, err = call(*arguments)
    assert (code, out) == (2, b"")
    assert re.search("is the run that is read|lies in the run folder|is a file of a recorded run", err)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_only_files_are_replaced(tmp_path: Path, call: Any, folder: Path) -> None:
    (tmp_path / "target.parquet").write_bytes(b"old")
    (tmp_path / "link.parquet").symlink_to("target.parquet")
    assert call("pack", folder / "good.parquet", tmp_path / "link.parquet")[0] == 0
    assert (tmp_path / "link.parquet").is_symlink()
    assert pq.read_metadata(tmp_path / "target.parquet").num_rows == len(rows())
    os.mkfifo(tmp_path / "pipe")
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    assert call("pack", folder / "good.parquet", tmp_path / "pipe")[:2] == (0, b"")
    reader.join(60)
    assert (tmp_path / "pipe").is_fifo()
    assert pq.read_metadata(io.BytesIO(received[0])).num_rows == len(rows())


def test_the_suffix_tells_the_format_of_metrics(folder: Path, tmp_path: Path, call: Any) -> None:
    arguments = ("metrics", folder / "good.parquet", "--select", "reward", "--output")
    assert call(*arguments, tmp_path / "m.csv")[0] == 0
    assert (tmp_path / "m.csv").read_text().startswith("step,reward.mean")
    assert call(*arguments, tmp_path / "m.parquet")[0] == 0
    assert "reward.mean" in pq.read_schema(tmp_path / "m.parquet").names
    code, _, err = call(*arguments, tmp_path / "m.json", "--output-format", "csv")
    assert code == 2
    assert "leave one of them out" in err
    assert not (tmp_path / "m.json").exists()


def test_import_lists_the_formats(call: Any) -> None:
    code, out, _ = call("import", "--list")
    assert code == 0
    assert re.search(r"^json-lines +JSON records, one after the other$", out.decode(), re.MULTILINE)


def test_import_doubts_unknown_trainers_and_refuses_what_is_no_version(tmp_path: Path, call: Any) -> None:
    (tmp_path / "log.csv").write_text("step,loss\n1,0.5\n2,0.25\n")
    code, out, _ = call("import", tmp_path / "log.csv", tmp_path / "a", "--trainer", "vrel")
    assert code == 0
    assert "trainer 'vrel' has no names of its own here: read as any trainer's; did you mean verl" in out.decode()
    assert b"no names" not in call("import", tmp_path / "log.csv", tmp_path / "b", "--trainer", "verl")[1]
    code, _, err = call("import", tmp_path / "log.csv", tmp_path / "c", "--trainer-version", "banana")
    assert code == 2
    assert "'banana' is no version" in err
    assert not (tmp_path / "c").exists()


def test_a_line_feed_in_a_name_does_not_break_the_headline(tmp_path: Path, call: Any) -> None:
    (tmp_path / "a\nb.csv").write_text("step,loss\n" + "".join(f"{step},{1 / step}\n" for step in range(1, 50)))
    assert rb"a\nb.csv" in call("check", tmp_path / "a\nb.csv")[1].splitlines()[0]
