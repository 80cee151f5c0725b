"""The app in a real browser."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rl_doctor.demo
from rl_doctor import Recorder
from tests.integration.app.browser import Reader, served

DEMO = Path(rl_doctor.demo.__file__).parent
RUNS = [entry["name"] for entry in json.loads((DEMO / "index.json").read_text())]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def demo_app(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    assert browser.is_connected()
    with served(*(DEMO / name for name in RUNS), cwd=tmp_path_factory.mktemp("cwd")) as base:
        yield base


@pytest.fixture
def reader(browser: Any, demo_app: str) -> Iterator[Reader]:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, locale="en-US")
    yield Reader(context.new_page(), demo_app)
    context.close()


@pytest.mark.parametrize("run", RUNS)
def test_every_page_of_every_demo_run(reader: Reader, run: str) -> None:
    reader.open(f"?run={run}")
    titles = []
    for name, path in reader.menu():
        reader.page.locator(f"[data-testid=stSidebar] [data-testid=stPageLink] a:has-text('{name}')").click()
        reader.page.wait_for_url(f"**/{path}")
        reader.settle()
        titles.append(reader.title())
        assert reader.troubles() == [], name
    assert len(set(titles)) == len(titles) >= 2


def test_every_address_survives_a_reload(reader: Reader) -> None:
    reader.open("?run=reward-unit.parquet&lang=zh")
    for name, path in reader.menu():
        reader.open(f"{path}&step=31")
        title = reader.title()
        reader.page.reload()
        reader.settle()
        assert reader.title() == title
        assert {"run=reward-unit.parquet", "lang=zh"} <= set(reader.page.url.split("?")[1].split("&"))
        assert reader.troubles() == [], name


def test_a_finding_is_one_click_from_its_evidence(reader: Reader) -> None:
    reader.open("?run=reward-unit.parquet")
    reader.page.locator("[data-testid=stMainBlockContainer] [data-testid=stPageLink]:has-text('reward.std')").first.click()
    reader.page.wait_for_url("**/run?**")
    reader.settle()
    address = reader.page.url
    assert "metric=reward.std" in address
    assert "code=RLD402" in address
    assert reader.page.locator(".js-plotly-plot").count() == 2
    reader.page.reload()
    reader.settle()
    assert reader.page.url == address
    reader.page.go_back()
    reader.settle()
    assert reader.title().startswith("What is wrong")
    assert reader.troubles() == []


def test_run_and_language_stay_while_pages_change(reader: Reader) -> None:
    reader.open("?run=kl-sign.parquet")
    reader.page.locator("[data-testid=stSidebar]").get_by_text("中文").click()
    reader.page.wait_for_url("**lang=zh**")
    reader.settle()
    assert reader.title().startswith("出了什么问题")
    for name, path in reader.menu():
        assert "lang=zh" in path, name
        assert "run=kl-sign.parquet" in path, name
    reader.page.locator("[data-testid=stSidebar] [data-testid=stPageLink]").last.click()
    reader.page.wait_for_url("**/data?**")
    reader.settle()
    assert reader.title().startswith("数据可信吗")
    assert reader.troubles() == []


def test_the_browser_s_language_is_the_default(browser: Any, demo_app: str) -> None:
    context = browser.new_context(locale="zh-CN")
    reader = Reader(context.new_page(), demo_app)
    reader.open("?run=kl-sign.parquet")
    assert reader.title().startswith("出了什么问题")
    context.close()


def test_the_table_behind_a_chart_opens(reader: Reader) -> None:
    reader.open("run?run=kl-sign.parquet")
    reader.page.get_by_role("button", name="Table").first.click()
    reader.page.wait_for_selector("[data-testid=stDataFrame]")
    reader.settle()
    assert reader.troubles() == []


def test_charts_have_alternative_texts(reader: Reader) -> None:
    for path in ("?run=reward-unit.parquet", "run?run=reward-unit.parquet", "data?run=reward-unit.parquet"):
        reader.open(path)
        charts = reader.page.locator("[data-testid=stPlotlyChart]")
        assert charts.count() >= 1
        for chart in charts.all():
            assert chart.locator("xpath=descendant-or-self::*[@aria-label and string-length(@aria-label) > 20]").count() >= 1


WIDE = "e => [...e.children].map(one => [one.getBoundingClientRect().left, one.getBoundingClientRect().right])"
CUT = """() => [...document.querySelectorAll('[data-testid=stTable]')]
    .filter(one => one.querySelector('table').getBoundingClientRect().right > one.getBoundingClientRect().right + 1).length"""


@pytest.mark.parametrize(("width", "across"), [(1600, 3), (1280, 2), (620, 1)])
def test_findings_fill_the_card_of_a_cause_at_every_width(reader: Reader, width: int, across: int) -> None:
    reader.page.set_viewport_size({"width": width, "height": 900})
    reader.open("?run=reward-unit.parquet")
    left, right = reader.page.locator(".st-key-cards-findings").evaluate(
        "e => [e.getBoundingClientRect().left, e.getBoundingClientRect().right]"
    )
    cards = reader.page.locator(".st-key-cards-findings").evaluate(WIDE)
    assert len({start for start, _ in cards}) == across
    assert min(start for start, _ in cards) == pytest.approx(left, abs=1)
    assert cards[-1][1] == pytest.approx(right, abs=1)
    title = reader.page.locator("[data-testid=stMainBlockContainer] h2").first.bounding_box()
    header = reader.page.locator("[data-testid=stExpandSidebarButton]")
    if header.count():
        assert title["y"] >= header.bounding_box()["y"] + header.bounding_box()["height"]


@pytest.mark.parametrize("width", [1600, 1280, 620])
def test_tables_of_words_are_not_cut(reader: Reader, width: int) -> None:
    reader.page.set_viewport_size({"width": width, "height": 900})
    for path in ("compare?run=reward-unit.parquet&other=healthy.parquet", "data?run=reward-unit.parquet"):
        reader.open(path)
        assert reader.page.locator("[data-testid=stTable]").count() >= 2
        assert reader.page.evaluate(CUT) == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_link_to_evidence_shows_that_it_has_the_focus(browser: Any, demo_app: str, scheme: str) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 800}, locale="en-US", color_scheme=scheme)
    reader = Reader(context.new_page(), demo_app)
    reader.open("?run=stale-old-logprob.parquet")
    for _ in range(40):
        reader.page.keyboard.press("Tab")
        name, style, width = reader.page.evaluate(
            "() => { const e = document.activeElement, s = getComputedStyle(e);"
            " return [e.tagName === 'A' ? e.innerText : '', s.outlineStyle, s.outlineWidth]; }"
        )
        if "mismatch.first_k3" in name:
            break
    assert "mismatch.first_k3" in name
    assert (style, width) == ("solid", "2px")
    reader.page.keyboard.press("Enter")
    reader.page.wait_for_url("**/run?**metric=mismatch.first_k3**")
    context.close()


def test_the_picker_marks_the_run_that_is_shown_and_tells_the_order(browser: Any, tmp_path: Path) -> None:
    for name in ("healthy.parquet", "kl-sign.parquet"):
        shutil.copy(DEMO / name, tmp_path)
    with served(tmp_path, cwd=tmp_path) as base:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        reader = Reader(page, base)
        reader.open("?run=kl-sign.parquet")
        picker = page.locator("[data-testid=stSidebar] [role=combobox]")
        assert picker.input_value() == "✕ kl-sign.parquet"
        page.locator("[data-testid=stSidebar] [data-testid=stTooltipHoverTarget]").first.hover()
        page.wait_for_selector("text=Runs of a folder, newest first")
        assert page.locator("[data-testid=stSidebar] button[aria-label='Clear value']:visible").count() == 0
        page.close()


def test_a_base_path_and_a_port(browser: Any, tmp_path: Path) -> None:
    with served(DEMO / "kl-sign.parquet", "--base-path", "/proxy/rl", cwd=tmp_path) as base:
        assert base.endswith("/proxy/rl")
        page = browser.new_page()
        reader = Reader(page, f"{base}/")
        reader.open()
        for _, path in reader.menu()[:2]:
            reader.open(path)
            assert reader.troubles() == []
        page.close()


class Growing:
    """A run that grows by one step at a time, three times longer responses from some step on."""

    def __init__(self, folder: Path) -> None:
        self.recorder = Recorder(
            folder, info={"trainer": "custom", "algorithm": "grpo", "config": {"clip_low": 0.2, "clip_high": 0.2}}
        )
        self.random = np.random.default_rng(0)
        self.step = 0

    def grow(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.step += 1
            mask = np.ones((8, 12), bool)
            old = -self.random.random((8, 12)).astype(np.float32)
            self.recorder.log_batch(
                step=self.step, response_mask=mask, attention_mask=mask, old_logprob=old,
                logprob=old + self.random.normal(0, 0.02, (8, 12)).astype(np.float32),
                advantage=self.random.normal(size=(8, 12)).astype(np.float32), reward=self.random.random(8),
                group=np.repeat(["a", "b"], 4), uid=np.array([f"{self.step}-{n}" for n in range(8)]),
            )  # fmt: skip
            self.recorder.end_step(self.step)
        self.recorder.flush()


def test_a_live_run_grows_under_the_reader(browser: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = Growing(folder)
    run.grow(40)
    with served(folder, cwd=tmp_path) as base:
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        reader = Reader(page, base)
        reader.open("run")
        page.wait_for_selector("[data-testid=stSidebar] >> text=live")
        zoomed = page.evaluate("""() => {
            const chart = document.querySelector(".js-plotly-plot");
            const box = chart.querySelector(".xy .nsewdrag, .nsewdrag").getBoundingClientRect();
            return [box.x, box.y, box.width, box.height];
        }""")
        x, y, width, height = zoomed
        page.mouse.move(x + 0.4 * width, y + 0.5 * height)
        page.mouse.down()
        page.mouse.move(x + 0.8 * width, y + 0.5 * height, steps=6)
        page.mouse.up()
        page.wait_for_timeout(500)
        before = page.evaluate("() => document.querySelector('.js-plotly-plot')._fullLayout.xaxis.range")
        assert before[0] > 5
        waited = []
        for _ in range(3):
            run.grow()
            begun = time.monotonic()
            page.wait_for_function(
                "step => document.querySelector('.js-plotly-plot')?._fullData?.[0]?.x?.slice(-1)[0] === step",
                arg=run.step,
                timeout=60_000,
            )
            waited.append(time.monotonic() - begun)
            page.wait_for_selector(f"[data-testid=stSidebar] >> text=step {run.step},")
        after = page.evaluate("() => document.querySelector('.js-plotly-plot')._fullLayout.xaxis.range")
        assert after == before
        assert min(waited) < 5.0, waited
        run.recorder.close()
        page.wait_for_selector("[data-testid=stSidebar] >> text=complete", timeout=60_000)
        assert reader.troubles() == []
        page.close()


def test_a_hidden_tab_asks_for_nothing(browser: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = Growing(folder)
    run.grow(3)
    with served(folder, cwd=tmp_path) as base:
        page = browser.new_page()
        sent: list[float] = []
        page.on("websocket", lambda socket: socket.on("framesent", lambda _: sent.append(time.monotonic())))
        reader = Reader(page, base)
        reader.open()
        page.wait_for_selector("[data-testid=stSidebar] >> text=live")
        page.wait_for_timeout(5_000)
        assert len(sent) >= 2
        hide = "hidden => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});"
        page.evaluate(hide + " document.dispatchEvent(new Event('visibilitychange')); }", arg=True)
        page.wait_for_timeout(4_000)
        count = len(sent)
        page.wait_for_timeout(6_000)
        assert len(sent) == count
        page.evaluate(hide + " document.dispatchEvent(new Event('visibilitychange')); }", arg=False)
        page.wait_for_timeout(4_000)
        assert len(sent) > count
        page.close()
    run.recorder.close()
