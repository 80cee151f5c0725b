"""What numpy has to say of numbers near the largest that there is never reaches the user."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rl_doctor import Recorder, check, open_run


@pytest.mark.filterwarnings("error")
def test_rewards_near_the_largest_number_are_judged_without_a_warning(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with Recorder(tmp_path / "run", info={"trainer": "custom", "algorithm": "grpo"}) as recorder:
        for step in range(1, 5):
            logprob = -rng.exponential(1.0, (8, 12))
            recorder.log_batch(
                step=step, logprob=logprob, old_logprob=logprob, advantage=rng.normal(size=8)[:, None] * np.ones((1, 12)),
                response_mask=np.ones((8, 12)), reward=np.full(8, 1e308), group=np.arange(8) // 4,
            )  # fmt: skip
    report = check(open_run(tmp_path / "run"))
    assert not [result.code for result in report.results if result.outcome == "crashed"]
