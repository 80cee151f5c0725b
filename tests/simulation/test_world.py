"""The simulated world is honest: its numbers obey the laws that the rules rely on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.simulation.families import FAMILIES, settings
from tests.simulation.healthy import KINDS, LONG
from tests.simulation.inject import by_group
from tests.simulation.run import SimulatedRun
from tests.simulation.settings import END, Settings, Source
from tests.simulation.world import simulate


def _difference(run: SimulatedRun, left: str, right: str) -> np.ndarray:
    return run.arrays[left].astype(np.float64) - run.arrays[right].astype(np.float64)


def test_rollout_logprobs_are_those_of_the_sampling_law() -> None:
    run = KINDS["async_corrected"](0)
    trained = run.arrays["response_mask"]
    ratio = np.exp(_difference(run, "old_logprob", "rollout_logprob"))[trained]
    error = ratio.std() / np.sqrt(len(ratio))
    assert error < 1e-3
    assert abs(ratio.mean() - 1.0) < 4.0 * error


def test_entropy_agrees_with_surprise() -> None:
    run = KINDS["on_policy"](0)
    gap = run.arrays["old_entropy"] + run.arrays["old_logprob"]
    assert abs(gap.mean()) < 4.0 * gap.std() / np.sqrt(len(gap))


def test_policy_starts_at_reference_and_drifts() -> None:
    run = KINDS["two_epochs"](0)
    first = (run.token_step == 0) & ((run.arrays["epoch"] + run.arrays["minibatch"])[run.rows] == 0)
    assert (run.arrays["logprob"] == run.arrays["ref_logprob"])[first].all()
    assert (run.arrays["logprob"] == run.arrays["old_logprob"])[first].all()
    ahead = _difference(run, "ref_logprob", "logprob")
    divergence = np.expm1(ahead) - ahead
    assert 0.01 < divergence[run.token_step == 39].mean() < 0.5


def test_reward_is_learned() -> None:
    gains = []
    for seed in range(5):
        run = KINDS["on_policy"](seed)
        step, reward = run.arrays["step"], run.arrays["reward"]
        gains.append(reward[step >= 30].mean() - reward[step < 10].mean())
    assert np.mean(gains) > 0.05


def test_responses_end_at_the_end_token() -> None:
    run = KINDS["agentic"](0)
    last = run.splits[1:] - 1
    ended = run.arrays["token_id"][last] == END
    assert (ended == (run.arrays["finish_reason"] == "stop")).all()
    assert run.arrays["response_mask"][last][ended].all()
    assert 0.05 < 1.0 - run.arrays["response_mask"].mean() < 0.5


def test_critic_learns_and_its_advantages_are_those_of_its_values() -> None:
    made = Settings(seed=1, steps=30, estimator="gae", lam=0.95, gamma=0.99, prompts=16, group_size=1, step_size=5.0)
    run = simulate(made)
    value, returns, paid, advantage = (
        run.arrays[name].astype(np.float64) for name in ("old_value", "return", "token_reward", "advantage")
    )
    explained = run.log.series("critic/vf_explained_var")[1]
    assert np.median(explained[15:]) > np.median(explained[:5]) + 0.02
    first, stop = run.splits[7], run.splits[8]
    expected, following, after = 0.0, 0.0, []
    for at in range(stop - 1, first - 1, -1):
        expected = paid[at] + made.gamma * following - value[at] + made.gamma * made.lam * expected
        following = value[at]
        after.append(expected + value[at])
    assert returns[first:stop] == pytest.approx(after[::-1], abs=1e-5)
    rows = run.token_step == 0
    assert advantage[rows].mean() == pytest.approx(0.0, abs=1e-6)
    assert advantage[rows].std(ddof=1) == pytest.approx(1.0, abs=1e-4)
    assert np.bincount(run.rows, paid) == pytest.approx(run.arrays["reward"], abs=1e-6)


def test_killed_run_goes_on_from_its_checkpoint() -> None:
    run = simulate(Settings(seed=2, steps=14, resumed_at=9))
    assert np.array_equal(np.unique(run.arrays["step"]), np.arange(14))
    assert [run.recorded_in[step] for step in range(14)] == [0] * 6 + [1] * 8
    whole = simulate(Settings(seed=2, steps=14))
    same = run.arrays["step"] < 6
    assert np.array_equal(run.arrays["reward"][same], whole.arrays["reward"][whole.arrays["step"] < 6])


def test_sources_differ_in_level_and_length() -> None:
    sources = (Source("easy", difficulty=-0.08), Source("long", difficulty=0.05, ending=-2.0))
    run = simulate(Settings(seed=3, steps=10, sources=sources))
    easy = run.arrays["data_source"] == "easy"
    assert run.arrays["reward"][easy].mean() > run.arrays["reward"][~easy].mean() + 0.1
    assert run.arrays["response_length"][~easy].mean() > 1.3 * run.arrays["response_length"][easy].mean()


def test_dynamic_sampling_prefers_groups_that_differ() -> None:
    plain, chosen = (simulate(Settings(seed=4, steps=8, reward="sparse", difficulty=0.08, dynamic=on)) for on in (False, True))

    def differing(run: SimulatedRun) -> float:
        ends = by_group(run, run.arrays["reward"], np.ptp)
        return float((ends > 0).mean())

    assert differing(chosen) > differing(plain)


@pytest.mark.parametrize("name", FAMILIES)
def test_families_are_reproducible_and_varied(name: str) -> None:
    drawn = [settings(name, seed) for seed in range(40)]
    assert drawn == [settings(name, seed) for seed in range(40)]
    assert len({(made.steps, made.prompts, made.group_size, made.reward) for made in drawn}) > 10


def test_same_seed_same_run() -> None:
    first, second = (simulate(Settings(seed=5, steps=3, epochs=2)) for _ in range(2))
    assert all(np.array_equal(first.arrays[name], second.arrays[name]) for name in first.columns)


@pytest.mark.parametrize("name", [*KINDS, "long"])
def test_logged_metrics_are_those_of_the_arrays(name: str) -> None:
    run = (LONG if name == "long" else KINDS[name])(1)
    for step in np.unique(run.arrays["rollout_step"])[:3]:
        rows = run.arrays["step"] == step
        assert run.log.series("critic/score/mean")[1][run.log.series("critic/score/mean")[0] == step] == pytest.approx(
            run.arrays["score"][rows & (run.arrays["epoch"] == 0)].mean(), rel=1e-12
        )


def test_run_file_holds_the_run(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    run = KINDS["agentic"](2)
    table = pq.read_table(run.write(tmp_path / "run.parquet"))
    assert set(table.column_names) == set(run.columns)
    flat = np.concatenate([np.asarray(row, np.float32) for row in table["logprob"].to_pylist()])
    assert np.array_equal(flat, run.arrays["logprob"])
    assert {"tool", "assistant"} == {role for row in table["role"].to_pylist() for role in row}
