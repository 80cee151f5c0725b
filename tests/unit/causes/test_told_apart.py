"""Causes that look alike in most numbers, told apart by one that was logged."""

from __future__ import annotations

import numpy as np
import pytest

from rl_doctor.causes.diagnose import diagnose
from rl_doctor.causes.registry import causes
from rl_doctor.report.model import Diagnosis
from tests.rules.scalars import Floats, result, view

N = 40
ZERO = np.zeros(N)
TRUNCATED = "length.truncated_frac"


def told(*codes: str, **metrics: Floats) -> tuple[Diagnosis, ...]:
    """What is told of the findings of some rules on a log."""
    values = {name.replace("__", "."): value for name, value in metrics.items()}
    return diagnose(view(values), [result(code, values) for code in codes])


def test_advantages_that_were_logged_exclude_groups_without_a_signal() -> None:
    (entry,) = told("RLD604", optim__grad_norm=ZERO, adv__max=np.full(N, 2.0), adv__min=np.full(N, -1.9))
    assert entry.name == "loss-detached"
    assert any("nothing to learn from: the advantages of a step reach 2" in text for text in entry.ruled_out)


def test_advantages_of_0_speak_for_groups_without_a_signal() -> None:
    (entry,) = told("RLD604", optim__grad_norm=ZERO, adv__max=ZERO, adv__min=ZERO)
    assert entry.name == "no-signal-in-groups"


@pytest.mark.parametrize(("level", "possible"), [(0.0, True), (0.7, False)])
def test_a_reward_of_0_throughout_leaves_hard_prompts_possible(level: float, possible: bool) -> None:
    flat = np.full(N, level)
    (entry,) = told("RLD403", reward__mean=flat, reward__max=flat, reward__min=flat, length__truncated_frac=np.full(N, 0.04))
    assert entry.name == "scorer-returns-constant"
    too_hard = causes()["rewards-too-rare"].label
    assert any(text.startswith(too_hard) for text in entry.also_fits) is possible
    assert any(text.startswith(too_hard) for text in entry.ruled_out) is not possible
    assert "responses end by themselves: 4% are cut at the length limit" in [sign.text for sign in entry.seen]


def test_a_lost_entropy_leads_what_began_after_it() -> None:
    time = np.arange(N)
    entropy = 3.0 * np.exp(-0.2 * np.clip(time - 8, 0, None)) * np.exp(0.02 * np.sin(time))
    cut = np.clip((time - 16) / 12, 0.02, 0.98)
    reward = np.linspace(0.3, 0.9, N) + 0.01 * np.sin(3 * time)
    metrics = {"policy__entropy": entropy, "length__truncated_frac": cut, "reward__mean": reward}
    (entry,) = told("RLD301", "RLD501", **metrics)
    assert (entry.name, entry.severity) == ("policy-closes-up", "warning")
    assert [item.name for item in entry.followed_by] == ["length-truncation"]
    assert not any("raise max_response_length" in text.lower() and "do not" not in text.lower() for text in entry.advice)


def test_short_lengths_are_told_with_the_digits_that_their_growth_needs() -> None:
    length = np.linspace(3.2, 3.8, N)
    (entry,) = told("RLD501", length__truncated_frac=np.full(N, 0.65), length__mean=length, reward__mean=np.full(N, 0.2))
    assert any("mean length goes from 3.25 to 3.75 tokens" in text for text in entry.ruled_out)
