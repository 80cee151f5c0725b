"""Bad input through the command line: one clear line, the right exit code, no traceback, never a silent pass."""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from rl_doctor.cli.main import main
from rl_doctor.schema import RunInfo
from rl_doctor.store.rows import Rows
from rl_doctor.store.run import open_run
from rl_doctor.store.writer import RunWriter
from tests.integration.bad_input import Outcome, Row, rows, run_cli, write

NAN = math.nan
Check = Callable[..., Outcome]


@pytest.fixture
def check(capfd: pytest.CaptureFixture[str]) -> Check:
    """``rl-doctor check`` in this process: the same code as the command, without a second to start."""

    def run(*arguments: object) -> Outcome:
        with pytest.raises(SystemExit) as ended:
            main(["check", *map(str, arguments)])
        printed = capfd.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return Outcome(code, printed.out, printed.err).checked()

    return run


def changed(at: int | None = None, **values: object) -> list[Row]:
    """The healthy rows with some values replaced, in row ``at`` or in all; a function gets the row."""
    made = rows()
    for index, row in enumerate(made):
        if at is None or index == at:
            row |= {name: value(row) if callable(value) else value for name, value in values.items()}
    return made


def tokens(value: object) -> Callable[[Row], list[object]]:
    return lambda row: [value] * len(row["logprob"])


def test_healthy_input_passes(tmp_path: Path, check: Check) -> None:
    outcome = check(write(tmp_path / "run.parquet", rows()))
    assert (outcome.code, outcome.err) == (0, ""), outcome
    assert outcome.out.rstrip().endswith("exit 0")


def test_missing(tmp_path: Path, check: Check) -> None:
    outcome = check(tmp_path / "no.parquet")
    assert outcome.code == 2
    assert "no.parquet: no such file" in outcome.error_line


def test_empty(tmp_path: Path, check: Check) -> None:
    (tmp_path / "empty.parquet").touch()
    outcome = check(tmp_path / "empty.parquet")
    assert outcome.code == 2
    assert "empty.parquet: the file is empty" in outcome.error_line


@pytest.mark.parametrize("kept", [4, 8, 100, 0.5, 0.9, -1])
def test_truncated(tmp_path: Path, check: Check, kept: float) -> None:
    path = write(tmp_path / "torn.parquet", rows())
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole)) if isinstance(kept, float) else int(kept)])
    outcome = check(path)
    assert outcome.code == 2
    assert str(path) in outcome.error_line


@pytest.mark.parametrize("seed", range(12))
def test_damaged_inside(tmp_path: Path, check: Check, seed: int) -> None:
    path = write(tmp_path / "damaged.parquet", rows())
    data = bytearray(path.read_bytes())
    noise = random.Random(seed)
    start = noise.randrange(4, len(data) - 300)
    data[start : start + 200] = noise.randbytes(200)
    path.write_bytes(data)
    outcome = check(path)  # without checksums in the file, changed values may also be valid ones
    if outcome.code in {2, 3}:
        assert str(path) in outcome.error_line


@pytest.mark.parametrize(
    "content", [b"\x00" * 5000, bytes(range(256)) * 20, b"a letter\nto nobody\n", b"PAR1" + b"\xff" * 300 + b"PAR1"]
)
def test_binary_and_other_formats(tmp_path: Path, check: Check, content: bytes) -> None:
    (tmp_path / "odd.parquet").write_bytes(content)
    outcome = check(tmp_path / "odd.parquet")
    assert outcome.code == 2
    assert "odd.parquet: " in outcome.error_line


def test_another_format_under_the_name_of_a_parquet_file_is_read_as_what_it_is(tmp_path: Path, check: Check) -> None:
    (tmp_path / "odd.parquet").write_bytes(b"step,reward\n1,2\n")
    outcome = check(tmp_path / "odd.parquet")
    assert outcome.code == 3  # one row of a table
    assert "CSV" in outcome.out


def test_zero_rows(tmp_path: Path, check: Check) -> None:
    outcome = check(write(tmp_path / "zero.parquet", pa.Table.from_pylist(rows(1)).slice(0, 0)))
    assert outcome.code == 3
    assert "zero.parquet" in outcome.error_line
    assert "no row" in outcome.error_line


@pytest.mark.parametrize("missing", [NAN, None])
@pytest.mark.parametrize(
    "kept", [("step",), ("step", "response_mask"), ("step", "response_mask", "response_length", "uid", "group")]
)
def test_only_nan(tmp_path: Path, check: Check, kept: tuple[str, ...], missing: float | None) -> None:
    numbers = ("logprob", "old_logprob", "advantage")
    made = [
        {name: row[name] for name in kept} | {"reward": missing} | {name: tokens(missing)(row) for name in numbers}
        for row in rows()
    ]
    table = pa.Table.from_pylist(made)
    if missing is None:
        for name in ("reward", *numbers):
            kind = pa.float64() if name == "reward" else pa.list_(pa.float32())
            table = table.set_column(table.column_names.index(name), name, table[name].cast(kind))
    outcome = check(write(tmp_path / "nan.parquet", table))
    if missing is None and "response_length" in kept:  # null is "not recorded": lengths and masks are left to judge
        assert outcome.code == 0
        assert "reward" in outcome.out
    else:
        assert outcome.code == 3, outcome
        assert "nan.parquet" in outcome.error_line


def test_a_column_of_nan_beside_good_ones_is_named(tmp_path: Path, check: Check) -> None:
    outcome = check(write(tmp_path / "run.parquet", changed(logprob=tokens(NAN))))
    assert "not one finite number in logprob" in outcome.out


def test_no_known_column(tmp_path: Path, check: Check) -> None:
    outcome = check(write(tmp_path / "other.parquet", [{"bar": 1.0, "foo": 2}]))
    assert outcome.code == 3
    assert "other.parquet" in outcome.error_line
    assert "bar, foo" in outcome.error_line


def test_unknown_columns_beside_the_step(tmp_path: Path, check: Check) -> None:
    outcome = check(write(tmp_path / "other.parquet", [{"step": row["step"], "foo": 1.0} for row in rows()]))
    assert outcome.code == 3
    assert "other.parquet" in outcome.error_line


def test_no_step(tmp_path: Path, check: Check) -> None:
    outcome = check(write(tmp_path / "nostep.parquet", pa.Table.from_pylist(rows()).drop_columns(["step"])))
    assert outcome.code in {2, 3}
    assert "nostep.parquet" in outcome.error_line
    assert "'step'" in outcome.error_line


def test_a_null_step(tmp_path: Path, check: Check) -> None:
    outcome = check(write(tmp_path / "run.parquet", changed(17, step=None)))
    assert outcome.code == 2
    for part in ("run.parquet", "'step'", "row 17"):
        assert part in outcome.error_line


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("reward", "good"),
        ("step", "a"),
        ("step", 0.5),
        ("logprob", tokens("x")),
        ("logprob", {"a": 1}),
        ("logprob", -0.5),
        ("response_mask", tokens(2)),
        ("response_length", "long"),
        ("response_length", 3.5),
    ],
)
def test_mixed_types_name_file_column_and_row(tmp_path: Path, check: Check, column: str, value: object) -> None:
    outcome = check(write(tmp_path / "run.parquet", changed(**{column: value})))
    assert outcome.code == 2
    for part in ("run.parquet", f"'{column}'", "row 0"):
        assert part in outcome.error_line


def test_lists_of_unequal_length_name_the_row(tmp_path: Path, check: Check) -> None:
    outcome = check(write(tmp_path / "run.parquet", changed(17, old_logprob=lambda row: row["old_logprob"][:-1])))
    assert outcome.code == 2
    for part in ("run.parquet", "'old_logprob'", "row 17"):
        assert part in outcome.error_line


@pytest.mark.parametrize("column", ["response_length", "prompt_length", "stored_length"])
def test_negative_lengths_name_the_row(tmp_path: Path, check: Check, column: str) -> None:
    made = changed(**{column: lambda row: row["response_length"]})
    made[17][column] = -4
    outcome = check(write(tmp_path / "run.parquet", made))
    assert outcome.code in {1, 2}
    for part in (column, "-4"):
        assert part in (outcome.error_line if outcome.code == 2 else outcome.out)


def test_repeated_steps_are_a_finding(tmp_path: Path, check: Check) -> None:
    outcome = check(write(tmp_path / "run.parquet", rows() + rows()[:16]), "--fail-on", "warning")
    assert outcome.code == 1
    assert "repeated-steps" in outcome.out
    assert "16 of 336 rows" in outcome.out


def test_unsorted_steps_are_a_finding_and_change_no_metric(tmp_path: Path, check: Check) -> None:
    order = list(range(len(rows())))
    random.Random(1).shuffle(order)
    shuffled = write(tmp_path / "shuffled.parquet", [rows()[index] for index in order])
    outcome = check(shuffled, "--fail-on", "warning", "--output-format", "json")
    assert outcome.code == 0
    results = {result["name"]: result for result in json.loads(outcome.out)["results"]}
    assert [found["severity"] for found in results["repeated-steps"]["findings"]] == ["info"]
    ordered = json.loads(check(write(tmp_path / "run.parquet", rows()), "--output-format", "json").out)
    for result in ordered["results"]:
        if result["name"] not in {"repeated-steps", "unreadable-parts"}:
            assert result == results[result["name"]]


def test_a_logprob_above_0_is_an_error(tmp_path: Path, check: Check) -> None:
    outcome = check(write(tmp_path / "run.parquet", changed(170, logprob=tokens(0.5))))
    assert outcome.code == 1
    assert "impossible-logprob" in outcome.out
    assert "step 21" in outcome.out


@pytest.mark.parametrize(("column", "value"), [("logprob", tokens(math.inf)), ("reward", -math.inf), ("advantage", tokens(NAN))])
def test_infinity_and_nan_are_errors_with_their_step(tmp_path: Path, check: Check, column: str, value: object) -> None:
    outcome = check(write(tmp_path / "run.parquet", changed(170, **{column: value})), "--output-format", "json")
    assert outcome.code == 1
    findings = [finding for result in json.loads(outcome.out)["results"] for finding in result["findings"]]
    found = next(finding for finding in findings if finding["name"] == "non-finite")
    assert found["severity"] == "error"
    assert min(item["first_step"] for item in found["evidence"]) == 21


def test_one_row_is_judged_where_it_can_be_and_the_rest_is_skipped(tmp_path: Path, check: Check) -> None:
    outcome = check(write(tmp_path / "run.parquet", rows()[:1]), "--output-format", "json")
    document = json.loads(outcome.out)
    by_name = {result["name"]: result for result in document["results"]}
    for name in ("kl-runaway", "reward-drift", "entropy-collapse"):
        assert by_name[name]["outcome"] == "skipped"
        assert by_name[name]["reason"]
    assert document["run"]["sequences"] == 1


def test_a_folder_without_parts(tmp_path: Path, check: Check) -> None:
    outcome = check(tmp_path)
    assert outcome.code == 2
    assert f"{tmp_path}: neither a run folder nor a folder of logs" in outcome.error_line


def test_a_folder_that_holds_a_description_only(tmp_path: Path, check: Check) -> None:
    (tmp_path / "run.json").write_text("{}")
    outcome = check(tmp_path)
    assert outcome.code == 3
    assert str(tmp_path) in outcome.error_line


def test_a_torn_description(tmp_path: Path, check: Check) -> None:
    (tmp_path / "run.json").write_text('{"trainer": ')
    outcome = check(tmp_path)
    assert outcome.code == 2
    assert "run.json" in outcome.error_line


def test_a_file_being_written(tmp_path: Path, check: Check) -> None:
    path = write(tmp_path / "whole.parquet", rows())
    growing = tmp_path / "growing.parquet"
    with growing.open("wb") as file:
        file.write(path.read_bytes()[:3000])
        file.flush()
        outcome = check(growing)
    assert outcome.code == 2
    assert "growing.parquet" in outcome.error_line


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read(tmp_path: Path, check: Check) -> None:
    path = write(tmp_path / "secret.parquet", rows(1))
    path.chmod(0)
    outcome = check(path)
    assert outcome.code == 2
    assert "secret.parquet" in outcome.error_line


def test_every_run_is_reported_and_the_worst_exit_code_wins(tmp_path: Path, check: Check) -> None:
    good = write(tmp_path / "good.parquet", rows())
    bad = write(tmp_path / "bad.parquet", changed(170, logprob=tokens(math.inf)))
    blank = write(tmp_path / "blank.parquet", [{"step": 1, "reward": NAN}])
    outcome = check(bad, blank, tmp_path / "no.parquet", good, "--output-format", "json")
    assert outcome.code == 2
    assert [item["summary"]["exit_code"] for item in json.loads(outcome.out)] == [1, 3, 2, 0]
    assert [line.rpartition("/")[2].partition(":")[0] for line in outcome.err.splitlines()] == ["blank.parquet", "no.parquet"]
    assert check(bad, blank, good).code == 1
    assert check(blank, good).code == 3


def test_a_run_folder_with_a_torn_part_is_judged_without_it(tmp_path: Path, check: Check) -> None:
    source = open_run(write(tmp_path / "run.parquet", rows()))
    folder = tmp_path / "folder"
    writer = RunWriter(folder, RunInfo())
    for batch in source.batches(source.columns):
        writer.write_part(Rows(dict(batch.columns), batch.splits), [batch.step])
    writer.close()
    torn = sorted(folder.glob("tokens-*.parquet"))[5]
    torn.write_bytes(torn.read_bytes()[:-20])
    (folder / "tokens-s0-r0-99.parquet.tmp").write_bytes(b"PAR1")
    outcome = check(folder, "--fail-on", "warning")
    assert outcome.code == 1
    assert torn.name in outcome.out
    assert "tokens-s0-r0-99.parquet.tmp" in outcome.out


def test_in_processes_of_their_own(tmp_path: Path) -> None:
    bad = write(tmp_path / "bad.parquet", changed(17, old_logprob=lambda row: row["old_logprob"][:-1]))
    (tmp_path / "empty.parquet").touch()
    outcome = run_cli("check", bad, tmp_path / "empty.parquet", tmp_path / "no.parquet")
    assert (outcome.code, outcome.out.rstrip()) == (2, "3 runs, 3 could not be judged; exit 2")
    assert len(outcome.err.splitlines()) == 3
    outcome = run_cli("metrics", bad)
    assert (outcome.code, outcome.out) == (2, "")
    assert "row 17" in outcome.error_line
    outcome = run_cli("pack", tmp_path / "empty.parquet", tmp_path / "out.parquet")
    assert outcome.code == 2
    assert not (tmp_path / "out.parquet").exists()
