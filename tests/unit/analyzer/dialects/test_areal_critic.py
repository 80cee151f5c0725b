"""AReaL: what the critic's update records is compared only where there is a critic."""

import pytest

from rl_doctor.analyzer.needs import lacking
from rl_doctor.analyzer.recompute.registry import find_dialect
from rl_doctor.schema import RunConfig, RunInfo

NAMES = ("ppo_critic/n_valid_tokens", "ppo_critic/n_tokens", "ppo_critic/update/n_valid_tokens")


@pytest.mark.parametrize("critic", [False, True])
def test_what_the_critic_counts_needs_a_critic(critic: bool) -> None:
    info = RunInfo(trainer="areal", algorithm="ppo", world_size=1, config=RunConfig(native={}))
    found = find_dialect(info)
    assert found is not None
    columns = {"response_mask", "rank", "minibatch", "microbatch", "epoch", "prompt_length", "response_length"}
    columns |= {"value"} if critic else set()
    keys = [item for item in found.logged(info, columns, NAMES) if item.name in NAMES[:2]]
    assert len(keys) == 2
    for item in keys:
        assert ("value" in lacking(item.reduction.needs, columns, info.config)) is not critic
