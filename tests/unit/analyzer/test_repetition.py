"""Tails that loop, and phrases that come again, against plain searches."""

from __future__ import annotations

import random

import pytest

from tests.unit.analyzer.test_masks import Row, row, value


def plain(ids: list[int]) -> bool:
    for period in range(1, 17):
        needed = max(24, 2 * period)
        if len(ids) >= needed + period and all(ids[-i] == ids[-i - period] for i in range(1, needed + 1)):
            return True
    return False


def looping(rng: random.Random) -> list[int]:
    ids = [rng.randint(1, 30) for _ in range(rng.randint(0, 40))]
    period = rng.randint(1, 20)
    ids += [rng.randint(1, 30) for _ in range(period)] * rng.randint(1, 40)
    return ids[:200] + [rng.randint(1, 30)] * (rng.random() < 0.1)


def whole(ids: list[int], **more: object) -> Row:
    return row(ids, "1" * len(ids), **more)


@pytest.mark.parametrize("seed", range(6))
def test_equals_a_plain_search(seed: int) -> None:
    rng = random.Random(seed)
    rows = [looping(rng) for _ in range(40)]
    told = [ids for ids in rows if len(ids) >= 32]
    assert value("repeat.loop_frac", *map(whole, rows)) == pytest.approx(sum(map(plain, told)) / len(told))


def test_padding_is_no_loop() -> None:
    ids = list(range(1, 41)) + [0] * 40
    assert value("repeat.loop_frac", row(ids, "1" * 40 + "0" * 40)) == 0.0
    assert value("repeat.loop_frac", whole(ids, response_length=40)) == 0.0
    assert value("repeat.loop_frac", whole(ids)) == 1.0


def test_told_apart_by_how_it_ended() -> None:
    loop, free = [7, 8] * 30, list(range(60))
    rows = [whole(loop, finish_reason="length"), whole(free, finish_reason="length"), whole(loop, finish_reason="stop")]
    assert value("repeat.loop_cut_frac", *rows) == 0.5
    assert value("repeat.loop_ended_frac", *rows) == 1.0
    assert value("repeat.loop_zero_frac", *rows, whole([0] * 40, finish_reason="stop")) == pytest.approx(1 / 3)


@pytest.mark.parametrize("seed", range(6))
def test_phrases_equal_a_plain_count(seed: int) -> None:
    rng = random.Random(seed)
    rows = [[rng.randint(0, 3) for _ in range(rng.choice([0, 3, 4, 9, 50]))] for _ in range(9)]
    shares = []
    for ids in rows:
        grams = [tuple(ids[at : at + 4]) for at in range(len(ids) - 3)]
        if grams:
            shares.append(1 - len(set(grams)) / len(grams))
    assert value("repeat.phrase_frac", *map(whole, rows)) == pytest.approx(sum(shares) / len(shares))
