"""logged-metric-mismatch: what it says of comparisons, and when it is silent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_doctor import Recorder, check, open_run
from rl_doctor.analyzer.comparison import Comparison, Explanation, Untried
from rl_doctor.report.model import Reconciled, Result
from rl_doctor.rules.registry import rules
from rl_doctor.rules.runner import run_rules
from rl_doctor.rules.view import View
from rl_doctor.schema import RunInfo

TRUE = np.random.default_rng(0).uniform(0.1, 0.4, 20)


def judge(*comparisons: Comparison, reason: str = "") -> Result:
    view = View(RunInfo(), {}, comparisons=comparisons, uncompared=reason)
    (result,) = run_rules([rules()["RLD801"]], view)
    return result


def comparison(logged: Any, recomputed: Any = TRUE, tolerance: float = 1e-7, name: str = "kl") -> Comparison:
    logged, recomputed = np.asarray(logged, float), np.asarray(recomputed, float)
    steps = np.arange(1, len(logged) + 1)
    return Comparison(name, "ref.kl_k3", "nat", steps, logged, recomputed, np.full(len(logged), tolerance))


def test_equal_numbers_pass() -> None:
    assert judge(comparison(TRUE), comparison(TRUE + 5e-8)).outcome == "passed"


def test_a_constant_factor_is_named() -> None:
    (finding,) = judge(comparison(TRUE), comparison(2 * TRUE, name="actor/kl")).findings
    assert finding.severity == "error"
    assert "actor/kl differs from its recomputation in 20 of 20 steps" in finding.message
    assert "logged / recomputed is 2 throughout" in finding.message
    (evidence,) = finding.evidence
    assert (evidence.first_step, evidence.last_step, evidence.n) == (1, 20, 20)
    assert evidence.value == pytest.approx(2 * evidence.baseline if evidence.baseline else None)
    assert evidence.where == {"logged_name": "actor/kl"}


def test_a_wrong_sign_is_a_constant_factor() -> None:
    (finding,) = judge(comparison(-TRUE)).findings
    assert "logged / recomputed is -1 throughout" in finding.message


def test_a_factor_that_varies_is_not_called_constant() -> None:
    (finding,) = judge(comparison(TRUE[::-1])).findings
    assert "throughout" not in finding.message


def test_each_wrong_key_is_reported() -> None:
    findings = judge(comparison(2 * TRUE), comparison(TRUE + 1, name="entropy")).findings
    assert [finding.message.split()[0] for finding in findings] == ["kl", "entropy"]
    assert len({finding.fingerprint for finding in findings}) == 2


@pytest.mark.parametrize(
    ("logged", "tolerance"),
    [
        (np.round(TRUE, 4), 0.5e-4),
        (TRUE * (1 + 5e-4), 1e-9),
    ],
    ids=["rounding in the log", "too small to matter"],
)
def test_silence(logged: Any, tolerance: float) -> None:
    assert judge(comparison(logged, tolerance=tolerance)).outcome == "passed"


def test_some_steps_are_a_warning_and_half_of_them_an_error() -> None:
    for wrong, severity in ((3, "warning"), (9, "warning"), (10, "error")):
        (finding,) = judge(comparison(np.where(np.arange(20) < wrong, 2 * TRUE, TRUE))).findings
        assert finding.severity == severity


def test_a_short_run_is_judged_by_all_its_steps() -> None:
    assert judge(comparison(2 * TRUE[:2], TRUE[:2])).findings[0].severity == "error"
    assert judge(comparison([2 * TRUE[0], TRUE[1]], TRUE[:2])).findings[0].severity == "info"


def test_odd_steps_are_told_in_one_line_for_all_keys() -> None:
    odd = np.where(np.arange(20) < 2, 2 * TRUE, TRUE)
    items = [comparison(odd, name=name) for name in ("kl", "entropy", "loss", "reward")]
    result = judge(*items, comparison(TRUE, name="right"), comparison(3 * TRUE, name="wrong"))
    wrong, few = result.findings
    assert (wrong.severity, few.severity) == ("error", "info")
    assert few.message.startswith("equal to their recomputation but for a few steps: kl at 2 of 20, entropy at 2 of 20")
    assert [item.where for item in few.evidence] == [{"logged_name": item.name} for item in items]
    assert result.detail == "6 of 6 compared"


@pytest.mark.parametrize(
    ("values", "words"),
    [((np.nan, np.nan), "NaN"), ((np.inf, -np.inf), "an infinity"), ((np.nan, np.inf), "NaN or an infinity")],
)
def test_what_is_no_number_where_the_recomputation_is_one_is_a_warning(values: Any, words: str) -> None:
    item = replace(comparison(TRUE), unreal_steps=np.array([21, 22]), unreal=np.array(values))
    (finding,) = judge(item).findings
    assert finding.severity == "warning"
    assert finding.message == f"kl: logged {words} at 2 of 22 steps where the recomputation is finite"
    alone = replace(comparison(TRUE[:0], TRUE[:0]), unreal_steps=np.array([21, 22]), unreal=np.array(values))
    assert judge(alone).findings[0].message == f"kl: logged {words} at 2 of 2 steps where the recomputation is finite"


def test_the_largest_numbers_that_there_are_give_no_warning_of_numpy() -> None:
    assert judge(comparison(np.full(20, 1e308), -TRUE * 1e308)).findings[0].severity == "error"
    assert judge(comparison(np.full(20, 1e308))).findings[0].severity == "error"


def test_the_limit_of_the_evidence_is_what_the_difference_was_held_against() -> None:
    (finding,) = judge(comparison(2 * TRUE, tolerance=1e-9)).findings
    assert finding.evidence[0].limit == pytest.approx(1e-3 * finding.evidence[0].value)
    (finding,) = judge(comparison(2 * TRUE, tolerance=0.05)).findings
    assert finding.evidence[0].limit == pytest.approx(0.05)


def test_the_advice_names_the_page_of_the_trainer() -> None:
    view = View(RunInfo(trainer="nemo-rl"), {}, comparisons=(comparison(2 * TRUE),), recomputable=5, uncompared="kl2 is in doubt")
    (result,) = run_rules([rules()["RLD801"]], view)
    assert "docs/dialects/nemo-rl.md" in result.findings[0].advice[0]
    assert result.detail == "1 of 5 compared; kl2 is in doubt"
    right = replace(view, comparisons=(comparison(TRUE),))
    (result,) = run_rules([rules()["RLD801"]], right)
    assert (result.outcome, result.detail) == ("passed", "1 of 5 compared; kl2 is in doubt")


def test_nothing_to_compare_is_skipped_with_the_reason() -> None:
    result = judge(reason="the run has no logged metrics")
    assert (result.outcome, result.reason) == ("skipped", "data")
    assert result.detail == "the run has no logged metrics"


def explanation(name: str, values: Any, tolerance: float = 1e-7) -> Explanation:
    return Explanation(name, f"is {name}", np.asarray(values, float), np.full(len(values), tolerance))


def test_what_reproduces_the_log_is_the_cause_and_what_does_not_is_ruled_out() -> None:
    other = TRUE**2
    known = (
        explanation("nearly squared", np.where(np.arange(20) < 1, 2 * other, other)), explanation("squared", other),
        explanation("times itself", other), explanation("squared too", other + 5e-8), explanation("cubed", TRUE**3),
    )  # fmt: skip
    untried = (
        Untried("padded (or not)", ("padded_width",)),
        Untried("sampled", ("token", "seed")),
        Untried("wide", ("padded_width",)),
    )
    (finding,) = judge(replace(comparison(other), explanations=known, untried=untried)).findings
    assert finding.cause.startswith("The logged number is squared. ")
    assert "; squared gives" in finding.message
    assert "equals the log in 20 of the 20 steps looked at" in finding.message
    assert "In this run the same numbers result if it is times itself. It fits as well, within the precision" in finding.cause
    assert finding.ruled_out == ("kl: cubed",)
    assert finding.unchecked == ("padded (or not), wide (needs padded_width)", "sampled (needs token, seed)")


def test_of_many_that_do_not_fit_the_first_are_listed() -> None:
    known = tuple(explanation(f"power {number}", TRUE**number) for number in range(3, 30))
    (finding,) = judge(replace(comparison(TRUE**2), explanations=known)).findings
    names = ", ".join(f"power {number}" for number in range(3, 15))
    assert finding.ruled_out == (f"kl: {names} and 15 more",)
    assert "matches none of the 27 ways that were tried" in finding.message


@pytest.mark.parametrize(("wrong", "named"), [(1, True), (2, False)])
def test_an_explanation_may_miss_few_steps(wrong: int, named: bool) -> None:
    other = TRUE**2
    values = np.where(np.arange(20) < wrong, 2 * other, other)
    (finding,) = judge(replace(comparison(other), explanations=(explanation("squared", values),))).findings
    assert ("is squared" in finding.cause) == named


def test_an_explanation_that_is_unknown_at_most_steps_explains_nothing() -> None:
    other = TRUE**2
    values = np.where(np.arange(20) < 15, np.nan, other)
    (finding,) = judge(replace(comparison(other), explanations=(explanation("squared", values),))).findings
    assert finding.cause == "The logged number matches none of the ways to compute it that were tried."
    assert "; it does not match the one way that was tried" in finding.message


def test_a_constant_factor_that_no_number_of_the_run_explains_is_told_as_such() -> None:
    (finding,) = judge(replace(comparison(3 * TRUE), explanations=(explanation("doubled", 2 * TRUE),))).findings
    assert finding.cause == (
        "The logged number matches none of the ways to compute it that were tried; "
        "it is a constant times its definition, which no known number explains."
    )


def test_what_tokens_cannot_reproduce_is_only_called_consistent() -> None:
    rough = replace(explanation("about squared", TRUE**2, 1.0), approximate=True)
    (finding,) = judge(replace(comparison(TRUE**2 + 0.01), explanations=(rough, explanation("cubed", TRUE**3)))).findings
    assert finding.cause.startswith("The logged number matches none of the ways to compute it that were tried.")
    assert "It is consistent with this, which tokens cannot reproduce: it is about squared." in finding.cause
    exact = explanation("squared", TRUE**2 + 0.01)
    (finding,) = judge(replace(comparison(TRUE**2 + 0.01), explanations=(rough, exact))).findings
    assert finding.cause.startswith("The logged number is squared")
    assert "about" not in finding.cause


def test_the_report_lists_what_was_recomputed_even_where_nothing_is_found(tmp_path: Path) -> None:
    entropy = np.random.default_rng(1).uniform(0.5, 1.5, (10, 4, 3))
    with Recorder(tmp_path / "run", info={"trainer": "custom"}) as recorder:
        for step, values in enumerate(entropy, 1):
            recorder.log_batch(step=step, response_mask=np.ones((4, 3), bool), entropy=values, reward=np.arange(4.0))
            recorder.log_metrics(step, {"policy.entropy": values.mean() + (step == 7), "policy.kl_old_k1": 0.0})
    report = check(open_run(tmp_path / "run"))
    assert report.run.reconciled == (Reconciled("policy.entropy", "policy.entropy", 1, 10, 10, 1),)
    assert [finding.severity for finding in report.findings if finding.code == "RLD801"] == ["info"]
    assert report.run.not_recomputed == (("policy.kl_old_k1", "needs logprob, old_logprob"),)
