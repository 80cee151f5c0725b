"""Where runs part, on series with a known parting; what is configured and found otherwise."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path

import numpy as np
import pytest

from rl_doctor.analyzer.series import Series
from rl_doctor.live.followed import Followed
from rl_doctor.report.model import Evidence, Finding, Result
from rl_doctor.schema import RunConfig
from rl_doctor.views.compare import PANELS, POINTS, Compared, compare
from rl_doctor.views.divergence import DEVIATIONS, MATERIAL, SHORTEST, SMOOTHED, STAYS, Divergence, divergence, moving_median
from rl_doctor.views.opened import Opened

Floats = np.ndarray


def noise(seed: int, size: int = 60, deviation: float = 0.1) -> Floats:
    return np.random.default_rng(seed).normal(0.0, deviation, size)


def test_runs_that_differ_by_noise_alone_do_not_part() -> None:
    for seed in range(40):
        found = divergence(5.0 + noise(seed), 5.0 + noise(seed + 1000))
        assert (found.at, found.short) == (None, False), seed


def test_a_lasting_difference_is_found_where_it_begins() -> None:
    for seed in range(20):
        here, there = 5.0 + noise(seed), 5.0 + noise(seed + 1000)
        here[25:] += 2.0
        found = divergence(here, there)
        assert found.at == 25, seed
        assert found.stays == 35
        assert found.here == pytest.approx(np.median(here[25:]))
        assert found.there == pytest.approx(np.median(there[25:]))


def test_a_difference_that_goes_away_is_no_parting() -> None:
    here, there = 5.0 + noise(1), 5.0 + noise(2)
    here[20:40] += 2.0
    assert divergence(here, there).at is None
    spike = 5.0 + noise(3)
    spike[-1] += 50.0
    assert divergence(spike, there).at is None


def test_a_spike_on_the_other_side_does_not_hide_it() -> None:
    here, there = 5.0 + noise(1), 5.0 + noise(2)
    here[20:] += 2.0
    here[40] -= 30.0
    found = divergence(here, there)
    assert found.at == 20


def test_the_end_of_a_run_is_too_short_to_stay() -> None:
    here, there = 5.0 + noise(1), 5.0 + noise(2)
    here[-5:] += 3.0
    assert divergence(here, there).at is None
    assert STAYS == (5, 0.1)


def test_equal_beginnings_are_told() -> None:
    there = 5.0 + noise(1)
    here = there.copy()
    assert divergence(here, there) == Divergence(60, None, 0, divergence(here, there).limit, *[np.median(there)] * 2, 60)
    here[10:] += 3.0
    found = divergence(here, there)
    assert (found.equal, found.at) == (10, 10)


def test_small_and_constant_differences() -> None:
    flat = np.full(40, 2.0)
    assert divergence(flat, flat * (1 + MATERIAL / 2)).at is None
    assert divergence(flat, flat * (1 + 2 * MATERIAL)).at == 0
    zeros = np.zeros(40)
    assert divergence(zeros, zeros).at is None
    rare = zeros.copy()
    rare[::9] = 0.25
    assert divergence(zeros, rare).at is None


@pytest.mark.parametrize("size", [0, 1, 2, SHORTEST - 1])
def test_few_points_are_too_short(size: int) -> None:
    found = divergence(np.full(size, 1.0), np.full(size, 9.0))
    assert (found.n, found.short, found.at) == (size, True, None)


def test_the_band_is_that_of_plain_numbers() -> None:
    here, there = noise(1, 200), noise(2, 200)
    found = divergence(here + 3.0, there + 3.0)
    plain = [1.4826 * np.median(np.abs(np.diff(x) - np.median(np.diff(x)))) for x in (here, there)]
    assert found.limit == pytest.approx(DEVIATIONS * (sum(x * x for x in plain) / 2) ** 0.5)
    assert found.limit == pytest.approx(DEVIATIONS * 0.1 * 2**0.5, rel=0.2)


def test_the_moving_median() -> None:
    values = noise(5, 12)
    wanted = [np.median(values[max(at - SMOOTHED // 2, 0) : at + SMOOTHED // 2 + 1]) for at in range(12)]
    assert moving_median(values).tolist() == pytest.approx(wanted)


def series(metric: str, steps: Floats, values: Floats, counts: int = 100) -> Series:
    return Series(metric, "nat", steps.astype(np.int64), values, np.full(len(steps), counts, np.int64))


def run(opened: Opened, *made: Series, **config: object) -> Opened:
    """The run with these series and settings, and nothing found."""
    logged = copy.copy(opened.logged)
    logged.info = dataclasses.replace(opened.run.info, config=RunConfig(**config))
    return dataclasses.replace(telling(opened), series={one.metric: one for one in made}, logged=logged)


def telling(opened: Opened, *results: Result) -> Opened:
    return dataclasses.replace(opened, report=dataclasses.replace(opened.report, results=results))


def two(stale: Opened, here: Series, there: Series, by: str = "step") -> Compared:
    return compare({"a": run(stale, here), "b": run(stale, there)}, by)


STEPS = np.arange(1, 61)


def test_the_first_parting_stands_at_the_front(stale: Opened) -> None:
    entropy, length = noise(1) + 5.0, noise(2) + 50.0
    late, early = entropy + noise(3, 60, 0.01), length + noise(4, 60, 0.01)
    late[40:] += 3.0
    early[20:] += 9.0
    same = series("adv.std", STEPS, length)
    a = run(stale, series("policy.entropy", STEPS, entropy), series("length.mean", STEPS, length), same)
    b = run(stale, series("policy.entropy", STEPS, late), series("length.mean", STEPS, early), same)
    found = compare({"a": a, "b": b})
    assert [(one.metric, one.step) for one in found.parted] == [("length.mean", 21), ("policy.entropy", 41)]
    assert found.chosen is not None
    assert found.chosen.metric == "length.mean"
    assert found.metrics == ("adv.std", "length.mean", "policy.entropy")
    asked = compare({"a": a, "b": b}, metric="adv.std").chosen
    assert asked is not None
    assert (asked.metric, asked.first) == ("adv.std", np.inf)
    unknown = compare({"a": a, "b": b}, metric="no.such").chosen
    assert unknown is not None
    assert unknown.metric == "length.mean"


def test_only_shared_steps_are_compared(stale: Opened) -> None:
    here, there = noise(1) + 5.0, noise(2)[:30] + 5.0
    found = two(stale, series("policy.entropy", STEPS, here), series("policy.entropy", STEPS[::2], there))
    (panel,) = found.panels
    assert panel.partings[0].found.n == 30
    assert panel.partings[0].last == 59
    apart = two(stale, series("policy.entropy", STEPS, here), series("policy.entropy", STEPS + 100, here))
    assert apart.panels[0].partings[0].found.n == 0
    assert apart.short == 1


def test_by_tokens_the_other_run_is_interpolated(stale: Opened) -> None:
    values = np.linspace(3.0, 1.0, 60)
    here = series("policy.entropy", STEPS, values, 100)
    there = series("policy.entropy", np.arange(1, 31), values[1::2], 200)
    by_step, by_tokens = two(stale, here, there), two(stale, here, there, "tokens")
    assert by_step.alignments == ("step", "tokens")
    assert by_step.panels[0].partings[0].found.at is not None
    same = by_tokens.panels[0].partings[0]
    assert (by_tokens.by, same.found.at) == ("tokens", None)
    assert same.found.here == pytest.approx(same.found.there)
    assert by_tokens.panels[0].lines[0].positions.tolist() == [100.0 * step for step in range(1, 61)]


def test_by_time_where_both_logged_it(stale: Opened) -> None:
    seconds = series("time.step", STEPS, np.full(60, 2.5), 1)
    entropy = series("policy.entropy", STEPS, noise(1) + 5.0, 1)
    both = compare({"a": run(stale, entropy, seconds), "b": run(stale, entropy, seconds)}, "time")
    assert (both.by, both.alignments) == ("time", ("step", "time"))
    assert both.panels[0].lines[0].positions[-1] == 150.0
    one = compare({"a": run(stale, entropy, seconds), "b": run(stale, entropy)}, "time")
    assert (one.by, one.alignments) == ("step", ("step",))


def test_three_runs_are_each_held_against_the_first(stale: Opened) -> None:
    base = noise(1) + 5.0
    made = {name: run(stale, series("policy.entropy", STEPS, base + add)) for name, add in (("a", 0.0), ("b", 0.0), ("c", 4.0))}
    found = compare(made)
    assert [(one.other, one.step, one.equal_to) for one in found.panels[0].partings] == [("b", None, 60), ("c", 1, None)]
    assert [one.other for one in found.parted] == ["c"]
    assert found.panels[0].band is None
    assert [line.run for line in found.panels[0].lines] == ["a", "b", "c"]
    assert set(found.panels[0].table["run"]) == {"a", "b", "c"}


def test_settings_that_both_tell_differ_and_others_are_counted(stale: Opened) -> None:
    entropy = series("policy.entropy", STEPS, noise(1) + 5.0)
    native = ({"optim": {"lr": 1e-6, "warm": 5}, "seed": 1}, {"optim": {"lr": 5e-7, "warm": 5}, "only": True})
    a = run(stale, entropy, clip_low=0.2, clip_high=0.2, native=native[0])
    b = run(stale, entropy, clip_low=0.2, clip_high=0.28, native=native[1])
    found = compare({"a": a, "b": b})
    assert [(one.name, one.values) for one in found.settings] == [
        ("config.clip_high", ("0.2", "0.28")),
        ("optim.lr", ("1e-06", "5e-07")),
    ]
    assert found.untold == 2
    assert found.settings_table["b"] == ["0.28", "5e-07"]


def finding(code: str, severity, step: int) -> Result:
    evidence = Evidence("policy.entropy", step, step, 1.0)
    return Result(code, "name", "found", findings=(Finding(code, "name", severity, "m", (evidence,), "c", ()),))


def test_findings_that_only_some_have(stale: Opened) -> None:
    entropy = series("policy.entropy", STEPS, noise(1) + 5.0)
    base = run(stale, entropy)
    a = telling(base, finding("RLD001", "info", 3), finding("RLD301", "error", 9))
    b = telling(base, finding("RLD001", "warning", 5), finding("RLD002", "info", 1))
    told = {one.code: one.told for one in compare({"a": a, "b": b}).findings}
    assert list(told.items()) == [
        ("RLD301", ("error, step 9", "")), ("RLD001", ("info, step 3", "warning, step 5")), ("RLD002", ("", "info, step 1")),
    ]  # fmt: skip
    assert not compare({"a": a, "b": a}).findings


def test_long_runs_are_drawn_with_few_points(stale: Opened) -> None:
    steps = np.arange(20_000)
    a = series("policy.entropy", steps, noise(1, 20_000))
    found = two(stale, a, series("policy.entropy", steps, noise(2, 20_000)))
    (panel,) = found.panels
    assert all(len(line.values) <= POINTS for line in panel.lines)
    assert panel.band is not None
    assert panel.band.shape[1] <= POINTS
    assert len(found.small) <= PANELS


def test_a_run_against_itself_does_not_part(stale: Opened) -> None:
    found = compare({"a": stale, "b": stale})
    assert not found.parted
    assert not found.settings
    assert not found.findings
    assert not found.untold
    assert all(one.found.equal == one.found.n for panel in found.panels for one in panel.partings)


def test_demo_runs(stale: Opened) -> None:
    demo = Path(__file__).parents[3] / "rl_doctor" / "demo"
    healthy, log = (Followed(demo / name).opened for name in ("healthy.parquet", "truncated.trainer_state.json"))
    found = compare({"healthy": healthy, "stale": stale})
    assert found.parted[0].metric == "mismatch.abs"
    assert {one.code for one in found.findings} == {"RLD101", "RLD201"}
    mixed = compare({"healthy": healthy, "log": log}, "tokens")
    assert mixed.by == "step"
    assert "length.truncated_frac" in {one.metric for one in mixed.parted}
