"""What the formulas are given: taken as float64, or refused with one line that names the argument."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_doctor.analyzer import formulas_page
from rl_doctor.analyzer.arguments import checked, parameters, shapes
from rl_doctor.analyzer.formulas import (
    advantage,
    aggregation,
    entropy,
    kl,
    policy_loss,
    preference,
    rejection,
    returns,
    reward,
    segments,
    sequence_loss,
    validation,
    whitening,
)

ROOT = Path(__file__).parents[3]
X = np.array([0.5, -0.2, 0.0])
SPLITS = np.array([0, 2, 3])
REWARDS = np.array([1.0, 0.0, 1.0, 1.0])
LABELS = np.array(["a", "a", "b", "b"])
EVERY = [function for module in formulas_page.modules() for function in formulas_page.functions(module).values()]


@pytest.mark.parametrize("function", EVERY, ids=lambda function: function.__name__)
def test_every_formula_is_checked_and_states_the_shapes_of_its_arrays(function: Callable[..., Any]) -> None:
    inner = inspect.unwrap(function)
    assert inner is not function
    arrays = [one for one in parameters(inner) if not one.words]
    stated = shapes(inspect.getdoc(function) or "")
    assert all(one.name in stated or function.__name__ in {"kept", "less_penalty"} for one in arrays)


@pytest.mark.parametrize("given", [X.astype(np.float32), list(X), tuple(X)])
def test_numbers_become_float64(given: Any) -> None:
    for function in (kl.k1, kl.k3, kl.absolute, whitening.whiten):
        found = function(given)
        assert found.dtype == np.float64
        assert np.array_equal(found, function(np.asarray(given, np.float64)))
    assert returns.discounted_sums([1, 2], [0, 2], 1.0).tolist() == [3.0, 2.0]  # type: ignore[arg-type]
    assert advantage.grpo(REWARDS > 0, LABELS).dtype == np.float64  # type: ignore[arg-type]


def test_float64_is_taken_as_it_is() -> None:
    @checked
    def same(values: segments.Floats) -> segments.Floats:
        """The same.

        Args:
            values: float64 ``[n]``.
        """
        return values

    assert same(X) is X
    assert same(values=X) is X


@pytest.mark.parametrize(
    "splits",
    [[2, 1], [1, 2, 3], [0, 2], [0, 2, 9], [0, 3, 2, 3], [0, -1, 3], [], [0.0, 1.5, 3.0], [[0, 3]], 3, ["a"]],
)
def test_splits_that_are_no_offsets_are_refused(splits: Any) -> None:
    for call in (
        lambda: segments.segment_sums(X, splits),
        lambda: segments.segment_extremes(X, splits),
        lambda: returns.gae_advantage(X, X, splits, 1.0, 0.95),
        lambda: sequence_loss.sequence_log_ratio(X, splits),
    ):
        with pytest.raises(ValueError, match=r"^splits: expected ") as told:
            call()
        assert "\n" not in str(told.value)


def test_empty_input_is_no_mistake() -> None:
    nothing = np.zeros(0)
    assert segments.segment_sums(nothing, np.array([0, 0])).tolist() == [0.0]
    assert segments.segment_sums(nothing, np.array([0])).tolist() == []
    assert np.isnan(validation.mean_at_n(nothing))
    assert np.isnan(validation.std_at_n(nothing))
    assert entropy.high_entropy(nothing, 0.5).tolist() == []


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: kl.k1(0.5), "x"),  # type: ignore[arg-type]
        (lambda: kl.k3(np.ones((2, 2))), "x"),
        (lambda: kl.k2(["a"]), "x"),  # type: ignore[arg-type]
        (lambda: kl.penalty(X, "k9"), "kind"),
        (lambda: advantage.grpo(REWARDS, LABELS[:3]), "labels"),
        (lambda: advantage.grpo(REWARDS, LABELS, singles="bogus"), "singles"),  # type: ignore[arg-type]
        (lambda: advantage.grpo(REWARDS, LABELS, ddof=2), "ddof"),
        (lambda: rejection.engine_gate(-X, -X, "zz"), "kind"),  # type: ignore[arg-type]
        (lambda: rejection.statistic(X, SPLITS, "zz", "k1"), "over"),  # type: ignore[arg-type]
        (lambda: returns.gae_advantage(X, X[:2], SPLITS, 1.0, 1.0), "values"),
        (lambda: returns.gae_through(X, X, np.array([1, 0, 1]), SPLITS, 1.0, 1.0), "mask"),  # type: ignore[arg-type]
        (lambda: policy_loss.surrogate_loss(X, X[:2], 0.2, 0.2), "advantage"),
        (lambda: aggregation.aggregated(X, X[:1]), "factors"),
        (lambda: aggregation.sequence_mean_token_sum_norm(np.array([2, 3]), 0), "horizon"),
        (lambda: aggregation.token_mean(np.array([0.5])), "counts"),  # type: ignore[arg-type]
        (lambda: validation.pass_at_k(np.array([4]), np.array([6]), 2), "correct"),
        (lambda: validation.pass_at_k(np.array([4]), np.array([2]), 5), "responses"),
        (lambda: validation.pass_at_k(np.array([4]), np.array([2]), 0), "k"),
        (lambda: validation.best_of_k(REWARDS, 0), "k"),
        (lambda: entropy.entropy(np.zeros((2, 4)), 0.0), "temperature"),
        (lambda: entropy.entropy(np.zeros(4)), "logits"),
        (lambda: entropy.high_entropy(X, 2.0), "quantile"),
        (lambda: preference.ipo_loss(X, 0.0), "beta"),
        (lambda: preference.robust_dpo_loss(X, 0.1, 0.5), "smoothing"),
        (lambda: reward.adaptive_coef(0.1, 0.1, 0.0, 1, 1), "target"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused(call: Callable[[], Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: expected .*, found ") as told:
        call()
    assert "\n" not in str(told.value)
    assert len(str(told.value)) < 200


def test_one_number_stands_for_many_beside_an_array() -> None:
    loss = policy_loss.surrogate_loss(X, 1.0, 0.2, 0.2)  # type: ignore[arg-type]
    assert np.array_equal(loss, policy_loss.surrogate_loss(X, np.ones(3), 0.2, 0.2))


WITHOUT_DOCSTRINGS = """
import numpy as np
from rl_doctor.analyzer.formulas import aggregation, kl, whitening
from rl_doctor.analyzer import reconcile
from rl_doctor.analyzer.arguments import parameters
from rl_doctor.analyzer.engine import analyze
from tests.simulation.healthy import KINDS
from tests.simulation.logs import relogged

print(bool(kl.k3.__doc__), {one.shape for one in parameters(kl.k3.__wrapped__)} == {("any",)})
print(kl.k3([0.5, -0.2]).tolist(), whitening.whiten([1, 2, 4]).tolist())
for given in (lambda: kl.k3("a"), lambda: whitening.whiten([1.0, 2.0], ddof=3)):
    try:
        given()
    except ValueError as error:
        print(error)
run = relogged(KINDS["two_epochs"](0))
plan = reconcile.plan(run.info, run.columns, run.log)
found = reconcile.compare(plan, analyze(run, [], plan.metrics).series)
print([(item.name, item.recomputed.tolist()) for item in found])
"""


def test_without_docstrings_shapes_are_not_looked_at_and_all_else_is_the_same() -> None:
    outputs = []
    for flags in ((), ("-OO",)):
        done = subprocess.run(
            [sys.executable, *flags, "-c", WITHOUT_DOCSTRINGS], capture_output=True, text=True, timeout=120, check=False, cwd=ROOT
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout.splitlines())
    plain, bare = outputs
    assert (plain[0], bare[0]) == ("True False", "False True")
    assert plain[1:] == bare[1:]
    assert "x: expected numbers, found a" in bare
    assert any(line.startswith("ddof: expected one of") for line in bare)
    assert "actor/ppo_kl" in bare[-1]
