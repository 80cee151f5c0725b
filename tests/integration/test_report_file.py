"""``rl-doctor report``: the command, and its file in a real browser without a network."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rl_doctor.demo
from rl_doctor.analyzer.comparison import Comparison
from rl_doctor.analyzer.histogram import Histogram
from rl_doctor.analyzer.series import Series
from rl_doctor.i18n.speaker import Speaker
from rl_doctor.live.followed import Followed
from rl_doctor.report.model import Report, Sample
from rl_doctor.store.lookup import rows_of_step
from rl_doctor.store.run import Run
from rl_doctor.views.distributions import QUANTITIES
from tests.integration.app.written import SCRIPT, write

DEMO = Path(rl_doctor.demo.__file__).parent
LIMIT = 8_000_000

pytestmark = pytest.mark.slow


def command(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-m", "rl_doctor", "report", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(call, capture_output=True, text=True, cwd=cwd, check=False, timeout=300, env=environment)


def looked_at(browser: Any, path: Path, **options: Any) -> tuple[Any, list[str]]:
    """The page as soon as all charts are drawn, and what the browser complained of or asked for."""
    context = browser.new_context(offline=True, **options)
    page, complaints = context.new_page(), []
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
    page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
    page.on("request", lambda one: complaints.append(one.url) if not one.url.startswith(("file:", "data:", "blob:")) else None)
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-drawn]", state="attached", timeout=120_000)
    return page, complaints


@pytest.mark.parametrize("name", ["reward-unit.parquet", "truncated.trainer_state.json"])
def test_it_opens_without_a_network(browser: Any, tmp_path: Path, name: str) -> None:
    done = command(DEMO / name, "-o", "run.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"run\.html: \d\.\d\d MB; .*\n", done.stdout)
    path = tmp_path / "run.html"
    assert path.stat().st_size < LIMIT
    page, complaints = looked_at(browser, path)
    assert complaints == []
    plots = page.locator(".plot").count()
    assert plots >= 2
    assert page.locator(".plot .main-svg").count() >= plots
    assert page.locator("section").count() >= 5
    page.context.close()


def test_markup_of_a_run_stays_text_and_links_lead_to_samples(browser: Any, tmp_path: Path) -> None:
    done = command(write(tmp_path / "run"), "--output", tmp_path / "run.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    page, complaints = looked_at(browser, tmp_path / "run.html", color_scheme="dark", viewport={"width": 700, "height": 900})
    assert complaints == []
    assert SCRIPT in (page.locator("#evidence pre").first.text_content() or "")
    assert page.locator("script").count() == 3
    for link in page.locator("a").all():
        assert page.locator(str(link.get_attribute("href"))).count() == 1
    assert page.locator("body").evaluate("body => document.documentElement.scrollWidth <= window.innerWidth + 1")
    assert page.locator("#evidence table.map td").count() > 0
    page.context.close()


def test_readable_without_javascript(browser: Any, tmp_path: Path) -> None:
    done = command(DEMO / "stale-old-logprob.parquet", "-o", tmp_path / "run.html", "--lang", "zh", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    context = browser.new_context(offline=True, java_script_enabled=False)
    page = context.new_page()
    page.goto((tmp_path / "run.html").as_uri())
    assert "图表需要 JavaScript" in page.locator("body").inner_text()
    assert page.locator("figure details.table tbody tr").count() > 100
    context.close()


def test_one_line_where_it_cannot_be_done(tmp_path: Path) -> None:
    run = write(tmp_path / "run")
    cases: tuple[tuple[tuple[str | Path, ...], str], ...] = (
        ((run, "-o", run / "run.html"), "lies in the run folder that is read"),
        ((run, run, "-o", "two.html"), "one file holds one RUN"),
        ((tmp_path / "none", "-o", "none.html"), "no such file"),
        ((run, "-o", tmp_path / "none" / "run.html"), "the folder does not exist"),
    )
    for arguments, told in cases:
        done = command(*arguments, cwd=tmp_path)
        assert done.returncode == 2, arguments
        assert done.stderr.count("\n") == 1
        assert told in done.stderr
    assert list(tmp_path.glob("*.html*")) == []


def test_without_the_extra(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name in {'jinja2', 'plotly'} else find(name, *rest)\n"
    )
    call = [sys.executable, "-m", "rl_doctor", "report", str(DEMO / "healthy.parquet"), "-o", "run.html"]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}
    done = subprocess.run(call, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=120, env=environment)
    assert done.returncode == 2
    assert done.stderr == "rl-doctor: error: rl-doctor report: jinja2, plotly not installed; run: pip install 'rl-doctor[app]'\n"


def test_a_long_run_with_hundreds_of_findings_stays_small(browser: Any, tmp_path: Path) -> None:
    from rl_doctor.html import evidence
    from rl_doctor.html.writing import document_of, fitting

    opened = Followed(write(tmp_path / "run")).opened
    of = Followed(DEMO / "stale-old-logprob.parquet").opened
    steps, rng = np.arange(10_000), np.random.default_rng(0)
    series = {
        name: Series(name, one.unit, steps, rng.normal(5, 1, steps.size), np.full(steps.size, 100))
        for name, one in {**of.series, **opened.series}.items()
    }
    histograms = {step: Histogram.of(rng.normal(0, 0.2, 100)) for step in range(0, steps.size, 4)}
    logged = rng.normal(1, 0.1, steps.size)
    compared = tuple(
        Comparison(f"key/{number}", None, "nat", steps, logged, logged + (steps > number), np.full(steps.size, 1e-6))
        for number in range(30)
    )
    many = _many(opened.report, [(step, row) for step in opened.run.steps for row in _rows(opened.run, step)])
    long = dataclasses.replace(
        opened, report=many, series=series, comparisons=compared,
        histograms={quantity.metric: histograms for quantity in QUANTITIES.values()},
    )  # fmt: skip
    document = document_of(long, Speaker(), None)
    assert sum(section.name == "evidence" for section in document.sections) == 1
    assert len(evidence.chosen(long)) == evidence.MOST_SAMPLES
    assert len(long.report.findings) == 300
    path = tmp_path / "long.html"
    path.write_text(fitting(long, Speaker(), None), encoding="utf-8")
    assert path.stat().st_size < LIMIT
    page, complaints = looked_at(browser, path)
    assert complaints == []
    assert page.locator("#diagnosis figure tbody tr").count() == 300
    told = json.loads(page.locator("#charts").text_content() or "")
    sizes = [points(trace.get("y", ())) for figure in told["figures"].values() for trace in figure["data"]]
    assert 1000 < max(sizes) <= 5000
    page.context.close()


def points(values: Any) -> int:
    """Number of values, which plotly may hold as base64."""
    if not isinstance(values, dict):
        return len(values)
    return len(np.frombuffer(base64.b64decode(values["bdata"]), values["dtype"]))


def _rows(run: Run, step: int) -> list[int]:
    rows = rows_of_step(run, step)
    assert rows is not None
    return [int(number) for number in rows.columns["sequence"]]


def _many(report: Report, places: list[tuple[int, int]]) -> Report:
    """The report with its findings again and again, each under a code and a cause of its own and with a sample."""
    result = next(one for one in report.results if one.findings)
    findings = tuple(
        dataclasses.replace(
            result.findings[0], code=f"RLD{number}", message=f"finding {number}",
            samples=(Sample(*places[number % len(places)], None, "policy.ratio_mean", 1.0),),
        )
        for number in range(300)
    )  # fmt: skip
    causes = tuple(
        dataclasses.replace(report.diagnosis[0], name=f"cause-{number}", findings=findings[3 * number : 3 * number + 3])
        for number in range(100)
    )
    results = (dataclasses.replace(result, findings=findings), *(one for one in report.results if not one.findings))
    return dataclasses.replace(report, results=results, diagnosis=causes)
