"""Text as a console shows it: encodings, endings, length, compression, and formats that show late."""

import gzip
import random
from pathlib import Path

import pytest

from rl_doctor.collectors.importers import console
from rl_doctor.collectors.importers.bars import split
from rl_doctor.collectors.importers.opening import open_log
from rl_doctor.collectors.importers.registry import HEAD_BYTES, find, importers, sample
from rl_doctor.errors import DoctorError, InputError
from tests.unit.collectors.importers.texts import bar, importer_of, opened, values

VERL = "".join(f"step:{step} - actor/lr:{step / 4} - critic/score/mean:0.5\n" for step in range(1, 9))
LR = {step: step / 4 for step in range(1, 9)}


def lines(tmp_path: Path, data: bytes) -> list[str]:
    (tmp_path / "x").write_bytes(data)
    return list(console.lines(tmp_path / "x"))


@pytest.mark.parametrize(
    "data",
    [
        VERL.encode(), VERL.replace("\n", "\r\n").encode(), VERL.encode("utf-16"), VERL.encode("utf-8-sig"),
        b"\xfe\xff" + VERL.encode("utf-16-be"), b"\x80 broken \x80\n" + VERL.encode(),
        gzip.compress(VERL.encode()), VERL.encode() + b"note\n" * 300 + b"\0" * 5000,
        VERL.replace("step", "\x1b[1;32mstep").encode(),
    ],
)  # fmt: skip
def test_encodings_endings_compression_and_zeros(tmp_path: Path, data: bytes) -> None:
    assert values(opened(tmp_path, data), "actor/lr") == LR


def test_a_compressed_log_that_was_cut_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    random.seed(1)
    text = "".join(f"step:{step} - actor/lr:{random.random()} - critic/score/mean:0.5\n" for step in range(1, 2000))
    packed = gzip.compress(text.encode())
    found = values(opened(tmp_path, packed[: len(packed) // 2]), "actor/lr")
    assert 100 < len(found) < 1999


def test_lines_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "αβγ\r\nx\x1b[31my\x1b[0m\n\n" + "z" * 100 + "\rend"
    for size in (1, 2, 3, 7, 64):
        monkeypatch.setattr(console, "BLOCK", size)
        assert lines(tmp_path, text.encode()) == ["αβγ", "xy", "z" * 100, "end"]


def test_a_line_too_long_to_be_a_record_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "BLOCK", 16)
    monkeypatch.setattr(console, "LONGEST", 100)
    assert lines(tmp_path, b"first\n" + b"y" * 1000 + b"\nlast\n") == ["first", "last"]


def test_a_line_of_ten_megabytes_does_not_stop_the_reading(tmp_path: Path) -> None:
    text = VERL[: len(VERL) // 2] + "\n" + "prompt " * 1_500_000 + "\n" + VERL[len(VERL) // 2 :]
    assert set(values(opened(tmp_path, text), "critic/score/mean")) >= {1, 2, 3, 7, 8}


@pytest.mark.parametrize("packed", [False, True])
def test_a_format_that_shows_far_from_both_ends_is_found(tmp_path: Path, *, packed: bool) -> None:
    prints = "[prompt] what is the capital: of - this\n" * (3 * HEAD_BYTES // 40)
    data = (prints + VERL + prints).encode()
    assert importer_of(tmp_path, gzip.compress(data) if packed else data)[0] == "verl-console"
    assert values(opened(tmp_path, data), "actor/lr") == LR


@pytest.mark.parametrize(
    ("line", "rest"),
    [
        ("(TaskRunner pid=123, ip=10.0.0.1)  - a:1", " - a:1"),
        ("\x1b[36m(main_task pid=12)\x1b[0m x", "x"),
        ("[36m(main_task pid=12)[0m x", "x"),
        ("(pid=12) x", "x"),
        ("[rank0]: x", "x"),
        ("[default3]:x", "x"),
        ("3:  x", " x"),
        ("2025-01-02 03:04:05,678 - INFO - x", "x"),
        ("2025-01-02T03:04:05.6Z stdout F x", "x"),
        ("[2025-01-02 03:04:05] x", "x"),
        ("12 monkeys", "12 monkeys"),
        ("(a note) x", "(a note) x"),
    ],
)
def test_prefixes(tmp_path: Path, line: str, rest: str) -> None:
    assert [console.bare(found) for found in lines(tmp_path, line.encode())] == [rest]


def test_bars_in_a_line() -> None:
    text = f"before;{bar(3, 9, 'Train epoch [1/2]')}{{'loss': 1}}{bar(4, 9)}".replace("\r", " ")
    pieces = [piece.strip() if isinstance(piece, str) else piece for piece in split(text)]
    assert pieces == ["before;", (("Train epoch [1/2]", 9), 3), "{'loss': 1}", (("", 9), 4)]


SOURCES = (
    VERL,
    "".join(f"{{'loss': 0.5, 'grad_norm': 0.1, 'learning_rate': 1e-6, 'epoch': 0.1}}\n{bar(step, 50)}" for step in range(9)),
    "".join(f"x.py:1 - step {step}: {{'train/loss': 0.5}}\nrollout {step}: {{'rollout/raw_reward': 1}}\n" for step in range(9)),
    "".join(f"step {step} | loss=0.5 | reward: 0.25 | kl: 1e-3\n" for step in range(9)),
    "".join(f"Epoch:[1/2]({step}/9), Reward: 0.1, KL_ref: 0.2\n" for step in range(9)),
    '{"global_step": 3, "log_history": [' + ", ".join(f'{{"step": {step}, "loss": 0.5}}' for step in range(9)) + "]}",
    "".join(f'{{"step": {step}, "data": {{"actor/lr": 0.5, "x": null}}}}\n' for step in range(9)),
    "".join(f"│ ppo_actor/x │ 1.0e+00 │\nTrain step {step}/9 done.\n" for step in range(9)),
    "".join(f"===== Step {step}/9 =====\n📊 Training Results:\n  • Loss: 0.1\n" for step in range(9)),
)


@pytest.mark.parametrize("source", range(len(SOURCES)))
def test_mutated_texts_give_a_log_or_a_clear_error(tmp_path: Path, source: int) -> None:
    rng = random.Random(source)
    whole = SOURCES[source].encode()
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 12)):
            at = rng.randrange(len(data))
            kind = rng.randrange(4)
            if kind == 0:
                data[at] = rng.randrange(256)
            elif kind == 1:
                del data[at : at + rng.randint(1, 40)]
            elif kind == 2:
                data[at:at] = rng.choice([b"\n", b"\r", b"}", b"{'", b"\0", b"nan", b" - ", b"\x1b[", b"9" * 400, b'"', b"1e999"])
            else:
                data[at:at] = data[: rng.randint(1, 60)]
            if not data:
                data = bytearray(b" ")
        (tmp_path / "log").write_bytes(bytes(data))
        try:
            run = open_log([tmp_path / "log"])
        except DoctorError as error:
            said = str(error)
        else:
            said = f"{tmp_path / 'log'}: {len(run.metrics())} values"
            assert len(run.metrics()) > 0
        assert str(tmp_path / "log") in said
        assert "\n" not in said


def test_recognition_survives_anything(tmp_path: Path) -> None:
    rng = random.Random(7)
    for data in [
        b"\x1f\x8b",
        b"\x1f\x8b\x08rubbish",
        b"\xff\xfe",
        b"\xff\xfe\x00",
        b"\0" * 100,
        rng.randbytes(3 * HEAD_BYTES),
        b"{" * 5000,
    ]:
        (tmp_path / "x").write_bytes(data)
        seen = sample(tmp_path / "x")
        for known in importers().values():
            known.recognises(seen)
        assert find(seen) is None
        with pytest.raises(InputError):
            open_log([tmp_path / "x"])
