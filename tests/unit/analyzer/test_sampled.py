"""A run whose tokens were sampled or thinned: rows exact, tokens estimated or absent, and nobody alarmed by it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rl_doctor.analyzer.engine import analyze
from rl_doctor.analyzer.registry import metrics, metrics_for
from rl_doctor.api import check
from rl_doctor.report import json_document, text
from rl_doctor.report.model import SEVERITY_ORDER, Report
from rl_doctor.store.thinning import Plan, choose
from tests.diseases.catalogue import diseases
from tests.diseases.verdict import company, verdict
from tests.simulation.healthy import KINDS
from tests.simulation.run import SimulatedRun
from tests.simulation.sampled import sampled, thinned

SHARE = 0.25
ESTIMATED = (
    "policy.entropy",
    "policy.kl_old_k1",
    "policy.kl_old_k3",
    "policy.ratio_mean",
    "ref.kl_k1",
    "ref.kl_k3",
    "mismatch.abs",
)
UNDAMAGED = "lengths-contradict"
"""The disease whose damage, a wrong stored_length, lies in the rows' storage, which writing them anew repairs."""


def report_of(run: SimulatedRun) -> Report:
    source: Any = run
    return check(source)


@pytest.fixture(scope="module")
def whole() -> SimulatedRun:
    return KINDS["two_epochs"](1)


@pytest.mark.parametrize("kind", ["on_policy", "two_epochs", "agentic"])
def test_what_reads_no_tokens_is_exact_and_what_does_is_estimated(kind: str) -> None:
    run = KINDS[kind](2)
    full, part = analyze(run), analyze(sampled(run, SHARE))
    known = metrics_for(run.columns)
    exact = [name for name, item in known.items() if name in full.series and not item.reduction.reads_tokens]
    assert len(exact) > 20
    for name in exact:
        np.testing.assert_array_equal(part.series[name].values, full.series[name].values, name)
        np.testing.assert_array_equal(part.series[name].counts, full.series[name].counts, name)
    families = tuple(name for name, item in known.items() if item.keyed and item.reduction.reads_tokens)
    assert part.estimated == {
        name for name in part.series if name.startswith(families) or (name in known and known[name].reduction.reads_tokens)
    }
    assert len(part.sampled_steps) == len(np.unique(run.arrays["step"]))
    assert not full.estimated
    compared = 0
    for name in (name for name in ESTIMATED if name in full.series and len(full.series[name].measured()) > 10):
        difference = part.series[name].values - full.series[name].values
        error = difference.std(ddof=1) / np.sqrt(len(difference))
        assert abs(difference.mean()) <= 4 * error, name
        ratio = part.series[name].counts.sum() / full.series[name].counts.sum()
        assert ratio == pytest.approx(SHARE, rel=0.15)
        compared += 1
    assert compared >= 3


def test_counts_are_those_of_the_tokens_kept(whole: SimulatedRun) -> None:
    run = sampled(whole, SHARE)
    kept = np.bincount(run.token_step, run.arrays["response_mask"])
    series = analyze(run, ["policy.entropy"]).series["policy.entropy"]
    np.testing.assert_array_equal(series.counts, kept[series.steps])


def test_a_batch_is_reduced_the_same_however_a_sampled_step_is_split(whole: SimulatedRun) -> None:
    run = sampled(whole, SHARE)
    together, split = analyze(run), analyze(replace(run, parts=7))
    for name, series in together.series.items():
        np.testing.assert_array_equal(split.series[name].values, series.values, name)


def test_evidence_from_a_sample_is_marked_and_the_report_says_so() -> None:
    report = report_of(sampled(diseases()["entropy-collapse"].make(0), 0.5))
    document = json_document.document(report)
    evidence = [item for result in document["results"] for found in result["findings"] for item in found["evidence"]]
    marked = {item["metric"] for item in evidence if item.get("estimated")}
    assert "policy.entropy" in marked
    assert not [name for name, item in metrics().items() if name in marked and not item.reduction.reads_tokens]
    assert any(note.startswith("tokens of 50% of the groups were kept") for note in report.run.notes)
    printed = text.render([report], width=400)
    assert "estimated from a sample of the tokens" in printed
    assert "metrics of tokens are estimates" in printed
    assert f"{report.run.tokens:,} tokens of 50% of the groups · " in printed


def test_logged_metrics_of_tokens_are_not_compared_and_those_of_rows_are(whole: SimulatedRun) -> None:
    shifted = {name: whole.relog(name, lambda _, values: values + 0.5) for name in ("actor/entropy", "critic/rewards/mean")}
    assert set(verdict(shifted["actor/entropy"]).alarms()) == {"logged-metric-mismatch"}
    assert "logged-metric-mismatch" in verdict(sampled(shifted["critic/rewards/mean"], SHARE)).alarms()
    blind = verdict(sampled(shifted["actor/entropy"], SHARE))
    assert not blind.alarms()
    told = dict(report_of(sampled(shifted["actor/entropy"], SHARE)).run.not_recomputed)
    assert told["actor/entropy"] == "tokens of the steps were left out to save space"


def test_a_thinned_run_is_exact_at_the_steps_that_are_whole(whole: SimulatedRun) -> None:
    run = thinned(whole, lambda step: step % 3 == 0)
    full, part = analyze(whole), analyze(run)
    assert not part.estimated
    assert not len(part.sampled_steps)
    assert (part.bare_steps % 3 != 0).all()
    for name in ("policy.entropy", "policy.clip_frac"):
        left = part.series[name]
        assert (left.steps % 3 == 0).all()
        np.testing.assert_array_equal(left.values, full.series[name].values[np.isin(full.series[name].steps, left.steps)])
    report = report_of(run)
    steps = f"{len(part.bare_steps)} steps ({part.bare_steps[0]} to {part.bare_steps[-1]})"
    assert f"thinned: the tokens of {steps} were left out to save space" in report.run.notes
    assert "logged-metric-mismatch" not in verdict(run).skipped
    shifted = thinned(whole.relog("actor/entropy", lambda _, values: values + 0.5), lambda step: step % 3 == 0)
    assert set(verdict(shifted).alarms()) == {"logged-metric-mismatch"}


@pytest.mark.parametrize("kind", list(KINDS))
def test_silent_on_healthy_runs(kind: str) -> None:
    run = KINDS[kind](0)
    steps = np.unique(run.arrays["step"]).tolist()
    plan = choose([(step,) for step in steps], len(steps) // 3, (), Plan(steps[0] - 1, ()))
    for left in (sampled(run, SHARE), thinned(run, plan.keeps)):
        found = verdict(left)
        assert not found.crashed
        assert not found.alarms()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", sorted({disease.rule: name for name, disease in diseases().items() if name != UNDAMAGED}.values())
)
def test_half_of_the_groups_show_a_disease_of_every_rule(name: str) -> None:
    disease = diseases()[name]
    run = sampled(disease.make(0), 0.5)
    found = verdict(run)
    assert not found.crashed
    if "not all ranks or tokens were recorded" in found.skipped.get(disease.rule, ""):  # it has to count every token
        return
    if disease.rule == "observations-in-kl" and not found.found:
        assert "no KL to the reference was logged that could be compared" in found.skipped[disease.rule]
        return
    if disease.rule == "logged-metric-mismatch" and disease.rule not in found.found:
        told = dict(report_of(run).run.not_recomputed)  # a number of tokens cannot be told from a sample, and that is said
        assert told["actor/kl_loss"] == told["actor/ppo_kl"] == "tokens of the steps were left out to save space"
        return
    assert disease.rule in found.found, found.skipped.get(disease.rule, "passed")
    assert SEVERITY_ORDER[found.found[disease.rule][0]] >= SEVERITY_ORDER[disease.least]
    beside = company(disease, found)
    assert not beside or not beside.keys() - verdict(disease.make(0)).alarms().keys()
