import numpy as np
import pytest

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Result
from rl_doctor.rules.registry import rules
from rl_doctor.rules.runner import run_rules
from rl_doctor.rules.view import View
from rl_doctor.schema import RunConfig, RunInfo
from tests.diseases.verdict import verdict
from tests.rules.scalars import Floats
from tests.simulation.healthy import KINDS
from tests.simulation.inject import with_values


def _judge(column: str, share: Floats, config: RunConfig | None = None) -> Result:
    name = f"data.{column}_unfilled_frac"
    made = {name: Series(name, "1", np.arange(1, share.size + 1), share, np.full(share.size, 32))}
    return run_rules([rules()["RLD116"]], View(RunInfo(config=config or RunConfig()), made))[0]


@pytest.mark.parametrize("column", ["old_logprob", "logprob", "ref_logprob"])
def test_a_column_of_zeros_is_named(column: str) -> None:
    (found,) = _judge(column, np.ones(20)).findings
    assert found.cause == f"{column} was never filled: it is exactly 0 at steps 1 to 20."
    assert found.suspect == "logprob-never-filled"


def test_it_begins_where_the_zeros_do_and_says_in_how_many_rows() -> None:
    (found,) = _judge("old_logprob", np.r_[np.zeros(10), np.full(10, 0.25)]).findings
    assert (found.first_step, found.last_step) == (11, 20)
    assert "25% of the rows" in found.cause


def test_single_rows_and_a_reference_that_nothing_reads_are_no_alarm() -> None:
    assert _judge("logprob", np.r_[np.zeros(19), 2 / 32]).outcome == "passed"
    (found,) = _judge("ref_logprob", np.ones(20), RunConfig(kl_coef=0.0)).findings
    assert found.severity == "info"


def test_rows_of_which_every_policy_is_certain_are_filled() -> None:
    run = KINDS["on_policy"](0)
    certain = np.isin(np.arange(len(run.splits) - 1), np.arange(0, len(run.splits) - 1, 3))
    tokens = np.repeat(certain, np.diff(run.splits))
    names = ("logprob", "old_logprob", "ref_logprob", "rollout_logprob")
    made = with_values(run, **{name: np.where(tokens, 0.0, run.arrays[name]) for name in names if name in run.arrays})
    assert "unfilled-logprob" not in verdict(made).found
    zeros = with_values(run, old_logprob=np.where(tokens, 0.0, run.arrays["old_logprob"]))
    assert verdict(zeros).causes[0] == "logprob-never-filled"
