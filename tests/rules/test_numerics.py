import numpy as np
import pytest

from rl_doctor.analyzer.series import Series
from rl_doctor.api import check
from rl_doctor.report.model import Result
from rl_doctor.rules.registry import rules
from rl_doctor.rules.runner import run_rules
from rl_doctor.rules.view import View
from rl_doctor.schema import RunInfo
from rl_doctor.store.facts import StoreFacts
from tests.rules.scalars import Floats
from tests.rules.verdicts import honest
from tests.simulation.inject import with_values

N = 30


def _judge(values: dict[str, Floats], missing: dict[str, tuple[str, ...]] | None = None) -> Result:
    made = {name: Series(name, "1", np.arange(N), np.asarray(part, float), np.full(N, 100)) for name, part in values.items()}
    result = run_rules([rules()["RLD601"]], View(RunInfo(), made, missing or {}))[0]
    assert result.outcome != "crashed", result
    return result


def _from(step: int, value: float) -> Floats:
    values = np.zeros(N)
    values[step:] = value
    return values


def _broken(step: int) -> Floats:
    values = np.ones(N)
    values[step:] = np.nan
    return values


def test_nothing_recorded_names_a_column() -> None:
    made = _judge({}, {"policy.entropy": ("entropy",)})
    assert (made.outcome, made.missing) == ("skipped", ("entropy",))


def test_finite_run_passes() -> None:
    assert _judge({"numerics.nonfinite.logprob": np.zeros(N), "optim.grad_norm": np.ones(N)}).outcome == "passed"


def test_nan_gradient_is_an_error_at_its_step() -> None:
    (found,) = _judge({"optim.grad_norm": _broken(12)}).findings
    assert found.severity == "error"
    assert found.evidence[0].first_step == 12
    assert found.unchecked


def test_first_number_in_order_of_steps_and_of_computation_is_named() -> None:
    values = {
        "optim.grad_norm": _broken(7), "numerics.nonfinite.logprob": _from(8, 5.0),
        "numerics.nonfinite.old_logprob": _from(7, 2.0), "policy.ratio_mean": _broken(7),
    }  # fmt: skip
    (found,) = _judge(values).findings
    assert found.severity == "error"
    assert found.message.startswith("old_logprob")
    assert found.evidence[0].metric == "numerics.nonfinite.old_logprob"


def test_nan_outside_the_mask_only_is_separate() -> None:
    values = {"numerics.nonfinite.old_logprob": np.zeros(N), "numerics.nonfinite_stored.old_logprob": _from(3, 4.0)}
    (found,) = _judge(values).findings
    assert found.severity == "warning"
    assert any("grad_norm" in words for words in found.unchecked)
    (found,) = _judge({**values, "optim.grad_norm": np.ones(N)}).findings
    assert found.severity == "info"
    assert found.ruled_out


def test_column_that_is_nan_everywhere_was_not_recorded() -> None:
    assert _judge({"numerics.nonfinite.teacher_logprob": np.full(N, 100.0), "optim.grad_norm": np.ones(N)}).outcome == "passed"


def test_column_that_the_update_need_not_read_is_a_warning() -> None:
    (found,) = _judge({"numerics.nonfinite.is_weight": _from(3, 4.0), "optim.grad_norm": np.ones(N)}).findings
    assert found.severity == "warning"


def test_gaps_in_rollout_logprobs_are_left_to_their_own_rule() -> None:
    values = {"numerics.nonfinite.rollout_logprob": _from(0, 30.0), "numerics.nonfinite_stored.rollout_logprob": _from(0, 30.0)}
    assert _judge({**values, "optim.grad_norm": np.ones(N)}).outcome == "passed"
    (found,) = _judge({**values, "numerics.nonfinite.logprob": _from(7, 5.0)}).findings
    assert found.message.startswith("logprob is not finite from step 7 on")


def test_column_of_the_loss_that_holds_nothing_is_a_warning() -> None:
    values = {"numerics.nonfinite.logprob": np.full(N, 100.0), "numerics.nonfinite.ref_logprob": np.full(N, 100.0)}
    (found,) = _judge(values).findings
    assert found.severity == "warning"
    assert found.message == "logprob is not finite at any of the 3000 trained tokens"
    assert found.unchecked
    (found,) = _judge({**values, "optim.grad_norm": np.ones(N)}).findings
    assert found.severity == "warning"
    assert found.ruled_out


def test_column_without_any_value_is_a_warning() -> None:
    facts = StoreFacts(1, 60, 240, 9000, empty_columns=("logprob", "teacher_logprob"))
    norm = Series("optim.grad_norm", "1", np.arange(N), np.ones(N), np.ones(N, np.int64))
    (found,) = run_rules([rules()["RLD601"]], View(RunInfo(), {"optim.grad_norm": norm}, facts=facts))[0].findings
    assert found.severity == "warning"
    assert found.message == "logprob is in the file but holds no value in any of the 240 rows"


def test_column_of_every_loss_that_a_recording_holds_as_nan_is_an_error_and_told_once() -> None:
    column = Series("numerics.nonfinite.logprob", "tokens", np.arange(N), np.full(N, 100.0), np.full(N, 100))
    facts, info = StoreFacts(1, 60, 240, 9000, empty_columns=("logprob",)), RunInfo(sessions=({"session": 1},))
    (found,) = run_rules([rules()["RLD601"]], View(info, {column.metric: column}, facts=facts))[0].findings
    assert found.severity == "error"
    assert not any("pandas" in words for words in found.unchecked)


def test_an_infinite_reward_is_an_error_even_where_every_reward_is() -> None:
    for share in (np.full(N, 1.0), np.where(np.arange(N) < 20, 0.0, 0.1)):
        values = {"numerics.infinite_reward_frac": share, "reward.mean": np.where(share > 0, np.inf, 0.5)}
        (found,) = _judge(values).findings
        assert found.severity == "error"
        assert found.message.startswith("reward is infinite in ")


def test_sequences_without_a_reward_beside_others_that_have_one_are_a_warning() -> None:
    shares = np.zeros(N)
    shares[20] = 0.08
    (found,) = _judge({"numerics.missing_reward_frac": shares, "optim.grad_norm": np.ones(N)}).findings
    assert found.severity == "warning"
    assert "8 of 3000 sequences, from step 20 on" in found.message
    assert found.unchecked


def test_a_run_without_any_reward_is_not_broken_by_that() -> None:
    assert _judge({"numerics.missing_reward_frac": np.ones(N), "optim.grad_norm": np.ones(N)}).outcome == "passed"


def test_what_is_computed_from_a_column_without_numbers_is_not_the_training() -> None:
    column = Series("numerics.nonfinite.advantage", "tokens", np.arange(N), np.full(N, 100.0), np.full(N, 100))
    loss = Series("policy.loss_total", "1", np.arange(N), np.full(N, np.nan), np.full(N, 100))
    norm = Series("optim.grad_norm", "1", np.arange(N), np.ones(N), np.ones(N, int))
    made = {item.metric: item for item in (column, loss, norm)}
    (found,) = run_rules([rules()["RLD601"]], View(RunInfo(), made, {}))[0].findings
    assert found.message == "advantage is not finite at any of the 3000 trained tokens"
    assert found.cause.startswith("The recording is broken here and not the training, whose gradient norm is finite")


def test_advantages_are_said_to_be_nan_only_where_they_are() -> None:
    reward = {"numerics.infinite_reward_frac": _from(N - 1, 0.5)}
    (found,) = _judge({**reward, "numerics.nonfinite.advantage": np.zeros(N)}).findings
    assert "the recorded advantages are finite" in found.cause
    (found, *_) = _judge({**reward, "numerics.nonfinite.advantage": _from(N - 1, 8.0)}).findings
    assert "its advantages are NaN" in found.cause


@pytest.mark.parametrize("trained", [True, False])
def test_a_log_ratio_near_the_overflow_is_told_with_where_it_is(trained: bool) -> None:
    run = honest(tools=True)
    values = run.arrays["old_logprob"].copy()
    at = np.flatnonzero(run.arrays["response_mask"] == trained)[5:7]
    values[at] = run.arrays["logprob"][at] - 80.0
    (result,) = check(with_values(run, old_logprob=values), [rules()["RLD612"]]).results
    (found,) = result.findings
    assert found.suspect == ("trained-ratios-overflow" if trained else "padding-overflows")
    assert ("trained tokens" in found.cause) is trained
