"""Edges of the mask against who wrote the tokens, on hand-made rows and against a plain search for runs."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import groupby

import pytest

from rl_doctor.schema import RunInfo
from tests.unit.analyzer.test_masks import NAN, roles, row, value

_EDGES = ("extra_head", "extra_tail", "missing_head", "missing_tail")


def edges(*masks: tuple[str, str]) -> dict[str, float]:
    made = [row([5] * len(author), mask, role=roles(author)) for author, mask in masks]
    return {name: value(f"mask.{name}_frac", *made) for name in _EDGES}


def test_a_mask_that_agrees_has_no_edge() -> None:
    assert set(edges(("aaaoooaa", "11100011")).values()) == {0.0}


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ("11100111", {"extra_head": 0.5}),
        ("11110011", {"extra_tail": 0.5}),
        ("11100001", {"missing_head": 0.5}),
        ("11000011", {"missing_tail": 0.5}),
        ("11000111", {"missing_tail": 0.5, "extra_head": 0.5}),
        ("11110001", {"extra_tail": 0.5, "missing_head": 0.5}),
        ("11111111", {}),
        ("10100011", {}),
    ],
)
def test_each_edge_by_its_side(mask: str, expected: dict[str, float]) -> None:
    found = edges(("aaaoooaa", mask))
    assert {name: share for name, share in found.items() if share} == expected


def test_nine_tokens_are_no_edge() -> None:
    author = "aaa" + "o" * 12 + "aa"
    assert edges((author, "111" + "000" + "1" * 9 + "11"))["extra_head"] == 0.0
    assert edges((author, "111" + "0000" + "1" * 8 + "11"))["extra_head"] == 0.5


def test_rows_without_a_trained_token_do_not_count() -> None:
    assert math.isnan(edges(("aaoo", "0000"))["missing_head"])


def test_the_engine_tells_where_no_role_does() -> None:
    made = row([5] * 6, "110111", rollout_logprob=[-1.0, -0.5, NAN, NAN, -0.3, -0.2])
    assert value("mask.extra_head_frac", made) == 0.5
    certain = row(
        [5] * 6, "110111", rollout_logprob=[-1.0, -0.5, NAN, 0.0, -0.3, -0.2], old_logprob=[-1.0] * 3 + [-0.001] + [-1.0] * 2
    )
    assert value("mask.extra_head_frac", certain) == 0.0


def test_a_last_token_without_a_logprob_is_no_edge() -> None:
    assert value("mask.extra_tail_frac", row([5] * 3, "111", rollout_logprob=[-1.0, -0.5, NAN])) == 0.0


def test_tokens_beyond_the_length_have_no_author() -> None:
    made = row([5] * 4, "1100", role=roles("aaaa"), response_length=2)
    assert value("mask.missing_tail_frac", made) == 0.0


def test_what_is_left_out_inside() -> None:
    made = row([5] * 8, "11011001", role=roles("aaaaaaaa"))
    assert value("mask.written_untrained_frac", made) == pytest.approx(3 / 8)
    assert value("mask.written_untrained_inside_frac", made) == pytest.approx(3 / 8)
    assert value("mask.written_untrained_inside_frac", row([5] * 4, "1110", role=roles("aaaa"))) == 0.0


def test_glue_is_told_by_its_share_and_its_token() -> None:
    made = row([5, 5, 7, 8, 30, 5, 7, 8, 30, 5], "1100110011", role=roles("aaoooaoooa"))
    assert value("mask.observation_edge_frac", made) == 1.0
    assert value("mask.extra_head_same_token", made) == 1.0
    whole = row([5, 5, 7, 8, 30, 5], "111111", role=roles("aaoooa"))
    assert value("mask.observation_edge_frac", whole) == 0.0


def _plain(author: str, mask: str) -> Iterator[str]:
    """Runs of wrong tokens, searched token by token."""
    states = [(letter, bit, (letter == "a") != (bit == "1")) for letter, bit in zip(author, mask, strict=True)]
    start = 0
    for _, group in groupby(states):
        size = len(list(group))
        stop = start + size
        letter, _, wrong = states[start]
        right_of = stop < len(states) and states[stop][:2] == ("a", "1")
        left_of = start > 0 and states[start - 1][:2] == ("a", "1")
        if wrong and size <= 8:
            if letter == "o" and right_of and start > 0 and states[start - 1][1] == "0":
                yield "extra_head"
            elif letter == "o" and left_of and stop < len(states) and states[stop][1] == "0":
                yield "extra_tail"
            elif letter == "a" and right_of and not left_of:
                yield "missing_head"
            elif letter == "a" and left_of and not right_of:
                yield "missing_tail"
        start = stop


@pytest.mark.parametrize("seed", range(8))
def test_equals_a_plain_search(seed: int) -> None:
    rng = random.Random(seed)
    rows = []
    for _ in range(20):
        author = "".join(rng.choice("ao") * rng.randint(1, 5) for _ in range(rng.randint(1, 6)))
        mask = "".join("1" if (letter == "a") != (rng.random() < 0.1) else "0" for letter in author)
        rows.append((author, mask))
    told = [(author, mask) for author, mask in rows if "1" in mask]
    blocks = sum(1 for author, _ in told for letter, _ in groupby(author) if letter == "a")
    found = [name for author, mask in told for name in _plain(author, mask)]
    expected = {name: min(found.count(name), blocks) / blocks for name in _EDGES}
    assert edges(*rows) == pytest.approx(expected)


def test_why_padding_is_trained() -> None:
    info = RunInfo(pad_token_id=0, eos_token_ids=(2,))
    rows = (row([5, 2, 0, 0], "1100"), row([5, 6, 0, 0], "1111"), row([5, 2, 0], "111"), row([5, 5, 2], "111"))
    assert value("mask.padding_after_end_frac", *rows, info=info) == pytest.approx(1 / 3)
    assert value("mask.padding_after_cut_frac", *rows, info=info) == 1.0
    assert value("mask.padding_trained_mean", *rows, info=info) == 1.5
    assert value("mask.padding_trained_std", *rows, info=info) == 0.5


def test_why_the_last_token_is_missing() -> None:
    rows = (row([5, 6, 2], "110"), row([5, 6, 7], "110"), row([5, 6, 7], "111"))
    assert value("mask.cut_last_missed_frac", *rows) == 0.5


def test_how_much_of_the_prompt_is_trained() -> None:
    rows = [row([5], "1", prompt_loss_tokens=count, prompt_length=6) for count in (0, 6, 1, 4)]
    assert value("mask.prompt_whole_frac", *rows) == pytest.approx(1 / 3)
    assert value("mask.prompt_edge_frac", *rows) == pytest.approx(1 / 3)
