"""The trainer's log beside its recomputation, against the comparisons themselves."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from rl_doctor.analyzer.comparison import Comparison, Explanation, Untried
from rl_doctor.live.followed import Followed
from rl_doctor.report.model import Result
from rl_doctor.views.opened import Opened
from rl_doctor.views.recompute import POINTS, detail, recomputed

DEMO = Path(__file__).parents[3] / "rl_doctor" / "demo"


def comparison(name: str, logged: np.ndarray, right: np.ndarray, **more: object) -> Comparison:
    steps = np.arange(1, len(logged) + 1)
    return Comparison(name, f"metric.{name}", "nat", steps, logged, right, np.full(len(logged), 1e-6), **more)


def holding(opened: Opened, *made: Comparison, results: tuple[Result, ...] = ()) -> Opened:
    report = dataclasses.replace(opened.report, results=results)
    return dataclasses.replace(opened, comparisons=made, report=report)


def sample(size: int = 20) -> np.ndarray:
    return np.random.default_rng(0).uniform(1.0, 2.0, size)


def test_what_differs_stands_first(stale: Opened) -> None:
    right = sample()
    some = right.copy()
    some[[4, 9]] += 1.0
    run = holding(stale, comparison("equal", right, right), comparison("all", right * 2, right), comparison("few", some, right))
    found = recomputed(run)
    told = [(one.name, one.compared, one.differing, one.first, one.told) for one in found.compared]
    assert told == [("all", 20, 20, 1, True), ("few", 20, 2, 5, False), ("equal", 20, 0, None, False)]
    assert [one.name for one in found.differing] == ["all", "few"]
    assert list(found.table["differ"]) == [20, 2, 0]
    first = detail(run)
    assert first is not None
    assert first.name == "all"


def test_the_hypothesis_that_fits_is_told_with_the_steps_it_was_held_against(stale: Opened) -> None:
    right = sample()
    slack = np.full(20, 1e-6)
    ways = (
        Explanation("tripled", "is three times it", right * 3, slack),
        Explanation("doubled", "is twice it", right * 2, slack),
        Explanation("like it", "follows it", np.where(np.arange(20) < 10, right * 2, right), slack, approximate=True),
    )
    item = comparison("kl", right * 2, right, explanations=ways, untried=(Untried("by rank", ("rank", "window")),))
    run = holding(stale, item)
    assert recomputed(run).compared[0].fit == "doubled"
    found = detail(run, "kl")
    assert found is not None
    assert [(fit.name, fit.equal, fit.looked, fit.approximate) for fit in found.fitting] == [("doubled", 20, 20, False)]
    assert found.rejected == ("tripled", "like it")
    assert found.untried == (("by rank", "rank, window"),)
    assert found.best.tolist() == (right * 2).tolist()
    assert found.wrong.all()
    assert found.difference.tolist() == pytest.approx(right.tolist())
    assert list(found.table["doubled"]) == (right * 2).tolist()


def test_the_bound_of_equality_is_that_of_the_rule(stale: Opened) -> None:
    right = sample()
    found = detail(holding(stale, comparison("near", right * 1.0005, right)), "near")
    assert found is not None
    assert not found.wrong.any()
    assert found.allowed.tolist() == pytest.approx((right * 1.0005 * 1e-3).tolist())
    assert not found.fitting


def test_numbers_that_are_none_count_as_differing(stale: Opened) -> None:
    right = sample()
    item = comparison("kl", right, right, unreal_steps=np.array([40, 41]), unreal=np.array([np.nan, np.inf]))
    run = holding(stale, item)
    (one,) = recomputed(run).compared
    assert (one.compared, one.differing, one.first, one.told) == (22, 2, 40, True)
    found = detail(run)
    assert found is not None
    assert (found.first, found.last, found.whole) == (1, 41, 22)
    nothing = np.empty(0)
    alone = detail(holding(stale, comparison("kl", nothing, nothing, unreal_steps=np.array([3]), unreal=np.array([np.nan]))))
    assert alone is not None
    assert (alone.first, alone.last, len(alone.steps)) == (3, 3, 0)


def test_a_name_in_the_log_goes_before_a_metric_and_an_unknown_one_is_the_first(stale: Opened) -> None:
    right = sample()
    run = holding(stale, comparison("b", right, right), comparison("a", right, right))
    names = {asked: found.name for asked in ("b", "metric.b", "metric.a", "no", None) if (found := detail(run, asked))}
    assert names == {"b": "b", "metric.b": "b", "metric.a": "a", "no": "a", None: "a"}


def test_long_logs_are_drawn_with_few_points_and_none_that_stands_out_is_lost(stale: Opened) -> None:
    right = np.sin(np.arange(30_000) / 500)
    logged = right.copy()
    logged[12_345] += 9.0
    found = detail(holding(stale, comparison("long", logged, right)))
    assert found is not None
    assert len(found.steps) <= 3 * POINTS
    assert 12_346 in found.steps.tolist()
    assert found.wrong.sum() == 1
    assert found.whole == 30_000


def test_a_log_alone_has_nothing_to_recompute_from() -> None:
    run = Followed(DEMO / "truncated.trainer_state.json").opened
    found = recomputed(run)
    assert not found.compared
    assert found.reason == "no recording: nothing to recompute from"
    assert detail(run) is None


def test_the_demo_run_with_a_wrong_log() -> None:
    run = Followed(DEMO / "logged-kl.parquet").opened
    found = recomputed(run)
    assert [(one.name, one.differing, one.fit) for one in found.differing] == [("kl", 14, "over the padded width")]
    told = detail(run, "ref.kl_k3")
    assert told is not None
    assert told.finding is not None
    assert told.finding.code == "RLD801"
    assert [fit.equal for fit in told.fitting] == [14, 14]
    assert np.isfinite(told.best).sum() == 14
    assert dict(found.left) == dict(run.report.run.not_recomputed)
    assert (found.absent, found.undefined) == (run.report.run.not_recomputable, run.report.run.undefined)
