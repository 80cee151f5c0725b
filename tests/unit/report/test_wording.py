"""Numbers and words."""

from __future__ import annotations

import math

import pytest

from rl_doctor.report.model import Reconciled
from rl_doctor.report.wording import count, number, place, printable, recomputed, steps


@pytest.mark.parametrize(
    ("value", "unit", "written"),
    [
        (0.036123, "nat", "0.03612 nat"),
        (3.0, "1", "3"),
        (1234567.0, "tokens", "1,234,567 tokens"),
        (1234.5, "1", "1,234"),
        (1e-9, "", "1e-09"),
        (-0.5, "reward", "-0.5 reward"),
        (123456.7, "1", "1.235e+05"),
        (1e300, "1", "1e+300"),
        (math.nan, "nat", "NaN nat"),
        (math.inf, "1", "inf"),
        (-math.inf, "1", "-inf"),
        (0.0, "1", "0"),
        (1.0, "rows", "1 row"),
        (1.0, "s", "1 s"),
        (0.5, "steps", "0.5 steps"),
    ],
)
def test_number(value: float, unit: str, written: str) -> None:
    assert number(value, unit) == written


def test_steps() -> None:
    assert steps(3, 9) == "steps 3-9"
    assert steps(3, 3) == "step 3"
    assert steps(-30, -1) == "steps -30 to -1"
    assert steps(3, None) == "step 3"
    assert steps(None, None) == "no steps"


def test_count_and_place() -> None:
    assert (count(1, "error"), count(0, "error"), count(2000, "token")) == ("1 error", "0 errors", "2,000 tokens")
    assert place({"rank": 1, "share": 0.25}) == "rank 1, share 0.25"


def test_printable_keeps_text_and_escapes_what_steers_a_terminal() -> None:
    assert printable("größe 训推 \n ok") == "größe 训推 \n ok"
    assert printable("\x1b[0m\r\x9b\u202e") == "\\x1b[0m\\x0d\\x9b\\x202e"


@pytest.mark.parametrize(
    ("differing", "told"),
    [
        ([0], "1 number of the trainer's log: equal at every step"),
        ([0, 0, 0], "3 numbers of the trainer's log: equal at every step"),
        ([4], "1 number of the trainer's log: not equal k0 (at 4 of 9 steps)"),
        ([0, 9], "2 numbers of the trainer's log: 1 equal at every step, not equal k1 (at 9 of 9 steps)"),
        (
            [1, 0, 1, 1, 1, 1],
            (
                "6 numbers of the trainer's log: 1 equal at every step, not equal k0 (at 1 of 9 steps), k2 (at 1 of 9 steps), "
                "k3 (at 1 of 9 steps) and 2 more"
            ),
        ),
    ],
)
def test_what_was_recomputed(differing: list[int], told: str) -> None:
    assert recomputed([Reconciled(f"k{at}", None, 1, 9, 9, wrong) for at, wrong in enumerate(differing)]) == told
