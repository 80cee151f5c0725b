from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from rl_doctor.app.decoding import _pieces, load
from rl_doctor.errors import UsageError
from tests.integration.app.written import VOCABULARY, write_tokenizer

BYTES = (b"a", b"\xe7", b"\xad", b"\x94", b" b", b"\xf0\x9f", b"\x98\x80")


def of_bytes(ids: Sequence[int]) -> str:
    return b"".join(BYTES[one] for one in ids).decode(errors="replace")


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([0, 4, 0], ["a", " b", "a"]),
        ([0, 1, 2, 3, 4], ["a", "", "", "答", " b"]),
        ([5, 6], ["", "😀"]),
        ([0, 1], ["a", "\N{REPLACEMENT CHARACTER}"]),
        ([], []),
    ],
)
def test_a_character_of_several_tokens_is_told_at_the_last(ids: list[int], expected: list[str]) -> None:
    assert _pieces(ids, of_bytes) == expected


def test_a_token_that_is_not_known_has_no_text() -> None:
    assert _pieces([0, 99, 4], of_bytes)[0] == "a"
    assert len(_pieces([0, 99, 4], of_bytes)) == 3


def test_spaces_that_a_tokenizer_drops_at_the_start_stay_between_words() -> None:
    words = ("▁the", "▁answer")

    def decode(ids: Sequence[int]) -> str:
        return "".join(words[one] for one in ids).replace("▁", " ").removeprefix(" ")

    assert _pieces([0, 1, 0], decode) == ["the", " answer", " the"]


def test_a_real_tokenizer(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    file = write_tokenizer(tmp_path / "tokenizer.json")
    for path in (file, tmp_path):
        tell = load(path)
        assert tell([1, 2, 3, 16, 0]) == [VOCABULARY[one] for one in (1, 2, 3, 16, 0)]
        assert tell([1, 10**6]) == [VOCABULARY[1], ""]


def test_a_broken_tokenizer_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^--tokenizer .*/gone: no such file or folder; give a local folder") as caught:
        load(tmp_path / "gone")
    assert "\n" not in str(caught.value)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0"}))
    with pytest.raises(UsageError, match=r"cannot be loaded \(|tokenizers is not installed; run: pip install") as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"cannot be loaded \(|transformers is not installed; run: pip install"):
        load(tmp_path / "empty")
