"""Rules on stored values: impossible ones, repeated ones, missing ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rl_doctor.report.model import Result
from rl_doctor.rules.registry import rules
from rl_doctor.rules.runner import run_rules
from rl_doctor.rules.view import View
from rl_doctor.schema import MISSING_INT, RunInfo
from rl_doctor.store.facts import StoreFacts
from tests.rules.verdicts import findings, honest, results, without
from tests.simulation.inject import with_values
from tests.simulation.policy import as_bfloat16
from tests.simulation.run import SimulatedRun


def with_logprob(run: SimulatedRun, name: str, values: Any) -> SimulatedRun:
    return with_values(run, **{name: values})


def test_a_positive_logprob() -> None:
    run = honest()
    values = run.arrays["old_logprob"].copy()
    values[::50] = 0.06
    found = findings(with_logprob(run, "old_logprob", values))
    assert set(found) == {"impossible-logprob"}
    finding = found["impossible-logprob"]
    assert finding.severity == "error"
    assert finding.evidence[0].metric == "data.old_logprob_max"
    assert finding.evidence[0].value == pytest.approx(0.06)


def test_rounding_to_bfloat16_is_named() -> None:
    run = honest(sharpness=6.0)
    rough = as_bfloat16(run.arrays["logprob"] + np.random.default_rng(0).normal(0, 0.02, run.splits[-1]))
    finding = findings(with_values(run, logprob=rough, old_logprob=rough))["impossible-logprob"]
    assert "bfloat16" in finding.cause


def test_a_wrong_sign_is_named() -> None:
    run = honest()
    found = findings(with_values(run, logprob=-run.arrays["logprob"]))
    assert set(found) == {"impossible-logprob", "tokens-contradict-entropy"}  # what tokens cost is of the wrong sign too
    assert "negative log-likelihoods" in found["impossible-logprob"].cause


def test_placeholders_of_the_engine_are_named() -> None:
    run = honest()
    values = run.arrays["rollout_logprob"].copy()
    values[::30] = 1.0
    assert "placeholder" in findings(with_values(run, rollout_logprob=values))["impossible-logprob"].cause


def test_placeholders_at_untrained_tokens_and_rounding_do_no_harm() -> None:
    run = honest(tools=True)
    values = np.where(run.arrays["response_mask"], run.arrays["rollout_logprob"], 1.0)
    assert not findings(with_values(run, rollout_logprob=values))
    tiny = run.arrays["logprob"].copy()
    tiny[5] = 2e-7
    assert not findings(with_values(run, logprob=tiny))


@pytest.mark.parametrize("share", [0.1, 0.9])
@pytest.mark.parametrize("name", ["logprob", "rollout_logprob"])
def test_noise_of_log_softmax_above_0_is_told_as_noise(name: str, share: float) -> None:
    run = honest()
    values = run.arrays[name].copy()
    values[np.random.default_rng(0).random(len(values)) < share] = 1.17e-5
    found = findings(with_values(run, **{name: values}))["impossible-logprob"]
    assert (found.severity, found.suspect) == ("info", "logprob-noise-above-zero")
    assert "placeholder" not in (found.cause or "")


def test_impossible_lengths() -> None:
    run = honest()
    negative = run.arrays["response_length"].copy()
    negative[3] = -5
    assert set(findings(with_values(run, response_length=negative))) == {"impossible-length"}
    stored = run.arrays["stored_length"].copy()
    stored[0] += 1
    assert "contradict" in findings(with_values(run, stored_length=stored))["impossible-length"].message
    null = run.arrays["prompt_length"].copy()
    null[:] = MISSING_INT["int32"]
    assert not findings(with_values(run, prompt_length=null))


def copied(run: SimulatedRun) -> SimulatedRun:
    """Every third response of a group repeated by the two after it."""
    rows = np.arange(len(run.splits) - 1)
    made = run.take(rows - rows % 3)
    for name in ("uid", "group", "step", "rollout_step", "sequence"):
        made.arrays[name] = run.arrays[name]
    return made


def test_copies_in_a_group() -> None:
    found = findings(copied(honest()))
    assert set(found) == {"duplicate-samples"}
    assert found["duplicate-samples"].severity == "error"


def test_copies_are_found_without_uids() -> None:
    assert set(findings(without(copied(honest()), "uid", "epoch"))) == {"duplicate-samples"}


def test_passes_without_uid_and_epoch_are_no_copies() -> None:
    run = honest(epochs=2, minibatches=2)
    assert not findings(without(run, "uid", "epoch", "minibatch"))


@pytest.mark.parametrize("sharpness", [12.0, 30.0, 60.0])
def test_low_entropy_repeats_itself_honestly(sharpness: float) -> None:
    run = honest(sharpness=sharpness, steps=16)
    assert not findings(run)


def test_greedy_sampling_is_not_judged() -> None:
    result = results(copied(honest()).with_config(temperature=0.0))["duplicate-samples"]
    assert (result.outcome, result.reason) == ("skipped", "config")


@pytest.mark.parametrize("name", ["token_id", "group"])
def test_duplicates_need_ids_and_groups(name: str) -> None:
    result = results(without(honest(), name))["duplicate-samples"]
    assert (result.outcome, result.missing) == ("skipped", (name,))


def test_impossible_logprob_needs_a_logprob() -> None:
    bare = without(honest(), "logprob", "old_logprob", "rollout_logprob", "ref_logprob")
    result = results(bare)["impossible-logprob"]
    assert (result.outcome, result.missing) == ("skipped", ("logprob",))


def judge(code: str, facts: StoreFacts, **info: Any) -> Result:
    (result,) = run_rules([rules()[code]], View(RunInfo(**info), {}, facts=facts))
    return result


FACTS = StoreFacts(first_step=0, last_step=9, sequences=100, tokens=1000)


@pytest.mark.parametrize("code", ["RLD003", "RLD004", "RLD005"])
def test_tidy_files_pass(code: str) -> None:
    assert judge(code, FACTS).outcome == "passed"
    assert not judge(code, FACTS).measures


@pytest.mark.parametrize(
    ("code", "changes", "words"),
    [
        ("RLD003", {"repeated_rows": 7}, "7 of 100 rows"),
        ("RLD003", {"unsorted_steps": 2}, "2 places"),
        ("RLD004", {"dropped_steps": 3}, "dropped 3 steps"),
        ("RLD004", {"incomplete_steps": (4, 5)}, "step 4, 5"),
        ("RLD005", {"skipped_parts": ("tokens-s0-r0-1.parquet: truncated", "b: empty")}, "tokens-s0-r0-1.parquet: truncated"),
    ],
)
def test_what_reading_brought_to_light(code: str, changes: dict[str, Any], words: str) -> None:
    result = judge(code, replace(FACTS, **changes))
    assert result.findings[0].severity == "warning"
    assert words in result.findings[0].message


@pytest.mark.parametrize(
    ("changes", "severity"),
    [
        ({"unsorted_steps": 46}, "info"),
        ({"unsorted_steps": 3}, "info"),
        ({"unsorted_steps": 2}, "warning"),
        ({"unsorted_steps": 3, "last_step": 99}, "warning"),
        ({"unsorted_steps": 46, "repeated_rows": 7}, "warning"),
    ],
)
def test_a_shuffle_is_only_worth_knowing(changes: dict[str, Any], severity: str) -> None:
    assert {found.severity for found in judge("RLD003", replace(FACTS, **changes)).findings} == {severity}


def test_parts_with_rows_of_which_none_could_be_read_are_an_error() -> None:
    facts = replace(FACTS, sequences=0, skipped_parts=("tokens-s0-r0-1.parquet: truncated",))
    assert judge("RLD005", facts).findings[0].severity == "error"
    (found,) = judge("RLD005", replace(facts, skipped_parts=("metrics-s0-r0-1.parquet: truncated",))).findings
    assert found.severity == "warning"


def test_an_open_last_step_is_normal_until_the_run_is_closed() -> None:
    facts = replace(FACTS, incomplete_steps=(9,))
    assert judge("RLD004", facts, status="running").outcome == "passed"
    assert judge("RLD004", facts, status="complete").outcome == "found"
