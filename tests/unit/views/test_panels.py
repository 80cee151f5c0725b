"""The run's small charts against the series that they draw."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Evidence, Finding, Result
from rl_doctor.rules import trend
from rl_doctor.views.opened import Opened
from rl_doctor.views.panels import DEVIATIONS, INSTRUMENTS, drawable, panels, single
from rl_doctor.views.thinning import MOST, extremes, thinned


def series(metric: str, values: np.ndarray, first: int = 1) -> Series:
    return Series(metric, "nat", np.arange(first, first + len(values)), values.astype(np.float64), np.ones(len(values), np.int64))


def with_series(opened: Opened, *made: Series) -> Opened:
    return dataclasses.replace(opened, series={each.metric: each for each in made})


def test_only_what_was_measured_is_drawn_and_the_rest_is_named_with_what_it_lacks(stale: Opened) -> None:
    view = panels(stale)
    drawn, absent = [panel.name for panel in view.panels], [each.name for each in view.absent]
    order = [instrument.name for instrument in INSTRUMENTS]
    assert sorted([*drawn, *absent], key=order.index) == order
    assert {"entropy", "kl_old", "ratio", "mismatch"} <= set(drawn)
    lacking = {each.name: each.needs for each in view.absent}
    assert lacking["staleness"] == " + ".join(stale.missing["stale.mean"])
    for panel in view.panels:
        for trace in panel.traces:
            measured = stale.series[trace.metric]
            keep = np.isfinite(measured.values)
            assert trace.steps.tolist() == measured.steps[keep].tolist()
            assert trace.values.tolist() == measured.values[keep].tolist()


def test_the_band_is_the_early_window_of_the_rules(stale: Opened) -> None:
    values = np.concatenate([np.random.default_rng(0).normal(5.0, 0.1, 60), np.full(60, 9.0)])
    (panel,) = panels(with_series(stale, series("policy.entropy", values))).panels
    early = trend.early(values)
    assert panel.band is not None
    assert panel.band.centre == early.center
    assert panel.band.high - panel.band.centre == pytest.approx(DEVIATIONS * early.scale)
    assert panel.band.centre - panel.band.low == pytest.approx(DEVIATIONS * early.scale)
    assert (panel.band.first, panel.band.last) == (1 + early.first, 1 + early.last)


def test_a_run_too_short_for_a_trend_has_no_band_and_what_is_never_negative_none_below_0(stale: Opened) -> None:
    short = series("policy.entropy", np.ones(trend.SHORTEST - 1))
    assert panels(with_series(stale, short)).panels[0].band is None
    wide = series("policy.entropy", np.abs(np.random.default_rng(1).normal(0.0, 1.0, 200)))
    band = panels(with_series(stale, wide)).panels[0].band
    assert band is not None
    assert band.low == 0.0


def test_findings_stand_on_the_panel_that_they_are_about(stale: Opened) -> None:
    proofs = (
        Evidence("policy.entropy", 3, 9, 0.5),
        Evidence("policy.entropy_gap (above, share of steps)", 4, 9, 0.5),
        Evidence("optim.grad_norm", 5, 9, 0.5),
        Evidence("length.truncated_frac_completed", 6, 9, 0.5),
        Evidence("policy.entropy", None, None, 0.5),
    )
    made = Finding("RLD900", "a-rule", "warning", "so", proofs, "cause", ())
    report = dataclasses.replace(stale.report, results=(Result("RLD900", "a-rule", "found", findings=(made,)),), diagnosis=())
    marks = {
        panel.name: [mark.first for mark in panel.marks] for panel in panels(dataclasses.replace(stale, report=report)).panels
    }
    assert marks["entropy"] == [3, 4]
    assert marks["gradient"] == [5]
    assert marks["truncation"] == [6]
    assert marks["length"] == []


def test_every_finding_of_a_faulty_run_with_a_measured_metric_can_be_drawn(stale: Opened) -> None:
    for each in stale.report.findings:
        for proof in each.evidence:
            panel = single(stale, proof.metric)
            assert panel is not None
            assert (each.code, proof.first_step) in {(mark.code, mark.first) for mark in panel.marks}


def test_a_metric_that_is_not_there_is_no_panel(stale: Opened) -> None:
    assert single(stale, "no.such_metric") is None
    assert "policy.entropy" in drawable(stale)
    assert all(single(stale, name) is not None for name in drawable(stale)[::40])


def test_a_long_run_is_drawn_with_few_points_that_keep_the_peaks(stale: Opened) -> None:
    values = np.random.default_rng(0).normal(size=100_000)
    values[77_777] = 50.0
    values[33_333] = np.nan
    (panel,) = panels(with_series(stale, series("policy.entropy", values))).panels
    (trace,) = panel.traces
    assert len(trace.steps) == len(trace.values) <= MOST
    assert 77_778 in trace.steps
    assert 33_334 not in trace.steps
    assert np.isfinite(trace.values).all()
    assert (np.diff(trace.steps) > 0).all()


@pytest.mark.parametrize("least", [thinned, extremes])
def test_both_ways_of_thinning_keep_ends_and_extremes(least: object) -> None:
    values = np.cumsum(np.random.default_rng(2).normal(size=12_345))
    chosen = least(values, 500)  # type: ignore[operator]
    assert len(chosen) <= 500
    assert (np.diff(chosen) > 0).all()
    assert {0, len(values) - 1, int(values.argmin()), int(values.argmax())} <= set(chosen.tolist())


def test_few_points_are_all_drawn() -> None:
    assert thinned(np.arange(8.0)).tolist() == list(range(8))


def test_the_table_has_each_drawn_point(stale: Opened) -> None:
    view = panels(stale)
    steps = list(view.table["step"])
    for panel in view.panels:
        for trace in panel.traces:
            column = np.asarray(view.table[trace.metric])
            assert column[[steps.index(step) for step in trace.steps]].tolist() == trace.values.tolist()
