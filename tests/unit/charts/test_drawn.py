"""What the browser gets: few points, in SVG, with names of a run as text and nothing that is no number."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("plotly")

from rl_doctor.analyzer.comparison import Comparison
from rl_doctor.analyzer.histogram import Histogram
from rl_doctor.analyzer.series import Series
from rl_doctor.charts import compare as of_runs
from rl_doctor.charts import distributions, groups, recompute
from rl_doctor.i18n.speaker import LANGUAGES, Speaker
from rl_doctor.live.followed import Followed
from rl_doctor.views.compare import compare
from rl_doctor.views.distributions import QUANTITIES, heat, slice_of
from rl_doctor.views.groups import shares, solve_map
from rl_doctor.views.opened import Opened
from rl_doctor.views.recompute import detail

DEMO = Path(__file__).parents[3] / "rl_doctor" / "demo"
MOST = 5000
SVG = {"scatter", "heatmap"}


@pytest.fixture(scope="module")
def stale() -> Opened:
    return Followed(DEMO / "stale-old-logprob.parquet").opened


@pytest.fixture(scope="module")
def long(stale: Opened, tmp_path_factory: pytest.TempPathFactory) -> Opened:
    """A run of 3,000 steps, whose groups come back under names that are markup."""
    steps = np.arange(3000)
    rng = np.random.default_rng(0)
    made = [Series(name, one.unit, steps, rng.normal(5, 1, 3000), np.full(3000, 100)) for name, one in stale.series.items()]
    histograms = {step: Histogram.of(rng.normal(0, 0.2, 50)) for step in range(3000)}
    rows = [
        {"step": step, "uid": f"{step}-{i}", "group": f"<b>{step % 100}</b>", "reward": float(rng.random() < 0.5)}
        for step in range(0, 3000, 3)
        for i in range(2)
    ]
    path = tmp_path_factory.mktemp("long") / "run.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    logged = rng.normal(1, 0.1, 3000)
    item = Comparison("<b>kl</b>", None, "nat", steps, logged, logged + (steps > 2000), np.full(3000, 1e-6))
    return dataclasses.replace(
        stale, run=Followed(path).opened.run, series={one.metric: one for one in made}, comparisons=(item,),
        histograms={quantity.metric: histograms for quantity in QUANTITIES.values()},
    )  # fmt: skip


def figures(run: Opened, speaker: Speaker) -> Iterator[tuple[str, Any]]:
    for name in QUANTITIES:
        found = heat(run, name)
        assert found is not None
        column = slice_of(found, 7)
        yield name, distributions.heat_map(found, speaker, column.column)
        yield f"{name} at a step", distributions.one_step(column, speaker)
    rates, signal, numbers = solve_map(run), shares(run), detail(run)
    assert rates is not None
    assert signal is not None
    assert numbers is not None
    yield "groups", groups.solve_rates(rates, speaker)
    yield "signal", groups.signal(signal, speaker)
    yield "recompute", recompute.against(numbers, speaker)
    moved = {name: dataclasses.replace(one, values=one.values + 1) for name, one in run.series.items()}
    runs = compare({"<b>a": run, "b": dataclasses.replace(run, series=moved)})
    assert runs.chosen is not None
    yield "one", of_runs.one(runs.chosen, runs.runs, runs.by, speaker)
    yield "grid", of_runs.grid(runs, runs.small, speaker)


def cells(trace: Any) -> int:
    return int(np.asarray(trace.z).size) if trace.type == "heatmap" else len(trace.x)


@pytest.mark.parametrize("language", LANGUAGES)
def test_few_points_in_svg_that_can_be_sent(stale: Opened, long: Opened, language: Any) -> None:
    for run in (stale, long):
        for name, figure in figures(run, Speaker(language)):
            assert {trace.type for trace in figure.data} <= SVG, name
            assert all(cells(trace) <= MOST for trace in figure.data), name
            assert figure.layout.uirevision, name
            sent = figure.to_json()
            assert len(sent) < 1_000_000, name
            document = json.loads(sent)
            for key in ("uirevision", "selectionrevision"):  # these are not shown
                document["layout"].pop(key)
            assert "<b>" not in json.dumps(document), name


def test_the_state_of_a_figure_stays_when_the_run_grows(stale: Opened) -> None:
    speaker = Speaker()
    histograms = {name: dict(list(own.items())[:-3]) for name, own in stale.histograms.items()}
    before = dataclasses.replace(stale, histograms=histograms)
    kept = {name: figure.layout.uirevision for name, figure in figures(before, speaker)}
    assert kept == {name: figure.layout.uirevision for name, figure in figures(stale, speaker)}


def test_cells_without_a_value_are_left_blank(stale: Opened) -> None:
    found = heat(stale, "ratio")
    assert found is not None
    drawn = distributions.heat_map(found, Speaker(), 0).data[0]
    blank = np.isnan(np.asarray(drawn.z, np.float64))
    assert (blank == (found.share == 0)).all()
    assert blank.any()


def test_the_clip_range_is_named(stale: Opened) -> None:
    found = heat(stale, "ratio")
    assert found is not None
    texts = [note.text for note in distributions.heat_map(found, Speaker(), 0).layout.annotations]
    assert texts == ["1 - clip_low = 0.8", "1 + clip_high = 1.2"]
