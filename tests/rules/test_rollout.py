"""Rollout against trainer: every fault under its own name, with its own cause, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rl_doctor.api import check
from tests.rules.verdicts import Damage, findings, generator, honest, results, without
from tests.simulation.inject import rolled, with_values
from tests.simulation.run import SimulatedRun

LATE: dict[str, Any] = {"epochs": 2, "minibatches": 2, "step_size": 25.0, "steps": 24}


def trainer(run: SimulatedRun, change: Any) -> SimulatedRun:
    """Both logprobs of the trainer changed alike."""
    return with_values(run, **{name: change(run.arrays[name].astype(np.float64)) for name in ("logprob", "old_logprob")})


def shifted_engine(run: SimulatedRun) -> SimulatedRun:
    return rolled(run, "rollout_logprob", np.ones(len(run.splits) - 1, np.int64))


def shifted_by_prompt(run: SimulatedRun) -> SimulatedRun:
    return rolled(run, "rollout_logprob", run.arrays["prompt_length"].astype(np.int64) % 4)


def shifted_old(run: SimulatedRun) -> SimulatedRun:
    return rolled(run, "old_logprob", np.ones(len(run.splits) - 1, np.int64))


def zero_at_the_end(run: SimulatedRun) -> SimulatedRun:
    place = run.splits[1:][run.rows] - np.arange(run.splits[-1])
    return with_values(run, rollout_logprob=np.where(place <= 5, 0.0, run.arrays["rollout_logprob"]))


def zero_here_and_there(run: SimulatedRun) -> SimulatedRun:
    return with_values(
        run, rollout_logprob=np.where(generator().random(run.splits[-1]) < 0.1, 0.0, run.arrays["rollout_logprob"])
    )


def absent_here_and_there(run: SimulatedRun) -> SimulatedRun:
    return with_values(
        run, rollout_logprob=np.where(generator().random(run.splits[-1]) < 0.1, np.nan, run.arrays["rollout_logprob"])
    )


def most_probable_candidate(run: SimulatedRun) -> SimulatedRun:
    best = np.minimum(generator().normal(-1.2, 0.4, run.splits[-1]), -0.01)
    return with_values(run, rollout_logprob=np.maximum(run.arrays["rollout_logprob"], best))


def broken_forward(run: SimulatedRun) -> SimulatedRun:
    noise = -generator().gamma(2.0, 3.0, run.splits[-1])
    return trainer(run, lambda _: noise)


def other_numerics(run: SimulatedRun) -> SimulatedRun:
    noise = generator().normal(0.0, 0.35, run.splits[-1])
    return trainer(run, lambda values: np.minimum(values + noise - 0.06, 0.0))


def corrupted_at_first_sync(run: SimulatedRun) -> SimulatedRun:
    bad = -generator().gamma(2.0, 2.0, run.splits[-1])
    return with_values(run, rollout_logprob=np.where(run.token_step >= 1, bad, run.arrays["rollout_logprob"]))


def never_synced(run: SimulatedRun) -> SimulatedRun:
    noise = generator().normal(0.0, 0.007, run.splits[-1])
    return with_values(run, rollout_logprob=np.minimum(run.arrays["ref_logprob"] + noise, 0.0))


def never_synced_without_reference(run: SimulatedRun) -> SimulatedRun:
    return without(never_synced(run), "ref_logprob")


def reference_after_a_restart(run: SimulatedRun) -> SimulatedRun:
    lost = (run.token_step >= 15) & (run.token_step < 18)
    return with_values(
        run, rollout_logprob=np.where(lost, never_synced(run).arrays["rollout_logprob"], run.arrays["rollout_logprob"])
    )


def old_is_the_reference(run: SimulatedRun) -> SimulatedRun:
    return with_values(run, old_logprob=run.arrays["ref_logprob"])


def old_is_the_reference_without_rollout(run: SimulatedRun) -> SimulatedRun:
    return without(old_is_the_reference(run), "rollout_logprob")


def old_without_minibatch(run: SimulatedRun) -> SimulatedRun:
    return without(old_is_the_reference(run).with_config(epochs=None, minibatches=None), "minibatch", "epoch", "uid")


def dropout_in_the_old_pass(run: SimulatedRun) -> SimulatedRun:
    noise = generator().normal(0.0, 0.1, run.splits[-1])
    return with_values(run, old_logprob=np.minimum(run.arrays["old_logprob"] + noise, 0.0))


def one_pass_without_temperature(run: SimulatedRun) -> SimulatedRun:
    return with_values(run, old_logprob=0.75 * run.arrays["old_logprob"].astype(np.float64))


CASES: dict[Damage, tuple[dict[str, Any], str, str, str]] = {
    shifted_engine: ({}, "logprob-misaligned", "error", "neighbouring"),
    shifted_by_prompt: ({}, "logprob-misaligned", "error", "varies with prompt"),
    shifted_old: ({}, "logprob-misaligned", "error", "neighbouring"),
    zero_at_the_end: ({}, "missing-rollout-logprob", "error", "filled with 0"),
    zero_here_and_there: ({}, "missing-rollout-logprob", "error", "filled with 0"),
    absent_here_and_there: ({}, "missing-rollout-logprob", "warning", "did not return"),
    most_probable_candidate: ({}, "rollout-trainer-mismatch", "error", "most probable candidate"),
    broken_forward: ({}, "rollout-trainer-mismatch", "error", "for the same weights"),
    other_numerics: ({}, "rollout-trainer-mismatch", "warning", "for the same weights"),
    corrupted_at_first_sync: ({}, "rollout-trainer-mismatch", "error", "at a synchronisation"),
    never_synced: (LATE, "stale-old-logprob", "error", "reference's weights"),
    never_synced_without_reference: (LATE, "stale-old-logprob", "error", "outdated weights"),
    reference_after_a_restart: (LATE, "stale-old-logprob", "error", "lost them at a restart"),
    old_is_the_reference: (LATE, "stale-old-logprob", "error", "repeats the reference"),
    old_is_the_reference_without_rollout: (LATE, "stale-old-logprob", "error", "repeats the reference"),
    old_without_minibatch: (LATE, "stale-old-logprob", "error", "repeats the reference"),
    dropout_in_the_old_pass: ({}, "stale-old-logprob", "error", "dropout"),
    one_pass_without_temperature: ({}, "temperature-mismatch", "error", "two passes"),
}


@pytest.mark.parametrize("damage", CASES, ids=lambda damage: damage.__name__)
def test_fires_on_its_fault_alone(damage: Damage) -> None:
    knobs, name, severity, cause = CASES[damage]
    found = findings(damage(honest(**knobs)))
    assert set(found) == {name}
    assert found[name].severity == severity
    assert cause in found[name].cause


@pytest.mark.parametrize(
    ("knobs", "name", "cause"),
    [
        ({"temperature": 0.7, "trainer_temperature": 1.0}, "temperature-mismatch", "usually without it"),
        ({"temperature": 1.4, "trainer_temperature": 1.0}, "temperature-mismatch", "usually without it"),
        ({"temperature": 0.7, "reported_temperature": 1.0}, "temperature-mismatch", "before temperature"),
        ({"temperature": 0.6, "reported_temperature": 1.0}, "temperature-mismatch", "before temperature"),
        ({"top_p": 0.9}, "truncated-sampling-mismatch", "renormalises"),
        ({"top_p": 0.95, "sharpness": 5.0}, "truncated-sampling-mismatch", "renormalises"),
        ({"engine_noise": 0.3}, "rollout-trainer-mismatch", "for the same weights"),
    ],
)
def test_faults_of_the_sampler(knobs: dict[str, Any], name: str, cause: str) -> None:
    found = findings(honest(**knobs))
    assert set(found) == {name}
    assert cause in found[name].cause


def test_the_kept_mass_is_reported() -> None:
    finding = findings(honest(top_p=0.9))["truncated-sampling-mismatch"]
    assert finding.evidence[0].metric == "mismatch.exp_mean"
    assert 0.88 < finding.evidence[0].value < 0.93


def test_two_steps_are_enough() -> None:
    assert set(findings(honest(steps=2, temperature=0.7, trainer_temperature=1.0))) == {"temperature-mismatch"}
    assert set(findings(shifted_engine(honest(steps=2)))) == {"logprob-misaligned"}
    assert set(findings(broken_forward(honest(steps=2)))) == {"rollout-trainer-mismatch"}


def test_few_tokens_give_no_verdict() -> None:
    run = broken_forward(honest(steps=1, prompts=1, group_size=4))
    assert run.splits[-1] < 200
    result = results(run)["rollout-trainer-mismatch"]
    assert (result.outcome, result.reason) == ("skipped", "length")


@pytest.mark.parametrize(
    ("names", "rule", "missing"),
    [
        (("rollout_logprob",), "rollout-trainer-mismatch", "rollout_logprob"),
        (("rollout_logprob",), "truncated-sampling-mismatch", "rollout_logprob"),
        (("rollout_logprob",), "missing-rollout-logprob", "rollout_logprob"),
        (("old_logprob", "logprob"), "rollout-trainer-mismatch", "old_logprob"),
        (("rollout_logprob", "logprob"), "temperature-mismatch", "rollout_logprob"),
        (("rollout_logprob", "logprob"), "stale-old-logprob", "logprob"),
        (("rollout_logprob", "logprob"), "logprob-misaligned", "rollout_logprob"),
    ],
)
def test_skipped_with_the_column_that_it_lacks(names: tuple[str, ...], rule: str, missing: str) -> None:
    result = results(without(honest(), *names))[rule]
    assert (result.outcome, result.reason) == ("skipped", "column")
    assert missing in result.missing


def test_short_responses_are_pooled_for_shifts() -> None:
    run = honest(max_length=10, steps=20)
    assert set(findings(shifted_engine(run))) == {"logprob-misaligned"}
    assert not findings(run)


def test_some_shifted_rows_are_told_for_all_steps_though_one_step_has_many() -> None:
    run = honest(steps=12)
    rows = np.arange(len(run.splits) - 1)
    first = run.token_step[run.splits[:-1]]
    moved = np.where(first == 6, rows % 2 == 0, rows % 8 == 0)  # half of the rows at one step, an eighth at the others
    hit = findings(rolled(run, "rollout_logprob", moved.astype(np.int64)))["logprob-misaligned"]
    assert (hit.first_step, hit.last_step) == (0, 11)


def test_lag_by_design_with_correction_is_silent() -> None:
    assert not findings(honest(lag=4, step_size=40.0, correction=True, steps=24))


def test_lag_without_correction_is_a_warning() -> None:
    found = findings(honest(lag=4, step_size=40.0, steps=24))
    assert set(found) == {"stale-old-logprob", "stale-samples-uncorrected"}
    assert found["stale-old-logprob"].severity == "warning"
    assert "nothing in the loss corrects" in found["stale-old-logprob"].cause


def test_old_logprob_of_the_engine_corrects_itself() -> None:
    run = honest(lag=4, step_size=40.0, steps=24, epochs=2, minibatches=2)
    assert not findings(with_values(run, old_logprob=run.arrays["rollout_logprob"]))


def test_missing_minibatch_numbers_are_no_fault() -> None:
    run = honest(**LATE)
    assert not findings(without(run.with_config(epochs=None, minibatches=None), "minibatch", "epoch", "uid"))


def test_bfloat16_is_no_fault() -> None:
    found = findings(honest(bfloat16=True, trainer_noise=0.02, engine_noise=0.05, minibatches=2))
    assert {name: finding.severity for name, finding in found.items()} == {"coarse-logprob": "info", "stale-old-logprob": "info"}
    assert "Two passes of the trainer over the same weights" in found["stale-old-logprob"].cause  # told, and no fault


def test_logprobs_that_are_0_from_a_step_on_are_judged_over_those_steps() -> None:
    run = honest()
    late = run.arrays["step"][run.rows] >= 6
    report = check(with_values(run, rollout_logprob=np.where(late, 0.0, run.arrays["rollout_logprob"])))
    first = report.diagnosis[0]
    assert first.name == "engine-returns-no-logprobs"
    assert (first.first_step, first.last_step) == (6, 11)
    assert not [text for text in first.ruled_out if "nothing shows" in text]


def test_greedy_zeros_name_the_sampler() -> None:
    run = honest()
    found = findings(with_values(run, rollout_logprob=np.zeros(run.splits[-1])))
    assert "greedily" in found["missing-rollout-logprob"].cause


def test_certain_tokens_of_an_unrelated_engine_are_no_gap() -> None:
    run = broken_forward(honest())
    some = generator().random(run.splits[-1]) < 0.004
    found = findings(with_values(run, rollout_logprob=np.where(some, 0.0, run.arrays["rollout_logprob"])))
    assert "missing-rollout-logprob" not in found


def test_certain_tokens_are_no_gap() -> None:
    run = honest(sharpness=12.0)
    sure = run.arrays["rollout_logprob"] > -0.02
    assert sure.mean() > 0.05
    assert not findings(with_values(run, rollout_logprob=np.where(sure, 0.0, run.arrays["rollout_logprob"])))


def test_a_pass_with_dropout_does_not_make_old_logprob_the_reference_before_the_policy_has_left_it() -> None:
    run = honest(steps=2)
    noise = generator().normal(-0.02, 0.2, run.splits[-1])
    found = findings(with_values(run, logprob=np.minimum(run.arrays["logprob"] + noise, 0.0)))
    assert set(found) == {"stale-old-logprob"}
    assert found["stale-old-logprob"].severity == "warning"
    assert "ref_logprob" not in found["stale-old-logprob"].message


def test_one_update_does_not_tell_the_reference_from_the_weights_before_it() -> None:
    run = honest(**(LATE | {"steps": 2}))
    found = findings(with_values(run, old_logprob=run.arrays["ref_logprob"]))
    assert all("equals ref_logprob" not in finding.message for finding in found.values())
