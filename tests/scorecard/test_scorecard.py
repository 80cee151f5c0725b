"""A small scorecard: nothing healthy is warned of, and the page and its verdict say what was measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.diseases.catalogue import diseases
from tests.diseases.complaints import complaints
from tests.scorecard.outcome import Job, Outcome
from tests.scorecard.page import page
from tests.scorecard.plan import SMALL, Size, jobs
from tests.scorecard.prefix import damaged_rows, first_difference, half_damaged, steps_of, up_to
from tests.scorecard.promises import missed
from tests.scorecard.score import Score
from tests.scorecard.work import done
from tests.simulation.families import FAMILIES
from tests.simulation.healthy import KINDS
from tests.simulation.inject import onset


@pytest.mark.parametrize("family", FAMILIES)
def test_silent_on_families_of_healthy_training(family: str) -> None:
    outcomes = [done(Job("healthy", family, seed=seed)) for seed in range(SMALL.healthy)]
    assert missed(Score(outcomes)) == []
    assert [one.alarms for one in outcomes if one.alarms] == []


@pytest.mark.parametrize(
    ("family", "seed"),
    [
        ("grpo", 8),
        ("few_samples", 39),
        ("few_samples", 50),
        ("few_samples", 63),
        ("sparse_reward", 89),
        ("bfloat16", 91),
        ("dynamic", 106),
        ("agentic", 113),
        ("resumed", 113),
        ("ppo", 115),
    ],
)
def test_silent_on_what_was_once_warned_of(family: str, seed: int) -> None:
    assert done(Job("healthy", family, seed=seed)).alarms == {}


@pytest.mark.parametrize("name", complaints())
def test_complaints_are_none(name: str) -> None:
    assert missed(Score([done(Job("complaint", name, seed=seed)) for seed in range(SMALL.complaints)])) == []


def test_what_is_left_of_groups_that_lack_rows_has_the_advantages_of_whole_ones() -> None:
    assert done(Job("complaint", "ended-by-stop-strings", seed=2)).alarms == {}


def test_a_fault_is_timed_from_its_first_wrong_number() -> None:
    disease = diseases()["engine-weights-corrupted"]
    run, healthy = disease.make(0), KINDS["on_policy"](0)
    assert first_difference(run, healthy) == onset(healthy)
    found = done(Job("fault", disease.name, timed=True))
    assert (found.found, found.before) == (True, onset(healthy))
    assert found.latency is not None
    assert 1 <= found.latency <= 16


def test_a_healthy_run_differs_nowhere_from_itself() -> None:
    assert first_difference(KINDS["agentic"](1), KINDS["agentic"](1)) is None


def test_a_prefix_is_the_run_as_it_was() -> None:
    run = KINDS["two_epochs"](0)
    part = up_to(run, 7)
    assert steps_of(part).tolist() == list(range(8))
    assert np.array_equal(part.arrays["logprob"], run.arrays["logprob"][run.token_step <= 7])
    assert part.log.steps().max() == 7


@pytest.mark.parametrize(("damaged", "half"), [("kl-runaway", range(22, 27)), ("engine-falls-behind", range(7, 10))])
def test_half_of_the_damage_is_that_of_the_metric_and_not_of_the_steps(damaged: str, half: range) -> None:
    disease = diseases()[damaged]
    run = disease.make(0)
    begin = first_difference(run, KINDS["on_policy"](0))
    assert begin is not None
    assert disease.damage is not None
    assert half_damaged(run, disease.damage, begin) in half


def _outcomes() -> list[Outcome]:
    """Outcomes of a plan in which every promise is kept, without running it."""
    plan = jobs(Size(healthy=2, complaints=1, simulated=1, families=1, sizes=1, sensitivity=1))
    faulty = {name for name, case in complaints().items() if case.faulty}
    causes = {name: (disease.cause,) if disease.cause else () for name, disease in diseases().items()}
    return [
        Outcome(job, 10, {"non-finite": "error"} if job.name in faulty else {}, causes=causes.get(job.name, ()), found=True)
        for job in plan
    ]


def test_kept_promises_are_told() -> None:
    score = Score(_outcomes())
    assert missed(score) == []
    told = page(score, [])
    assert "Nothing of what is promised." in told
    assert all(name in told for name in (*FAMILIES, *complaints()))


def _is_stale(outcome: Outcome) -> bool:
    disease = diseases()[outcome.job.name]
    return disease.rule == "stale-old-logprob" and disease.cause is not None


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("healthy", {"alarms": {"non-finite": "error"}}, "false error: non-finite"),
        ("healthy", {"alarms": {"kl-spike": "warning"}}, "false warnings per 10,000 steps"),
        ("healthy", {"crashed": ("kl-spike",)}, "a rule crashed"),
        ("complaint", {"alarms": {"kl-spike": "warning"}}, "complaint: kl-spike"),
        ("fault", {"causes": ("another",)}, "of its faults come first"),
        ("fault", {"found": False}, "finds"),
        ("fault", {"latency": 9, "before": 4}, "9 steps after its onset"),
        ("fault", {"latency": 9, "before": 4, "half": 8}, "half of the damage"),
    ],
)
def test_a_promise_that_is_missed_is_told(kind: str, change: dict[str, object], words: str) -> None:
    outcomes = [
        replace(one, **change) if one.job.kind == kind and (kind != "fault" or _is_stale(one)) else one  # type: ignore[arg-type]
        for one in _outcomes()
    ]
    lines = missed(Score(outcomes))
    assert any(words in line for line in lines), lines
    assert lines[0] in page(Score(outcomes), lines)


def test_a_recorded_run_and_a_family_of_one_name_are_two_hosts() -> None:
    plan = [job for job in jobs(Size(healthy=1)) if job.kind in {"healthy", "fault"}]
    assert len(plan) == len(set(plan))
    recorded = {(job.host or job.name) for job in plan if job.recorded}
    assert recorded & {job.host for job in plan if not job.recorded}, "names are shared, and families are hosts as well"
    steps = {recorded: done(Job("healthy", "rloo", recorded=recorded)).steps for recorded in (True, False)}
    assert steps[True] != steps[False]


@pytest.mark.parametrize(
    ("fault", "host", "why"),
    [
        ("long-responses-scored-differently", "verl", "nothing to damage"),
        ("rollout-logprob-shifted-in-some-rows", "verl", "fewer damaged rows than its rule asks for"),
        ("rollout-logprobs-of-other-rows", "rloo", "no rollout_logprob"),
    ],
)
def test_a_fault_that_a_host_cannot_have_is_not_judged_and_the_page_says_why(fault: str, host: str, why: str) -> None:
    outcome = done(Job("fault", fault, host, recorded=True))
    assert outcome.unjudged == why
    score = Score([outcome])
    assert score.faults == []
    assert "| faults not judged | 1 | " in page(score, [])


def test_rows_are_damaged_where_their_tokens_differ() -> None:
    healthy = KINDS["on_policy"](0)
    row = int(np.argmax(np.bincount(healthy.rows, healthy.arrays["response_mask"])))
    run = healthy.copy()
    run.arrays["logprob"][healthy.splits[row]] -= 1.0
    longest = int(healthy.arrays["response_mask"][healthy.rows == row].sum())
    assert [damaged_rows(run, healthy, tokens) for tokens in (0, longest, longest + 1)] == [1, 1, 0]
    assert damaged_rows(run.take(np.arange(3)), healthy, 0) is None
