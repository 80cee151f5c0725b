"""What the identities of honest sampling see, and what they leave alone; rows that stand apart; weights that vanish."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.rules.verdicts import findings, generator, honest, results, without
from tests.simulation.inject import rolled, shifted, with_values
from tests.simulation.run import SimulatedRun

TRAINER = ("logprob", "old_logprob", "ref_logprob")


def scattered(run: SimulatedRun, spread: np.ndarray) -> SimulatedRun:
    """The trainer's logprobs with noise whose exponential has the mean 1."""
    return shifted(run, spread * generator().standard_normal(len(spread)) - spread**2 / 2, *TRAINER)


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"temperature": 0.7, "trainer_temperature": 1.0}, "likelier"),
        ({"temperature": 1.4, "trainer_temperature": 1.0}, "less likely"),
        ({"top_p": 0.8}, "likelier"),
    ],
)
def test_another_sampler_shows_without_its_logprobs(knobs: dict[str, Any], words: str) -> None:
    found = findings(without(honest(steps=40, **knobs), "rollout_logprob"))
    assert set(found) == {"tokens-contradict-entropy"}
    assert words in found["tokens-contradict-entropy"].cause


def test_a_cut_tail_shows_where_both_logprobs_are_from_before_it() -> None:
    run = honest(steps=40, top_p=0.8)
    found = findings(with_values(run, rollout_logprob=run.arrays["old_logprob"]))
    assert set(found) == {"tokens-contradict-entropy"}


def test_the_gap_comes_with_its_interval() -> None:
    found = findings(without(honest(steps=40, temperature=0.7, trainer_temperature=1.0), "rollout_logprob"))
    gap = found["tokens-contradict-entropy"].evidence[0]
    assert gap.interval is not None
    assert gap.interval[0] < gap.value < gap.interval[1] < 0.0


def test_few_tokens_give_no_verdict_on_entropy() -> None:
    assert not findings(without(honest(steps=1, prompts=2, group_size=4, top_p=0.9), "rollout_logprob"))


def test_an_honest_engine_of_other_numerics_has_the_mean_one() -> None:
    run = honest(steps=24)
    assert not findings(scattered(run, np.full(run.splits[-1], 0.1)))


def test_a_bias_of_one_per_cent_is_no_law() -> None:
    run = honest(steps=24)
    found = findings(shifted(run, np.full(run.splits[-1], -0.012), "rollout_logprob"))
    assert set(found) == {"unlawful-rollout-logprob"}
    interval = found["unlawful-rollout-logprob"].evidence[0].interval
    assert interval is not None
    assert interval[0] > 1.0


@pytest.mark.parametrize("off", [0.03, 0.05])
def test_a_temperature_that_is_off_by_little(off: float) -> None:
    found = findings(honest(steps=24, temperature=1.0 - off, trainer_temperature=1.0))
    assert set(found) == {"temperature-mismatch"}
    assert found["temperature-mismatch"].severity == "warning"
    assert found["temperature-mismatch"].suspect == "trainer-lacks-temperature"


@pytest.mark.parametrize(
    ("sampler", "trainer", "configured", "suspect", "words"),
    [
        (0.7, 1.0, 0.7, "trainer-lacks-temperature", "The trainer"),
        (0.7, 1.0, None, "trainer-lacks-temperature", "The trainer"),
        (0.7, 1.0, 1.0, "engine-at-other-temperature", "The engine samples at a lower temperature"),
        (1.3, 1.0, 1.0, "engine-at-other-temperature", "The engine samples at a higher temperature"),
        (1.0, 0.7, 0.7, "engine-at-other-temperature", "The engine samples at a higher temperature"),
    ],
)
def test_the_configured_temperature_tells_whose_is_off(
    sampler: float, trainer: float, configured: float | None, suspect: str, words: str
) -> None:
    run = honest(steps=24, temperature=sampler, trainer_temperature=trainer).with_config(temperature=configured)
    found = findings(run)["temperature-mismatch"]
    assert found.suspect == suspect
    assert (found.cause or "").startswith(words)


def test_a_shift_in_one_row_of_twenty() -> None:
    run = honest(steps=24)
    rows = generator().random(len(run.splits) - 1) < 0.05
    found = findings(rolled(run, "rollout_logprob", rows.astype(np.int64)))
    assert found["logprob-misaligned"].suspect == "some-rows-shifted"


def test_one_rank_of_eight() -> None:
    run = honest(steps=24)
    rank = np.arange(len(run.splits) - 1) % 8
    found = findings(with_values(scattered(run, np.where(rank[run.rows] == 3, 0.3, 0.0)), rank=rank))
    assert set(found) == {"mismatch-in-some-rows"}


def test_noise_in_all_rows_is_not_of_some() -> None:
    run = honest(steps=24)
    for spread in (0.03, 0.06, 0.12):
        assert "mismatch-in-some-rows" not in findings(scattered(run, np.full(run.splits[-1], spread)))


def test_weights_of_tokens_do_not_vanish_with_the_length() -> None:
    run = honest(steps=24)
    weight = np.exp(0.05 * generator().standard_normal(run.splits[-1]))
    assert "sequence-weight-collapse" not in findings(with_values(run, is_weight=weight))
    assert "sequence-weight-collapse" not in findings(with_values(run, is_weight=0.2 * weight))


def test_one_weight_a_row_that_vanishes() -> None:
    run = honest(steps=24)
    found = findings(with_values(run, is_weight=np.full(len(run.splits) - 1, 0.01)[run.rows]))
    assert set(found) == {"sequence-weight-collapse"}
    assert found["sequence-weight-collapse"].severity == "error"
    assert results(run)["sequence-weight-collapse"].outcome == "skipped"
