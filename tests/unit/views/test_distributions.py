"""Heat maps of distributions against counting in plain Python."""

from __future__ import annotations

import dataclasses
import math
import random
from pathlib import Path

import numpy as np
import pytest

from rl_doctor.analyzer.histogram import Histogram
from rl_doctor.live.followed import Followed
from rl_doctor.schema import RunConfig
from rl_doctor.views.axis import Axis
from rl_doctor.views.distributions import (
    QUANTITIES,
    STEP_BINS,
    VALUE_BINS,
    Heat,
    change,
    heat,
    of_metric,
    slice_of,
)
from rl_doctor.views.opened import Opened

Values = dict[int, list[float]]


def holding(opened: Opened, name: str, values: Values) -> Opened:
    """The run, with these values of a quantity by step."""
    histograms = {step: Histogram.of(np.array(own, np.float64)) for step, own in values.items()}
    return dataclasses.replace(opened, histograms={QUANTITIES[name].metric: histograms})


def gaussian(seed: int, steps: range, size: int, centre=lambda _: 0.0, width=lambda _: 0.1) -> Values:
    rng = random.Random(seed)
    return {step: [rng.gauss(centre(step), width(step)) for _ in range(size)] for step in steps}


def rounded(value: float) -> float:
    """The middle of the histogram's bin that holds the value."""
    return float(Histogram.of(np.array([value])).centres[0])


def shown(opened: Opened, name: str) -> Heat:
    found = heat(opened, name)
    assert found is not None
    return found


def bin_of(axis: Axis, value: float) -> int:
    """Which bin of the axis a value is in, by searching its edges one by one."""
    at = math.log10(value) if axis.kind == "log" and value > 0 else -math.inf
    if axis.kind == "signed-log":
        at = math.asinh(value / axis.linear)
    return min(sum(edge <= at for edge in axis.edges.tolist()[1:]), axis.bins - 1)


@pytest.mark.parametrize("name", QUANTITIES)
def test_shares_are_those_of_plain_python(stale: Opened, name: str) -> None:
    values = gaussian(1, range(3, 11), 300, width=lambda step: 0.05 * step)
    found = shown(holding(stale, name, values), name)
    value = QUANTITIES[name].value
    for column, (step, own) in enumerate(values.items()):
        assert (found.first[column], found.last[column], found.n[column]) == (step, step, len(own))
        wanted = [0] * found.axis.bins
        for one in own:
            wanted[bin_of(found.axis, float(value(np.array([rounded(one)]))[0]))] += 1
        assert found.share[:, column].tolist() == pytest.approx([count / len(own) for count in wanted])
        assert found.share[:, column].sum() == pytest.approx(1.0)


@pytest.mark.parametrize("name", QUANTITIES)
def test_quantiles_are_those_of_the_sorted_values(stale: Opened, name: str) -> None:
    values = gaussian(2, range(1, 5), 501)
    found = shown(holding(stale, name, values), name)
    for column, own in enumerate(values.values()):
        ordered = sorted(float(QUANTITIES[name].value(np.array([rounded(one)]))[0]) for one in own)
        wanted = [ordered[min(int(q * len(ordered)), len(ordered) - 1)] for q in (0.01, 0.5, 0.99)]
        assert found.quantiles[:, column].tolist() == pytest.approx(wanted)


def test_many_steps_are_put_together_and_the_browser_gets_few_cells(stale: Opened) -> None:
    values = {step: [0.1 * (step % 7), -0.2] for step in range(0, 3000, 3)}
    found = shown(holding(stale, "advantage", values), "advantage")
    assert found.share.shape == (VALUE_BINS, STEP_BINS)
    assert found.share.size <= 5000
    assert found.total == 2000
    assert (found.n == np.array([len(part) * 2 for part in np.array_split(np.arange(1000), STEP_BINS)])).all()
    assert found.first[0] == 0
    assert found.last[-1] == 2997
    assert (np.diff(found.edges) > 0).all()
    assert (found.first[1:] > found.last[:-1]).all()


def test_what_is_no_number_is_counted_apart(stale: Opened) -> None:
    values = {1: [0.1, math.nan, 0.2, math.inf, -math.inf], 2: [math.nan], 3: [0.1]}
    found = shown(holding(stale, "rollout", values), "rollout")
    assert found.n.tolist() == [4, 0, 1]
    assert found.nan == 2
    assert found.beyond == 2
    assert found.share[:, 1].tolist() == [0.0] * found.axis.bins
    assert np.isnan(found.quantiles[:, 1]).all()


def test_the_ratio_shows_the_clip_range_of_the_configuration(stale: Opened) -> None:
    config = RunConfig(clip_low=0.2, clip_high=0.3, dual_clip=3.0)
    run = dataclasses.replace(stale.run, info=dataclasses.replace(stale.run.info, config=config))
    clipped = dataclasses.replace(holding(stale, "ratio", {1: [0.0, 0.01], 2: [0.1]}), run=run)
    bounds = {bound.name: (bound.value, bound.position) for bound in shown(clipped, "ratio").bounds}
    assert {name: value for name, (value, _) in bounds.items()} == pytest.approx(
        {"1 - clip_low": 0.8, "1 + clip_high": 1.3, "dual_clip": 3.0}
    )
    assert bounds["1 + clip_high"][1] == pytest.approx(math.log10(1.3))
    assert not shown(holding(clipped, "advantage", {1: [0.1]}), "advantage").bounds


def test_extreme_values_fit_on_the_axes(stale: Opened) -> None:
    values = {1: [0.0] * 5, 2: [-1e30, 1e30, 1e-30, 0.0, 800.0, -800.0]}
    for name in QUANTITIES:
        found = shown(holding(stale, name, values), name)
        assert np.isfinite(found.axis.edges).all()
        assert found.share.sum(axis=0).tolist() == pytest.approx([1.0, 1.0])
        places, numbers = found.axis.ticks(QUANTITIES[name].anchor)
        assert len(places) == len(numbers) == len(set(numbers)) >= 1


def moved(opened: Opened, name: str, values: Values) -> tuple[int, int, int]:
    found = change(holding(opened, name, values), name)
    assert found is not None
    assert not found.short
    return found.median, found.upper, found.lower


def test_shift_and_tail_are_told_apart(stale: Opened) -> None:
    steps = range(1, 41)
    assert moved(stale, "rollout", gaussian(3, steps, 400)) == (0, 0, 0)
    assert moved(stale, "rollout", gaussian(3, steps, 400, centre=lambda step: 0.01 * step)) == (1, 0, 0)
    assert moved(stale, "rollout", gaussian(3, steps, 400, centre=lambda step: -0.01 * step)) == (-1, 0, 0)
    assert moved(stale, "ratio", gaussian(3, steps, 400, width=lambda step: 0.005 * step)) == (0, 1, 1)
    assert moved(stale, "entropy", gaussian(3, steps, 400, centre=lambda _: 5.0, width=lambda step: 1.0 / step)) == (0, -1, -1)
    tail = {step: [*own, *([2.0] * (step // 2))] for step, own in gaussian(4, steps, 400).items()}
    assert moved(stale, "advantage", tail) == (0, 1, 0)


def test_the_windows_are_told(stale: Opened) -> None:
    found = change(holding(stale, "advantage", gaussian(5, range(1, 41), 50)), "advantage")
    assert found is not None
    assert (found.early.first, found.early.last, found.early.steps, found.early.n) == (1, 8, 8, 400)
    assert (found.late.first, found.late.last, found.late.n) == (33, 40, 400)


def test_a_short_run_is_told_so(stale: Opened) -> None:
    found = change(holding(stale, "advantage", gaussian(5, range(1, 6), 50, centre=float)), "advantage")
    assert found is not None
    assert found.short
    assert (found.median, found.upper, found.lower) == (0, 0, 0)


def test_a_run_without_tokens_has_none() -> None:
    log = Followed(Path(__file__).parents[3] / "rl_doctor" / "demo" / "truncated.trainer_state.json").opened
    assert not [name for name in QUANTITIES if heat(log, name) is not None or change(log, name) is not None]


def test_a_demo_run_has_them_all(stale: Opened) -> None:
    for name in QUANTITIES:
        found = shown(stale, name)
        assert found.total == stale.series[QUANTITIES[name].metric].counts.sum()
        assert len(found.table["n"]) == len(found.n)


@pytest.mark.parametrize(("step", "column"), [(None, 3), (1, 0), (4, 1), (5, 1), (6, 2), (100, 3), (-5, 0)])
def test_the_column_closest_to_a_step(stale: Opened, step: int | None, column: int) -> None:
    found = slice_of(shown(holding(stale, "advantage", {at: [0.5, 1.5] for at in (1, 4, 7, 20)}), "advantage"), step)
    assert found.column == column
    assert found.share.sum() == pytest.approx(1.0)
    assert found.early.sum() == pytest.approx(1.0)
    assert (found.early_last, found.early_n) == (1, 2)


@pytest.mark.parametrize(
    ("metric", "name"),
    [
        ("policy.kl_old_k3", "ratio"),
        ("distribution.ref_log_ratio", "reference"),
        ("ref.kl_k3", "reference"),
        ("adv.std", "advantage"),
        ("mismatch.abs", "rollout"),
        (None, "ratio"),
        ("reward.mean", "ratio"),
    ],
)
def test_a_metric_leads_to_its_quantity(metric: str | None, name: str) -> None:
    assert of_metric(metric, list(QUANTITIES)) == name
    assert of_metric(metric, ["entropy"]) == "entropy"


def test_ticks_stand_apart_and_where_their_numbers_are() -> None:
    for axis in (Axis("log", 1.0, -4.0, 1.0, 10), Axis("log", 1.0, -0.1, 0.1, 10), Axis("signed-log", 0.01, -8.0, 5.0, 10)):
        places, numbers = axis.ticks(1.0 if axis.kind == "log" else 0.0)
        assert (np.diff(places) > 0).all()
        assert 3 <= len(numbers) <= 12
        for place, number in zip(places, numbers, strict=True):
            assert axis.position(float(number)) == pytest.approx(place, abs=1e-9)


@pytest.mark.parametrize("width", [0.0, 0.01, 0.1, 1.0])
def test_what_means_that_nothing_is_special_is_in_the_middle_of_a_bin(stale: Opened, width: float) -> None:
    axis = shown(holding(stale, "ratio", gaussian(1, range(20), 200, width=lambda _: width)), "ratio").axis
    assert np.abs(axis.centres - axis.position(1.0)).min() == pytest.approx(0.0, abs=1e-12)
