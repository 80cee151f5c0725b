"""Logs opened as runs: recognition, several files of one run, and import."""

import json
from pathlib import Path

import pytest

from rl_doctor import check, open_run
from rl_doctor.collectors.importers.opening import import_log
from rl_doctor.collectors.importers.registry import importers, sample
from rl_doctor.errors import InputError, UsageError
from rl_doctor.schema import RunInfo


def state(path: Path, rows: list[dict[str, float]]) -> Path:
    path.write_text(json.dumps({"global_step": 1, "log_history": rows}))
    return path


def test_no_importer_claims_nonsense(tmp_path: Path) -> None:
    for name, content in [
        ("a", b"\x00\x01\x02" * 50),
        ("b", b"hello world\n"),
        ("c", b"{}"),
        ("d", b"[]"),
        ("e", b"<html></html>"),
    ]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=rf"{name}: not recognised"):
            open_run(tmp_path / name)


def test_recognition_never_raises(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(range(256)) * 10)
    seen = sample(tmp_path / "x")
    for known in importers().values():
        known.recognises(seen)
        known.recognises(sample(tmp_path))


def test_several_logs_of_one_run_are_joined_by_step(tmp_path: Path) -> None:
    first = state(tmp_path / "a.json", [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 2.0}])
    second = state(tmp_path / "b.json", [{"step": 2, "loss": 20.0, "kl": 0.1}, {"step": 3, "loss": 30.0}])
    log = open_run(first, second).metrics()
    assert log.series("loss")[1].tolist() == [1.0, 20.0, 30.0]
    assert log.series("kl")[0].tolist() == [2]


def test_imported_and_read_directly_are_the_same(tmp_path: Path) -> None:
    source = state(tmp_path / "state.json", [{"step": step, "loss": 0.1 * step, "eval_loss": 1.0} for step in range(1, 6)])
    import_log([source], tmp_path / "run", RunInfo(trainer="trl"))
    direct, imported = open_run(source), open_run(tmp_path / "run")
    assert sorted(direct.metrics().records()) == sorted(imported.metrics().records())
    assert imported.info.trainer == "trl"
    assert set(direct.facts.notes) <= set(imported.facts.notes)
    assert (imported.facts.first_step, imported.facts.last_step) == (1, 5)
    import_log([source], tmp_path / "untold", RunInfo())
    assert check(open_run(tmp_path / "untold")).run.notes == check(direct).run.notes


def test_import_overwrites_nothing(tmp_path: Path) -> None:
    source = state(tmp_path / "state.json", [{"step": 1, "loss": 1.0}])
    with pytest.raises(UsageError, match="not empty"):
        import_log([source], tmp_path, RunInfo())


def test_an_import_makes_no_folder_above_its_own(tmp_path: Path) -> None:
    source = state(tmp_path / "state.json", [{"step": 1, "loss": 1.0}])
    with pytest.raises(UsageError, match="does not exist"):
        import_log([source], tmp_path / "absent" / "run", RunInfo())
    assert not (tmp_path / "absent").exists()


def test_rows_cannot_be_joined_with_a_log(tmp_path: Path) -> None:
    source = state(tmp_path / "state.json", [{"step": 1, "loss": 1.0}])
    with pytest.raises(InputError, match="has rows of sequences"):
        open_run(source, Path(__file__).parents[4] / "rl_doctor" / "demo" / "healthy.parquet")


@pytest.mark.parametrize(
    ("content", "nearest"),
    [
        (b"\x00\x01\x02" * 50, "neither text nor"),
        (b"hello world\n" * 9, "no 3 lines in it have a step"),
        (b"[2026-01-01] hello world\n" * 9, "no 3 lines in it have a step"),
        (b"[1, 2, 3]\n" * 9, "begins as JSON"),
        (b"loss=1, kl=2, reward=3\n" * 9, "numbers by name, but no step"),
        (b"{}", "begins as JSON"),
        (b" \n \n", "blanks"),
    ],
)
def test_what_is_not_recognised_is_told_in_a_short_line(tmp_path: Path, content: bytes, nearest: str) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(InputError) as failed:
        open_run(tmp_path / "x")
    message = str(failed.value).removeprefix(str(tmp_path))
    assert nearest in message
    assert "rl-doctor import --list" in message
    assert len(message) < 180


def test_of_servers_only_those_of_wandb_are_read() -> None:
    with pytest.raises(InputError, match=r"^https://example\.com/x: not recognised: of servers only wandb's runs are read"):
        open_run("https://example.com/x")


@pytest.mark.parametrize("value", ["1" + "0" * 400, "1e400", "Infinity"])
def test_what_is_infinite_or_too_large_is_told(tmp_path: Path, value: str) -> None:
    rows = "".join(f'{{"step": {step}, "reward": {value}, "kl": 0.5, "loss": 0.{step}}}\n' for step in range(1, 9))
    (tmp_path / "log.jsonl").write_text(rows)
    assert "infinite, or too large for a number: reward" in open_run(tmp_path / "log.jsonl").facts.notes
