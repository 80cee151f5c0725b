"""Rules on what rewards are made of and where they stand, from series alone: what they ask for and what they leave alone."""

import numpy as np
import pytest

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Result
from rl_doctor.rules import fresh
from rl_doctor.rules.registry import rules
from rl_doctor.rules.runner import run_rules
from rl_doctor.rules.stretch import stretch
from rl_doctor.rules.view import View
from rl_doctor.schema import RunConfig, RunInfo
from tests.rules.scalars import CONFIG, Floats, autoregressive, with_config

N = 40
TIME = np.arange(N)
NEW = ("RLD414", "RLD415", "RLD416", "RLD417", "RLD418", "RLD419", "RLD421", "RLD422", "RLD424", "RLD425", "RLD427")


def judged(code: str, values: dict[str, Floats], config: RunConfig = CONFIG, count: int = 48) -> Result:
    made = {
        name: Series(name, "1", np.arange(len(part)), np.asarray(part, float), np.full(len(part), count))
        for name, part in values.items()
    }
    result = run_rules([rules()[code]], View(RunInfo(config=config), made))[0]
    assert result.outcome != "crashed", result
    return result


@pytest.mark.parametrize("code", NEW)
def test_nothing_recorded_is_nothing_passed(code: str) -> None:
    assert judged(code, {}).outcome == "skipped"


def sums(off: Floats, ordered: Floats) -> dict[str, Floats]:
    spread = np.full(len(off), 0.5)
    return {"composition.sum_off": off, "composition.sum_sorted_off": ordered, "composition.spread": spread}


def test_rows_that_were_moved_are_told_within_three_steps() -> None:
    off = np.where(TIME >= N - 3, 0.3, 0.0)
    (found,) = judged("RLD414", sums(off, np.zeros(N))).findings
    assert (found.suspect, found.first_step) == ("rewards-of-other-rows", N - 3)
    assert not judged("RLD414", sums(np.where(TIME >= N - 2, 0.3, 0.0), np.zeros(N))).findings


def test_a_reward_that_never_was_the_sum_is_left_alone() -> None:
    assert not judged("RLD414", sums(np.full(N, 0.3), np.full(N, 0.2))).findings
    (found,) = judged("RLD414", sums(np.where(TIME >= 30, 0.3, 0.0), np.where(TIME >= 30, 0.2, 0.0))).findings
    assert found.suspect == "reward-has-unrecorded-part"


def test_a_log_tells_weights_that_are_left_out() -> None:
    rng = np.random.default_rng(0)
    parts = {"reward.component.a.mean": 0.5 + 0.1 * rng.random(N), "reward.component.b.mean": 0.3 + 0.1 * rng.random(N)}
    plain = sum(parts.values())
    weighted = 2.0 * parts["reward.component.a.mean"] + 0.5 * parts["reward.component.b.mean"]
    config = with_config(reward_weights={"a": 2.0, "b": 0.5})
    (found,) = judged("RLD414", {**parts, "reward.mean": plain}, config, 1).findings
    assert (found.severity, found.suspect) == ("warning", "reward-weights-ignored")
    assert not judged("RLD414", {**parts, "reward.mean": weighted}, config, 1).findings
    assert judged("RLD414", {**parts, "reward.mean": plain}, CONFIG, 1).reason == "config"


def by_source(**spreads: Floats) -> dict[str, Floats]:
    stds = {f"reward.std_by.source.{name}": part for name, part in spreads.items()}
    means = {f"reward.mean_by.source.{name}": np.where(part > 0, 0.4, 0.0) for name, part in spreads.items()}
    return {**stds, **means, "reward.min": np.zeros(N), "reward.max": np.ones(N)}


def test_a_source_that_stops_to_vary_is_told_and_one_that_never_did_is_worth_knowing() -> None:
    varied = np.full(N, 0.4)
    (found,) = judged("RLD415", by_source(math=varied, code=np.where(TIME >= N - 4, 0.0, 0.4)), count=12).findings
    assert (found.severity, found.suspect, found.first_step) == ("warning", "verifier-of-source-fails", N - 4)
    (found,) = judged("RLD415", by_source(math=varied, code=np.zeros(N)), count=4).findings
    assert (found.severity, found.suspect) == ("info", "source-scores-nothing")


def test_all_sources_without_variance_are_the_reward_s_business() -> None:
    assert not judged("RLD415", by_source(math=np.zeros(N), code=np.zeros(N))).findings
    assert not judged("RLD415", by_source(math=np.full(N, 0.4), code=np.full(N, 0.3))).findings


def test_a_first_group_that_alone_is_rewarded() -> None:
    places = {f"reward.mean_by.place.{index}": np.zeros(N) for index in range(1, 4)}
    first = {"reward.mean_by.place.0": np.full(N, 0.5), "reward.min": np.zeros(N)}
    (found,) = judged("RLD416", {**first, **places}).findings
    assert found.suspect == "solutions-of-the-first-prompt"
    lucky = {**places, "reward.mean_by.place.2": np.where(TIME % 7 == 0, 0.1, 0.0)}
    assert not judged("RLD416", {**first, **lucky}).findings
    assert judged("RLD416", first).reason == "data"


@pytest.mark.parametrize(("level", "finds"), [(-0.95, True), (-0.6, True), (0.0, False), (0.98, False), (-0.3, False)])
def test_advantages_that_fall_as_rewards_rise(level: float, finds: bool) -> None:
    corr = np.clip(level + 0.05 * np.random.default_rng(0).standard_normal(N), -1.0, 1.0)
    result = judged("RLD417", {"advantage.reward_corr": corr})
    assert bool(result.findings) == finds
    for found in result.findings:
        low, high = found.evidence[0].interval or (1.0, -1.0)
        assert low <= found.evidence[0].value <= high


def test_estimators_without_groups_may_have_advantages_where_rewards_agree() -> None:
    values = {"advantage.equal_groups_abs_mean": np.full(N, 0.5), "adv.abs_mean": np.full(N, 0.8)}
    assert judged("RLD419", values).findings
    assert judged("RLD419", values, with_config(adv_estimator="gae")).reason == "config"
    assert judged("RLD419", values, with_config(adv_estimator=None)).findings[0].severity == "info"
    tiny = values | {"advantage.equal_groups_abs_mean": np.full(N, 0.007)}
    assert not judged("RLD419", tiny).findings


def test_advantages_per_token_are_right_for_critics_and_for_a_kl_in_the_reward() -> None:
    values = {"adv.inside_frac": np.full(N, 0.4), "adv.varying_frac": np.ones(N)}
    assert judged("RLD421", values, count=500).findings
    for config in (with_config(adv_estimator="gae"), with_config(adv_estimator=None), with_config(kl_in_reward=True)):
        assert judged("RLD421", values, config, 500).reason == "config"
    assert not judged("RLD421", values | {"adv.inside_frac": np.full(N, 1e-9)}, count=500).findings


def by_rank(mean: float, std: float, lengths: tuple[float, float] = (3.0, 30.0)) -> dict[str, Floats]:
    rng = np.random.default_rng(0)
    made = {f"adv.mean_by.rank.{rank}": mean * rng.standard_normal(N) for rank in range(2)}
    made |= {f"adv.std_by.rank.{rank}": np.full(N, std) for rank in range(2)}
    return {**made, "length.min": np.full(N, lengths[0]), "length.max": np.full(N, lengths[1])}


def test_ranks_that_are_whitened_for_themselves() -> None:
    assert judged("RLD422", by_rank(1e-6, 1.0), count=500).findings
    assert not judged("RLD422", by_rank(0.05, 1.0), count=500).findings
    assert judged("RLD422", by_rank(1e-6, 1.0, (30.0, 30.0)), count=500).outcome == "skipped"


def failures(share: float, task: Floats) -> dict[str, Floats]:
    made = {f"signal.failed_mass.{name}": np.full(N, level) for name, level in (("accuracy", share), ("format", 0.0))}
    made |= {f"signal.failed_groups.{name}": np.full(N, level) for name, level in (("accuracy", 0.7), ("format", 0.0))}
    return {**made, "reward.component.accuracy.mean": task, "reward.component.format.mean": np.full(N, 0.5)}


def test_shaping_that_drives_updates_is_told_unless_the_task_is_learned() -> None:
    flat = 0.1 + 0.01 * autoregressive(np.random.default_rng(0), N)
    (found,) = judged("RLD418", failures(0.8, flat)).findings
    assert (found.severity, found.suspect) == ("warning", "shaping-drives-the-update")
    assert not judged("RLD418", failures(0.8, flat + np.linspace(0.0, 0.4, N))).findings
    assert not judged("RLD418", failures(0.2, flat)).findings


def lengths(more: float, less: float) -> dict[str, Floats]:
    rng = np.random.default_rng(0)
    sides = (("length.more_earned_mean", more), ("length.less_earned_mean", less))
    grown = {name: np.exp(np.linspace(5.0, 5.0 + np.log(factor), N) + 0.03 * rng.standard_normal(N)) for name, factor in sides}
    return {**grown, "reward.mean": 0.4 + 0.01 * autoregressive(rng, N)}


def test_wrong_answers_that_grow_alone() -> None:
    (found,) = judged("RLD424", lengths(1.0, 2.0)).findings
    assert found.suspect == "length-bias"
    for quiet in (lengths(2.0, 2.0), lengths(1.0, 1.1), lengths(2.0, 1.0)):
        assert not judged("RLD424", quiet).findings
    assert not judged("RLD424", lengths(1.0, 2.0) | {"reward.mean": np.linspace(0.2, 0.8, N)}).findings


def copies(share: Floats, paid: float, reward: Floats) -> dict[str, Floats]:
    made = {"data.duplicate_between_frac": share, "reward.copied_mean": np.full(N, paid), "reward.uncopied_mean": np.full(N, 0.6)}
    return {**made, "reward.mean": reward}


def test_one_answer_that_pays_is_told_and_a_collapse_is_not() -> None:
    growing = np.where(TIME < 20, 0.001, 0.5)
    up = np.where(TIME < 20, 0.5, 0.9)
    assert judged("RLD427", copies(growing, 1.0, up)).findings
    assert not judged("RLD427", copies(growing, 0.0, up)).findings
    assert not judged("RLD427", copies(growing, 0.6, np.where(TIME < 20, 0.9, 0.2))).findings
    assert not judged("RLD427", copies(np.full(N, 0.5), 1.0, up)).findings


def test_a_stretch_reaches_the_last_marked_step_and_leaves_out_what_was_long_before() -> None:
    series = Series("x", "1", TIME, np.ones(N), np.full(N, 10))
    marked = (TIME == 3) | (TIME >= 30)
    found = stretch(series, marked, 0.0, steps=3, items=50)
    assert found is not None
    assert (found.first, found.last, found.n) == (30, N - 1, 100)
    assert stretch(series, TIME == 3, 0.0, steps=3, items=1) is None
    assert stretch(series, marked, 0.0, steps=3, items=1000) is None


@pytest.mark.parametrize("after", [3, 5, 12])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_jump_is_seen_three_steps_after_it(after: int, sign: float) -> None:
    for seed in range(20):
        noise = 0.02 * autoregressive(np.random.default_rng(seed), 120)
        values = np.linspace(0.3, 0.5, 120) + noise
        assert fresh.jump(values) is None
        values[-after:] += sign * 0.4
        found = fresh.jump(values)
        assert found is not None, seed
        assert found.index == 120 - after


def test_spikes_steep_lines_and_short_series_are_no_fresh_jump() -> None:
    noise = 0.02 * autoregressive(np.random.default_rng(0), 120)
    spike = noise.copy()
    spike[-2:] += 0.5
    steep = noise + np.maximum(np.arange(120) - 100, 0) * 0.03
    again = noise + 0.4 * (np.arange(120) // 20 % 2)
    for values in (spike, steep, again, noise[:20]):
        assert fresh.jump(values) is None
