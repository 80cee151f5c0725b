"""How RLD801 tells of many explanations that fit, of none, and of a log that stays the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rl_doctor.analyzer.comparison import Comparison
from tests.rules.test_reconcile import TRUE, comparison, explanation, judge


def found(item: Comparison) -> Any:
    (finding,) = judge(item).findings
    return finding


def test_of_many_that_the_data_cannot_tell_apart_three_are_listed() -> None:
    names = ("squared", "times itself", "to the second", "by itself", "a square")
    finding = found(replace(comparison(TRUE**2), explanations=tuple(explanation(name, TRUE**2) for name in names)))
    assert finding.cause == (
        "The logged number is squared. In this run the same numbers result if it is times itself; or is to the second, and 2 "
        "more that this run cannot tell apart; unequal numbers of micro-batches, mini-batches, epochs and ranks, and of tokens "
        "in them, would tell them."
    )


def test_where_none_fits_the_closest_is_told() -> None:
    known = (explanation("squared", TRUE**2), explanation("cubed", TRUE**3))
    finding = found(replace(comparison(1.003 * TRUE**2), explanations=known))
    assert "; it matches none of the 2 ways that were tried; the closest is that it is squared, off by 0.3%" in finding.message
    assert finding.cause == "The logged number matches none of the ways to compute it that were tried."


def test_a_number_that_stays_the_same_is_not_called_a_multiple() -> None:
    true = 1.0 + 0.005 * np.sin(np.arange(20))
    finding = found(replace(comparison(np.full(20, 1.02), true), explanations=(explanation("cubed", TRUE**3),)))
    assert "; 1.02 is logged at every step" in finding.message
    assert "throughout" not in finding.message
    assert finding.cause.endswith("; it is the same at every step, whatever was trained on.")
