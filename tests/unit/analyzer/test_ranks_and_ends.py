"""Rows of ranks, and the tokens that responses stop at: against plain loops over the rows, however a step is cut into batches."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_doctor.analyzer.engine import analyze
from rl_doctor.schema import RunInfo
from tests.unit.analyzer.memory import MemoryRun, Row

INFO = RunInfo(eos_token_ids=(2, 9))
ROWS = "data.rows_of_rank."
ENDS = ("mask.stop_without_eos_frac", "mask.stop_same_token_frac", "mask.stop_token_id")


class Run(MemoryRun):
    @property
    def info(self) -> RunInfo:
        return INFO


def rows_of(seed: int) -> list[Row]:
    """Rows of two steps: ranks of which one is rare, rows that fill the batch, responses of any end, some empty."""
    rng = random.Random(seed)
    made: list[Row] = []
    for step in (1, 2):
        for _ in range(rng.randint(1, 30)):
            size = rng.randint(0, 4)
            made.append(
                {
                    "step": step, "rank": rng.choice([0, 0, 1, 1, 7]), "is_padding": rng.random() < 0.2,
                    "token_id": [rng.choice([2, 3, 4, 9, 35]) for _ in range(size)], "response_length": size,
                    "finish_reason": rng.choice(["stop", "stop", "stop", "length", "abort"]),
                    "response_mask": [True] * size,
                }
            )  # fmt: skip
    return made


def plain_rows(rows: list[Row]) -> dict[tuple[str, int], int]:
    """Rows of each rank at each step: those that fill the batch count as none of their rank's."""
    found: dict[tuple[str, int], int] = {}
    for row in rows:
        key = ROWS + str(row["rank"]), row["step"]
        if not row["is_padding"]:
            found[key] = found.get(key, 0) + 1
    return found


def plain_ends(rows: list[Row]) -> dict[str, float]:
    stopped = [row["token_id"] for row in rows if row["finish_reason"] == "stop" and not row["is_padding"] and row["token_id"]]
    without = [ids[-1] for ids in stopped if not set(ids[-2:]) & {2, 9}]
    share = len(without) / len(stopped) if stopped else math.nan
    if not without:
        return {ENDS[0]: share, ENDS[1]: math.nan}
    number = max(Counter(last % 31 for last in without).values())
    return {ENDS[0]: share, ENDS[1]: number / len(without)}


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), cut=st.one_of(st.none(), st.integers(0, 2**32)))
def test_rows_of_ranks_are_those_of_a_plain_loop(seed: int, cut: int | None) -> None:
    rows = rows_of(seed)
    found = analyze(Run(rows, cut=cut), [ROWS]).series
    told = {
        (name, int(step)): int(value)
        for name, series in found.items()
        for step, value in zip(series.steps, series.values, strict=True)
        if value > 0
    }
    assert told == plain_rows(rows)


def test_a_rank_without_rows_at_a_step_has_no_value_there() -> None:
    rows = [{"step": 1, "rank": rank, "is_padding": False} for rank in (0, 0, 3)] + [{"step": 2, "rank": 0, "is_padding": False}]
    found = analyze(Run(rows), [ROWS]).series
    assert {name: (series.steps.tolist(), series.values.tolist()) for name, series in found.items()} == {
        ROWS + "0": ([1, 2], [2.0, 1.0]),
        ROWS + "3": ([1], [1.0]),
    }


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), cut=st.one_of(st.none(), st.integers(0, 2**32)))
def test_ends_are_those_of_a_plain_loop(seed: int, cut: int | None) -> None:
    rows = rows_of(seed)
    found = analyze(Run(rows, cut=cut), ENDS).series
    for step in (1, 2):
        wanted = plain_ends([row for row in rows if row["step"] == step])
        for name, value in wanted.items():
            series = found[name]
            told = dict(zip(series.steps.tolist(), series.values.tolist(), strict=True)).get(step, math.nan)
            assert told == pytest.approx(value, nan_ok=True), (name, step)


@pytest.mark.parametrize(("last", "share", "token"), [([35] * 6, 1.0, 35.0), ([35] * 3 + [3, 6, 8], 0.5, 35.0)])
def test_the_token_at_which_responses_stop(last: list[int], share: float, token: float) -> None:
    rows: list[Row] = [
        {"step": 1, "token_id": [5, 5, one], "response_length": 3, "finish_reason": "stop", "response_mask": [True] * 3}
        for one in last
    ]
    found = analyze(Run(rows), ENDS).series
    assert [float(found[name].values[0]) for name in ENDS] == [1.0, share, token]


def _masked(trained: list[int], lengths: list[int], ranks: list[int]) -> list[Row]:
    return [
        {"step": 1, "rank": rank, "response_length": size, "response_mask": [place < number for place in range(6)]}
        for number, size, rank in zip(trained, lengths, ranks, strict=True)
    ]


@pytest.mark.parametrize(
    ("trained", "off", "sums"),
    [([2, 3, 5, 0], 0.0, 0.0), ([3, 5, 0, 2], 2.5, 0.0), ([4, 3, 3, 0], 4 / 3, 4 / 38), ([3, 4, 6, 1], 1.0, 24 / 38)],
    ids=["own", "of other rows", "other lengths", "one more"],
)
@pytest.mark.parametrize("cut", [None, 1, 2])
def test_counts_of_masks_in_place_and_over_a_step(trained: list[int], off: float, sums: float, cut: int | None) -> None:
    rows = _masked(trained, [2, 3, 5, 0], [0, 0, 1, 1])
    found = analyze(Run(rows, cut=cut), ["mask.count_off", "mask.count_sums_off"]).series
    assert float(found["mask.count_off"].values[0]) == pytest.approx(off)
    assert float(found["mask.count_sums_off"].values[0]) == pytest.approx(max(sums, abs(sum(trained) - 10) / 10))


def test_empty_masks_by_rank() -> None:
    rows = _masked([2, 0, 0, 0], [2, 3, 5, 0], [0, 0, 1, 1])  # a response of no token has none to train
    found = analyze(Run(rows), ["mask.empty_by."]).series
    assert {name.rpartition(".")[2]: float(series.values[0]) for name, series in found.items()} == {"0": 0.5, "1": 1.0}
