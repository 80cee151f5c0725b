"""Rules on masks: each fires on its defect, names it, and keeps silent on what looks like it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rl_doctor.api import check
from tests.rules.verdicts import Damage, findings, generator, honest, results, without
from tests.simulation.inject import extended, rolled, with_values
from tests.simulation.run import SimulatedRun
from tests.simulation.settings import END, PAD


def padded(run: SimulatedRun) -> SimulatedRun:
    extra = np.where(run.arrays["finish_reason"] == "length", 0, generator().integers(1, 6, len(run.splits) - 1))
    return extended(run, extra, {"response_mask": True, "token_id": PAD})


def padded_without_lengths(run: SimulatedRun) -> SimulatedRun:
    return without(padded(run), "response_length", "stored_length")


def without_eos(run: SimulatedRun) -> SimulatedRun:
    return with_values(run, response_mask=run.arrays["response_mask"] & (run.arrays["token_id"] != END))


def inverted(run: SimulatedRun) -> SimulatedRun:
    return with_values(run, response_mask=~run.arrays["response_mask"])


def inverted_without_roles(run: SimulatedRun) -> SimulatedRun:
    return without(inverted(run), "role")


def prompts_trained(run: SimulatedRun) -> SimulatedRun:
    return with_values(run, prompt_loss_tokens=run.arrays["prompt_length"])


def observed(run: SimulatedRun) -> SimulatedRun:
    return with_values(run, response_mask=np.ones(run.splits[-1], np.bool_))


def observed_without_roles(run: SimulatedRun) -> SimulatedRun:
    return without(observed(run), "role")


def observed_as_nan(run: SimulatedRun) -> SimulatedRun:
    gaps = np.where(run.arrays["response_mask"], run.arrays["rollout_logprob"], np.nan)
    return without(observed(with_values(run, rollout_logprob=gaps)), "role")


def whitened_everywhere(run: SimulatedRun) -> SimulatedRun:
    outside = np.where(run.arrays["response_mask"], run.arrays["advantage"], generator().normal(size=run.splits[-1]))
    return with_values(run, advantage=outside)


def displaced(run: SimulatedRun) -> SimulatedRun:
    return rolled(run, "advantage", np.diff(run.splits) // 2)


def emptied(run: SimulatedRun) -> SimulatedRun:
    rows = generator().random(len(run.splits) - 1) < 0.7
    return with_values(run, response_mask=run.arrays["response_mask"] & ~rows[run.rows])


def never_set(run: SimulatedRun) -> SimulatedRun:
    return with_values(run, response_mask=np.zeros(run.splits[-1], np.bool_))


def rejected(run: SimulatedRun, share: float) -> SimulatedRun:
    rows = generator().random(len(run.splits) - 1) < share
    mask = run.arrays["response_mask"]
    return with_values(run, response_mask=mask & ~rows[run.rows], loss_mask=mask)


CASES = {
    padded: ("on_policy", "mask-covers-padding", "error", "padded width"),
    padded_without_lengths: ("on_policy", "mask-covers-padding", "error", "padded width"),
    without_eos: ("on_policy", "mask-misses-eos", "error", "EOS"),
    inverted: ("agentic", "mask-inverted", "error", "opposite"),
    inverted_without_roles: ("agentic", "mask-inverted", "error", "opposite"),
    prompts_trained: ("on_policy", "prompt-in-loss", "error", "whole sequence"),
    observed: ("agentic", "observation-in-loss", "error", "did not write"),
    observed_without_roles: ("agentic", "observation-in-loss", "error", "did not write"),
    observed_as_nan: ("agentic", "observation-in-loss", "error", "did not write"),
    whitened_everywhere: ("agentic", "advantage-outside-mask", "warning", "without the mask"),
    emptied: ("on_policy", "empty-mask", "warning", "filter"),
    never_set: ("on_policy", "empty-mask", "error", "never set"),
}

FOREIGN = (inverted, inverted_without_roles, observed, observed_without_roles, observed_as_nan)
"""They train on tokens that nobody sampled, which do not cost what the entropy says: right, and folded under the cause."""


@pytest.mark.parametrize("damage", CASES, ids=lambda damage: damage.__name__)
def test_fires_on_its_defect_alone(damage: Damage) -> None:
    kind, name, severity, cause = CASES[damage]
    found = findings(damage(honest(tools=kind == "agentic")))
    found.pop("tokens-contradict-entropy" if damage in FOREIGN else "", None)
    assert set(found) == {name}
    assert found[name].severity == severity
    assert cause in found[name].cause
    assert found[name].evidence[0].first_step == 0


def test_what_rollout_correction_rejects_is_no_defect() -> None:
    assert "empty-mask" not in findings(rejected(honest(), 0.15))
    found = findings(rejected(honest(), 0.7))["empty-mask"]
    assert (found.severity, found.cause) == ("info", "Rollout correction rejects most of the responses.")
    found = findings(rejected(honest(), 1.0))["empty-mask"]
    assert (found.severity, "rejected" in found.cause) == ("error", True)


def test_a_displaced_advantage_is_an_error() -> None:
    run = displaced(honest(tools=True))
    chosen = np.flatnonzero(np.isin(np.arange(len(run.splits) - 1), run.rows[~run.arrays["response_mask"]]))
    found = findings(run.take(chosen))["advantage-outside-mask"]
    assert found.severity == "error" or "untrained" in found.message


@pytest.mark.parametrize(
    ("names", "rule", "missing"),
    [
        (("response_length", "token_id"), "mask-covers-padding", "response_length"),
        (("token_id",), "mask-misses-eos", "token_id"),
        (("role", "rollout_logprob", "response_length"), "mask-inverted", "role"),
        (("prompt_loss_tokens",), "prompt-in-loss", "prompt_loss_tokens"),
        (("role", "rollout_logprob"), "observation-in-loss", "role"),
        (("advantage",), "advantage-outside-mask", "advantage"),
        (("response_mask",), "empty-mask", "response_mask"),
    ],
)
def test_skipped_with_the_column_that_it_lacks(names: tuple[str, ...], rule: str, missing: str) -> None:
    result = results(without(honest(tools=True), *names))[rule]
    assert (result.outcome, result.reason) == ("skipped", "column")
    assert missing in result.missing


def test_onset_is_the_first_step_of_the_defect() -> None:
    run = honest()
    late = run.token_step >= 7
    masked = run.arrays["response_mask"] & ~(late & (run.arrays["token_id"] == END))
    evidence = findings(with_values(run, response_mask=masked))["mask-misses-eos"].evidence[0]
    assert (evidence.first_step, evidence.last_step) == (7, 11)


def test_a_defect_that_comes_and_goes_says_so() -> None:
    run = honest()
    odd = run.arrays["step"] % 2 == 1
    found = findings(with_values(run, prompt_loss_tokens=np.where(odd, 3, 0)))["prompt-in-loss"]
    assert "6 of 11 steps" in found.message


def test_stop_strings_and_truncation_are_no_missed_eos() -> None:
    run = honest()
    changed = np.where(run.arrays["token_id"] == END, 7, run.arrays["token_id"])
    result = results(with_values(run, token_id=changed))["mask-misses-eos"]
    assert (result.outcome, result.reason) == ("skipped", "data")


def test_shared_padding_and_eos_id_allows_one() -> None:
    run = honest()
    run = replace(run, info=replace(run.info, pad_token_id=END))
    assert not findings(run)


def test_overlong_filtering_is_by_design() -> None:
    run = honest(max_length=20)
    cut = run.arrays["finish_reason"] == "length"
    assert cut.any()
    assert not findings(with_values(run, response_mask=run.arrays["response_mask"] & ~cut[run.rows]))


def test_an_advantage_repeated_over_the_row_is_a_way_of_storing_it() -> None:
    run = honest(tools=True)
    first = np.zeros(len(run.splits) - 1)
    np.maximum.at(first, run.rows, np.where(run.arrays["response_mask"], np.abs(run.arrays["advantage"]), 0.0))
    found = findings(with_values(run, advantage=first[run.rows]))
    assert {name: finding.severity for name, finding in found.items()} == {"advantage-outside-mask": "info"}


def test_an_advantage_that_leaves_the_mask_in_mid_run_is_named() -> None:
    run = honest(tools=True)
    first = np.zeros(len(run.splits) - 1)
    np.add.at(first, run.rows, np.where(run.arrays["response_mask"], run.arrays["advantage"], 0.0))
    first /= np.maximum(np.bincount(run.rows[run.arrays["response_mask"]], minlength=len(first)), 1)
    repeated = np.where(run.token_step >= 6, first.astype(np.float32)[run.rows], run.arrays["advantage"]).astype(np.float32)
    exact = np.where(run.arrays["response_mask"], run.arrays["advantage"], repeated)
    found = findings(with_values(run, advantage=exact))
    assert set(found) <= {"advantage-outside-mask"}


def test_first_tokens_that_are_left_out_are_no_observations() -> None:
    run = honest()
    first = np.arange(run.splits[-1]) == run.splits[:-1][run.rows]
    report = check(with_values(run, response_mask=run.arrays["response_mask"] & ~first))
    assert report.diagnosis[0].name == "mask-begins-late"
    assert "advantage-outside-mask" not in {finding.name for entry in report.diagnosis for finding in entry.findings}


def test_how_responses_ended_is_not_told_without_tokens_and_reasons() -> None:
    entry = check(without(padded(honest()), "token_id", "finish_reason", "rank", "data_source")).diagnosis[0]
    assert entry.name == "mask-of-padded-width"
    assert not [sign.text for sign in entry.seen if "%" in sign.text]
    assert "whether padding is trained after nearly every response that ended: needs token_id" in {
        sign.text for sign in entry.unchecked
    }


def test_long_observations_are_no_inverted_mask() -> None:
    run = honest(tools=True)
    extra = np.full(len(run.splits) - 1, 200)
    longer = extended(run, extra, {"response_mask": False, "token_id": 9})
    stored = np.diff(longer.splits)
    assert "mask-inverted" not in findings(without(with_values(longer, response_length=stored), "role"))
