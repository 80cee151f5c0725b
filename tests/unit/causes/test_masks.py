"""Stories of masks: one cause for both edges of a shift, and what a recording without lengths cannot tell."""

from __future__ import annotations

import numpy as np
import pytest

from rl_doctor.api import check
from rl_doctor.report.model import Diagnosis
from tests.rules.verdicts import honest, without
from tests.simulation.inject import extended, with_values
from tests.simulation.run import SimulatedRun
from tests.simulation.settings import PAD


def _late_by_one() -> SimulatedRun:
    """Each mask begins at the second token of its response, and ends at a token of padding that nobody sampled."""
    fill = {"token_id": PAD, "response_mask": True, "logprob": -9.0, "old_logprob": -9.0, "rollout_logprob": 0.0}
    run = extended(honest(), np.ones(len(honest().splits) - 1, np.int64), fill)
    mask = np.ones_like(run.arrays["response_mask"])
    mask[run.splits[:-1]] = False
    return with_values(run, response_mask=mask)


def _told(run: SimulatedRun) -> list[Diagnosis]:
    return [entry for entry in check(run).diagnosis if {"RLD010", "RLD028"} & set(entry.codes)]


def test_both_edges_of_a_shift_are_one_cause() -> None:
    (entry,) = _told(_late_by_one())
    assert entry.name == "mask-shifted"
    assert {"RLD010", "RLD028"} <= set(entry.codes)


@pytest.mark.parametrize("lengths", [True, False])
def test_a_mask_that_ends_late_asks_for_the_first_tokens_where_the_recording_lacks_them(lengths: bool) -> None:
    late = _late_by_one()
    mask = np.ones_like(late.arrays["response_mask"])
    run = with_values(late, response_mask=mask)
    run = run if lengths else without(run, "response_length")
    (entry,) = _told(run)
    assert entry.name == "mask-ends-late"
    asked = [sign.text for sign in entry.unchecked if "first tokens" in sign.text]
    assert asked == ([] if lengths else ["whether their first tokens are left out too: needs response_length"])
