"""Rules on the edges of masks, on what stands outside them, and on tokens: what they find, and what they keep silent on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rl_doctor.schema import ROLES
from tests.diseases.catalogue import diseases
from tests.rules.verdicts import findings, generator, honest, results, without
from tests.simulation.inject import with_values
from tests.simulation.run import SimulatedRun

_TOOL = ROLES.index("tool")


def header_trained(run: SimulatedRun) -> SimulatedRun:
    follows = np.roll(run.arrays["role"] != _TOOL, -1) & (np.roll(run.rows, -1) == run.rows)
    header = (run.arrays["role"] == _TOOL) & follows
    rollout = np.where(run.arrays["response_mask"], run.arrays["rollout_logprob"], np.nan)
    return with_values(run, response_mask=run.arrays["response_mask"] | header, rollout_logprob=rollout)


def test_a_header_in_the_loss_is_found_with_and_without_roles() -> None:
    run = header_trained(honest(tools=True))
    assert {"mask-edge-off", "observation-in-loss"} <= set(findings(run))
    found = findings(without(run, "role"))["mask-edge-off"]
    assert "before them" in found.message
    assert found.samples


def test_an_edge_is_said_with_its_steps() -> None:
    run = honest(tools=True)
    late = header_trained(run).arrays["response_mask"] & ((run.token_step >= 7) | run.arrays["response_mask"])
    evidence = findings(with_values(run, response_mask=late))["mask-edge-off"].evidence[0]
    assert evidence.first_step is not None
    assert evidence.first_step >= 7


def test_a_prefix_that_is_masked_on_purpose_is_longer_than_an_edge() -> None:
    run = honest(max_length=40)
    place = np.arange(run.splits[-1]) - run.splits[:-1][run.rows]
    long = (np.diff(run.splits) > 14)[run.rows]
    assert "mask-edge-off" not in findings(with_values(run, response_mask=~long | (place >= 10)))


def test_a_selection_of_tokens_is_worth_knowing() -> None:
    run = honest()
    place = np.arange(run.splits[-1]) - run.splits[:-1][run.rows]
    inside = (place > 0) & (place < np.diff(run.splits)[run.rows] - 1)
    chosen = with_values(run, response_mask=~(inside & (generator().random(run.splits[-1]) < 0.6)))
    assert findings(chosen)["written-tokens-untrained"].severity == "info"
    few = with_values(run, response_mask=~(inside & (generator().random(run.splits[-1]) < 0.02)))
    assert findings(few)["written-tokens-untrained"].severity == "warning"
    corrected = few.with_config(is_correction="token_mask")
    assert findings(corrected)["written-tokens-untrained"].severity == "info"


def test_observations_that_are_trained_as_configured_are_worth_knowing() -> None:
    run = with_values(honest(tools=True), response_mask=np.ones(honest(tools=True).splits[-1], np.bool_))
    assert findings(run)["observation-in-loss"].severity == "error"
    config = replace(run.info.config, native={"actor": {"train_on_tool_output": True}})
    meant = findings(replace(run, info=replace(run.info, config=config)))["observation-in-loss"]
    assert (meant.severity, "train_on_tool_output" in meant.cause) == ("info", True)


def rewarded(run: SimulatedRun, place: np.ndarray) -> SimulatedRun:
    token_reward = np.zeros(run.splits[-1], np.float32)
    token_reward[place] = 1.0
    return replace(run, arrays=run.arrays | {"token_reward": token_reward})


def test_a_reward_at_the_last_token_is_right() -> None:
    run = honest()
    assert "outcome-off-last-token" not in findings(rewarded(run, run.splits[1:] - 1))


def test_a_reward_at_the_first_token_of_every_row_may_be_a_convention() -> None:
    run = honest()
    assert findings(rewarded(run, run.splits[:-1]))["outcome-off-last-token"].severity == "info"


def test_a_reward_that_is_sometimes_early_is_wrong_whatever_the_padding() -> None:
    run = honest()
    early = generator().random(len(run.splits) - 1) < 0.3
    found = findings(rewarded(run, run.splits[1:] - 1 - early))["outcome-off-last-token"]
    assert found.unchecked
    assert not found.suspect


def test_rewards_of_steps_at_single_observed_tokens_are_by_design() -> None:
    run = honest(tools=True)
    token_reward = np.zeros(run.splits[-1], np.float32)
    observed = np.flatnonzero(run.arrays["role"] == _TOOL)
    starts = observed[np.diff(observed, prepend=-2) > 1]
    token_reward[starts] = 0.5
    token_reward[run.splits[1:] - 1] = 1.0
    result = results(replace(run, arrays=run.arrays | {"token_reward": token_reward}))["observations-in-returns"]
    assert result.outcome == "passed"


def with_returns(run: SimulatedRun, penalty: float, values: bool = False) -> SimulatedRun:
    """Returns that sum a reward at the end and a penalty at every observed token."""
    reward = np.where(run.arrays["response_mask"], 0.0, -penalty)
    reward[run.splits[1:] - 1] += run.arrays["reward"]
    returns = np.concatenate(
        [np.cumsum(reward[start:stop][::-1])[::-1] for start, stop in zip(run.splits, run.splits[1:], strict=False)]
    )
    more = {"return": (returns + 1e-4 * generator().normal(size=returns.size)).astype(np.float32)}
    if values:
        more["value"] = more["return"]
    return replace(run, arrays=run.arrays | more)


def test_returns_that_fall_over_observations_are_found_without_token_rewards() -> None:
    found = findings(with_returns(honest(tools=True, steps=20), 0.1))["observations-in-returns"]
    assert "correlation" in found.message


def test_returns_that_are_right_discounted_or_of_a_critic_are_not() -> None:
    run = honest(tools=True, steps=20)
    assert "observations-in-returns" not in findings(with_returns(run, 0.0))
    assert "observations-in-returns" not in findings(with_returns(run, 0.1).with_config(gamma=0.99))
    assert "observations-in-returns" not in findings(with_returns(run, 0.1, values=True))


def test_a_logged_kl_of_all_tokens_is_named() -> None:
    run = honest(tools=True, steps=20)
    observed = ~run.arrays["response_mask"]
    reference = np.where(observed, run.arrays["logprob"] + 1.5, run.arrays["ref_logprob"])
    run = with_values(run, ref_logprob=reference)
    ahead = np.clip(run.arrays["ref_logprob"].astype(np.float64) - run.arrays["logprob"], -20.0, 20.0)
    k3 = np.expm1(ahead) - ahead
    steps = np.unique(run.arrays["step"])

    def over(chosen: np.ndarray) -> SimulatedRun:
        values = np.array([k3[(run.token_step == step) & chosen].mean() for step in steps])
        return run.relog("actor/kl_loss", lambda *_: values)

    assert "observations-in-kl" not in findings(over(~observed))
    assert "is the KL over all tokens" in findings(over(np.ones(len(observed), np.bool_)))["observations-in-kl"].message


def test_a_few_rows_that_part_are_too_few() -> None:
    run = honest(steps=20, max_length=60, ending_offset=-2.0)
    assert "mismatch-within-response" not in findings(run)


def test_samples_of_responses_that_part_are_named() -> None:
    disease = diseases()["retokenised"]
    found = findings(disease.make(1))["mismatch-within-response"]
    assert found.samples
    assert all(sample.value > 0.4 for sample in found.samples)


def test_a_handful_of_loops_is_no_finding() -> None:
    run = honest(max_length=60, ending_offset=-3.0, steps=20)
    length, token = np.diff(run.splits), run.arrays["token_id"].copy()
    for row in np.flatnonzero(length >= 32)[:3].tolist():
        token[run.splits[row + 1] - 30 : run.splits[row + 1]] = 11
    assert "looping-responses" not in findings(with_values(run, token_id=token))


def test_what_is_found_does_not_depend_on_how_a_step_is_split() -> None:
    whole, split = (diseases()["retokenised"].make(1) for _ in range(2))
    split.parts = 7
    one, other = (findings(run)["mismatch-within-response"] for run in (whole, split))
    assert (one.message, one.evidence, one.samples) == (other.message, other.evidence, other.samples)
