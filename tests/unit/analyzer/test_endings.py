"""How responses end, whose are long, what ranks report, and how large exponents become: against plain Python."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from rl_doctor.analyzer.engine import analyze
from tests.simulation.healthy import KINDS
from tests.simulation.inject import with_values
from tests.simulation.run import SimulatedRun
from tests.simulation.settings import END


def _rows(run: SimulatedRun, name: str, step: int) -> list[list[float]]:
    """Tokens of each row of a step."""
    chosen = np.flatnonzero(run.arrays["step"] == step)
    return [run.arrays[name][run.splits[i] : run.splits[i + 1]].tolist() for i in chosen]


def _value(run: SimulatedRun, name: str, step: int) -> float:
    series = analyze(run, [name]).series[name]
    return float(series.values[series.steps.tolist().index(step)])


@pytest.fixture
def run() -> SimulatedRun:
    made = KINDS["on_policy"](1)
    random = np.random.default_rng(1)
    constant = random.random(len(made.splits) - 1) < 0.3
    return with_values(made, token_id=np.where(constant[made.rows], 7, made.arrays["token_id"]))


def test_share_of_rows_that_close(run: SimulatedRun) -> None:
    rows = [row for row in _rows(run, "token_id", 5) if row]
    assert _value(run, "ending.closed_frac", 5) == pytest.approx(sum(row[-1] == END for row in rows) / len(rows), abs=1e-12)
    assert _value(run, "ending.inside_frac", 5) == pytest.approx(sum(END in row[:-1] for row in rows) / len(rows), abs=1e-12)


def test_what_lies_beyond_the_length_does_not_close_a_row(run: SimulatedRun) -> None:
    shorter = with_values(run, response_length=run.arrays["response_length"] - 1)
    rows = [row[:-1] for row in _rows(run, "token_id", 5) if len(row) > 1]
    expected = sum(row[-1] == END for row in rows)
    assert _value(shorter, "ending.closed_frac", 5) * len(_rows(run, "token_id", 5)) <= expected + sum(
        len(row) == 1 for row in _rows(run, "token_id", 5)
    )


def test_share_of_rows_of_one_token(run: SimulatedRun) -> None:
    rows = [row for row in _rows(run, "token_id", 5) if len(row) >= 4]
    expected = sum(len(set(row)) == 1 for row in rows) / len(rows)
    assert expected > 0.1
    assert _value(run, "ending.constant_frac", 5) == pytest.approx(expected, abs=1e-12)
    assert _value(run, "ending.zero_frac", 5) == 0.0


def test_token_0_is_told_unless_it_is_the_padding(run: SimulatedRun) -> None:
    zeros = with_values(run, token_id=np.where(run.arrays["token_id"] == 7, 0, run.arrays["token_id"]))
    assert _value(zeros, "ending.zero_frac", 5) == 0.0
    unpadded = replace(zeros, info=replace(zeros.info, pad_token_id=None))
    assert _value(unpadded, "ending.zero_frac", 5) == _value(unpadded, "ending.constant_frac", 5) > 0.0


def test_lengths_by_training_and_their_correlation_with_the_reward(run: SimulatedRun) -> None:
    length, reward = run.arrays["response_length"].astype(float), run.arrays["reward"]
    here = run.arrays["step"] == 5
    left = np.arange(len(here)) % 3 == 0
    masked = with_values(run, response_mask=run.arrays["response_mask"] & ~left[run.rows])
    assert _value(masked, "length.trained_mean", 5) == pytest.approx(length[here & ~left].mean(), rel=1e-12)
    assert _value(masked, "length.untrained_mean", 5) == pytest.approx(length[here & left].mean(), rel=1e-12)
    expected = np.corrcoef(length[here], reward[here])[0, 1]
    assert _value(run, "length.reward_corr", 5) == pytest.approx(expected, rel=1e-9)


def test_ranks_that_report_other_norms(run: SimulatedRun) -> None:
    rank = np.arange(len(run.arrays["step"])) % 4
    ranked = with_values(run, rank=rank, grad_norm=run.arrays["grad_norm"] * (1.0 + 0.25 * rank))
    assert _value(ranked, "optim.grad_norm_rank_ratio", 5) == pytest.approx(1.75, rel=1e-12)
    one = with_values(run, rank=np.zeros(len(rank)))
    assert math.isnan(_value(one, "optim.grad_norm_rank_ratio", 5))


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_largest_exponent_outside_the_mask(run: SimulatedRun, bad: float) -> None:
    old = run.arrays["old_logprob"].copy()
    mask = run.arrays["response_mask"].copy()
    index = int(np.flatnonzero(run.token_step == 5)[3])
    old[index], mask[index] = -200.0, False
    old[index + 1] = bad
    broken = with_values(run, old_logprob=old, response_mask=mask)
    expected = float(run.arrays["logprob"][index]) + 200.0
    assert _value(broken, "numerics.log_ratio_max_stored", 5) == pytest.approx(expected, rel=1e-6)
