"""Distributions, Groups, Compare and Recompute without a browser: what they say, and that widgets write the address."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("streamlit")
from streamlit.testing.v1 import AppTest
from streamlit.util import calc_hash

import rl_doctor.app
import rl_doctor.demo
from rl_doctor.app.shown import plain

SCRIPT = Path(rl_doctor.app.__file__).parent / "script" / "start.py"
DEMO = Path(rl_doctor.demo.__file__).parent
LOG = DEMO / "truncated.trainer_state.json"
PAGES = ("distributions", "groups", "compare", "recompute")
Open = Callable[..., AppTest]


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Open:
    def opened(*paths: Path, page: str, **query: str) -> AppTest:
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, paths)])
        test = AppTest.from_file(str(SCRIPT), default_timeout=120)
        test.query_params.update(query)
        test._page_hash = calc_hash(page)
        return clean(test.run())

    return opened


def clean(test: AppTest) -> AppTest:
    assert not [each.value for each in test.exception]
    assert not [each.value for each in test.error]
    return test


def said(test: AppTest) -> str:
    kinds = (test.main.markdown, test.main.caption, test.main.info, test.main.warning, test.main.success, test.main.subheader)
    return "\n".join(str(element.value).replace("\\", "") for kind in kinds for element in kind)


def recurring(folder: Path, groups: int = 90) -> Path:
    """A run whose prompts come back, one of them with a name that is markup."""
    rows = [
        {
            "step": step, "uid": f"{step}-{item}", "group": f"<b>{(step * 3 + item // 4) % groups}</b>",
            "sequence": 12 * step + item, "reward": float((step + item * item) % 3 == 0),
        }
        for step in range(1, 91)
        for item in range(12)
    ]  # fmt: skip
    path = folder / "recurring.parquet"
    pq.write_table(pa.Table.from_pylist(rows).replace_schema_metadata({"rl_doctor": json.dumps({"trainer": "verl"})}), path)
    return path


def test_distributions_answer_and_the_quantity_stands_in_the_address(app: Open) -> None:
    test = app(DEMO / "stale-old-logprob.parquet", page="distributions")
    (answers,) = test.main.table
    told = dict(zip(answers.value["Quantity"], answers.value["shift or tail"], strict=True))
    assert told["ratio"] == "upper tail grows, lower tail grows"
    assert told["KL to the reference"] == "shifts up"
    clean(test.main.segmented_control(key="distributions-quantity").set_value("entropy").run())
    assert test.query_params["metric"] == "distribution.entropy"
    assert "ln" not in said(test)
    assert "Entropy at each token" in said(test)
    clean(test.main.select_slider(key="distributions-step").set_value("7").run())
    assert test.query_params["step"] == "7"
    again = app(DEMO / "stale-old-logprob.parquet", page="distributions", metric="ref.kl_k3", step="9")
    assert again.main.segmented_control(key="distributions-quantity").value == "reference"
    assert again.main.select_slider(key="distributions-step").value == "9"


def test_a_quantity_that_is_not_known_says_what_was_not_recorded(app: Open) -> None:
    test = app(DEMO / "truncated.parquet", page="distributions")
    told = dict(zip(test.main.table[0].value["Quantity"], test.main.table[0].value["shift or tail"], strict=True))
    assert told["log-ratio to rollout"] == "Not known: rollout_logprob was not recorded."


def test_groups_that_come_back_are_ordered_and_cut_into_parts(app: Open, tmp_path: Path) -> None:
    path = recurring(tmp_path)
    test = app(path, page="groups")
    assert "Right means reward = 1" in said(test)
    assert "Groups seen again" in said(test)
    clean(test.main.selectbox(key="groups-part").set_value(3).run())
    assert test.query_params["part"] == "3"
    clean(test.main.segmented_control(key="groups-by").set_value("lowest").run())
    assert (test.query_params["by"], "part" in test.query_params) == ("lowest", False)
    clean(test.main.number_input(key="groups-step").set_value(12).run())
    assert test.query_params["step"] == "12"
    assert "Groups of step 12" in said(test)
    shown = app(path, page="groups", group="<b>88</b>", by="often")
    assert "<b>88</b>" not in said(shown)


def test_groups_of_a_run_with_ranks(app: Open) -> None:
    test = app(DEMO / "truncated.parquet", page="groups", lang="zh")
    assert "很少有组再次出现" in said(test)
    assert "13.3%" in said(test)


def test_recompute_leads_with_what_differs(app: Open) -> None:
    test = app(DEMO / "logged-kl.parquet", page="recompute")
    assert test.main.selectbox(key="recompute-name").value == "kl"
    assert "1 of 20 recomputed numbers differ" in said(test)
    assert "over the padded width" in said(test)
    assert "equals the log at 14 of 14 steps" in said(test)
    clean(test.main.selectbox(key="recompute-name").set_value("entropy").run())
    assert test.query_params["metric"] == "entropy"
    assert "What fits" not in said(test)
    right = app(DEMO / "healthy.parquet", page="recompute")
    assert "All 20 numbers that could be recomputed equal the log" in said(right)


def test_compare_tells_the_first_parting_beside_the_settings(app: Open) -> None:
    runs = [DEMO / name for name in ("healthy.parquet", "kl-sign.parquet", "stale-old-logprob.parquet")]
    test = app(*runs, page="compare", other="kl-sign.parquet")
    assert "**ref.kl_k3** leaves the band of kl-sign.parquet at step 10" in said(test)
    settings = next(table.value for table in test.main.table if "setting" in table.value)
    told = dict(zip(settings["setting"], settings[plain("kl-sign.parquet")], strict=True))
    assert told[plain("config.kl_coef")] == plain("0.5")
    clean(test.main.segmented_control(key="compare-by").set_value("tokens").run())
    assert test.query_params["by"] == "tokens"
    assert "interpolated" in said(test)
    clean(test.main.selectbox(key="compare-metric").set_value("adv.std").run())
    assert test.query_params["metric"] == "adv.std"
    clean(test.main.multiselect(key="compare-others").set_value(["kl-sign.parquet", "stale-old-logprob.parquet"]).run())
    assert test.query_params["other"] == "kl-sign.parquet,stale-old-logprob.parquet"
    assert "mismatch.abs" in said(test)


@pytest.mark.parametrize("other", ["nope", "healthy.parquet"])
def test_compare_says_that_a_run_in_the_address_is_no_other_one(app: Open, other: str) -> None:
    test = app(*(DEMO / name for name in ("healthy.parquet", "kl-sign.parquet")), page="compare", other=other)
    assert f"No other run here is called {plain(other)}" in test.main.warning[0].value


def test_compare_with_a_run_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_bytes(b"words\n")
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(DEMO / "healthy.parquet"), str(broken)])
    test = AppTest.from_file(str(SCRIPT), default_timeout=120)
    test._page_hash = calc_hash("compare")
    test.run()
    assert not test.exception
    assert "broken.jsonl" in test.error[0].value.replace("\\", "")


def test_one_run_alone_is_told_how_to_compare(app: Open) -> None:
    assert "two runs or more" in said(app(DEMO / "healthy.parquet", page="compare"))


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_log_without_rows(app: Open, page: str, lang: str) -> None:
    test = app(LOG, DEMO / "healthy.parquet", page=page, lang=lang)
    assert said(test)
    if page != "compare":
        assert test.main.info


@pytest.mark.parametrize("page", PAGES)
def test_a_run_of_one_step(app: Open, tmp_path: Path, page: str) -> None:
    path = tmp_path / "one.parquet"
    rows = [{"step": 1, "group": "a", "reward": 1.0, "uid": str(i), "logprob": [-0.5], "old_logprob": [-0.4]} for i in range(2)]
    pq.write_table(pa.Table.from_pylist(rows), path)
    assert said(app(path, page=page))
