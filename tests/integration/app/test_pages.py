"""The whole app without a browser: every page there is, on the demo runs and on runs that cannot be shown."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("streamlit")
from streamlit.testing.v1 import AppTest
from streamlit.util import calc_hash

import rl_doctor.app
import rl_doctor.demo
from rl_doctor.app.main import ORDER, modules_of_pages
from rl_doctor.cli.judging import States, judge
from rl_doctor.i18n.speaker import Speaker, messages
from rl_doctor.rules.registry import rules

SCRIPT = Path(rl_doctor.app.__file__).parent / "script" / "start.py"
DEMO = Path(rl_doctor.demo.__file__).parent
RUNS = [entry["name"] for entry in json.loads((DEMO / "index.json").read_text())]
Open = Callable[..., AppTest]


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Open:
    """Opens a page of the app, started with some paths."""
    monkeypatch.setenv("RL_DOCTOR_TRACEBACK", "1")

    def opened(*paths: Path, page: str = ORDER[0], **query: str) -> AppTest:
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, paths)])
        test = AppTest.from_file(str(SCRIPT), default_timeout=120)
        test.query_params.update(query)
        test._page_hash = calc_hash("" if page == ORDER[0] else page)
        return test.run()

    return opened


def texts(test: AppTest) -> str:
    return "\n".join(str(element.value) for element in (*test.main.markdown, *test.main.title, *test.main.caption))


def clean(test: AppTest) -> AppTest:
    assert not [each.value for each in test.exception]
    assert not [each.value for each in test.error]
    return test


@pytest.mark.parametrize("name", RUNS)
def test_every_page_of_every_demo_run_in_both_languages(app: Open, name: str) -> None:
    for page in modules_of_pages():
        shown = {lang: texts(clean(app(DEMO / name, page=page, lang=lang))) for lang in ("en", "zh")}
        assert all(shown.values()), page
        assert shown["en"] != shown["zh"], page
        assert ("Not judged, and what would enable it" in shown["en"]) is (page == ORDER[0])


def test_every_page_has_a_name_in_the_menu() -> None:
    assert list(modules_of_pages()) == [name for name in ORDER if name in modules_of_pages()]
    for name, module in modules_of_pages().items():
        assert name == module.NAME
        assert f"app.page_{name}" in messages()


def test_the_first_page_tells_the_report(app: Open) -> None:
    shown = texts(clean(app(DEMO / "stale-old-logprob.parquet")))
    assert "errors found" in shown
    assert "RLD101 stale-old-logprob" in shown
    assert "old\\_logprob is computed with outdated weights" in shown


def test_a_healthy_run_is_told_so(app: Open) -> None:
    shown = texts(clean(app(DEMO / "healthy.parquet")))
    assert "errors 0 · warnings 0" in shown
    assert "errors found" not in shown


def test_a_folder_is_picked_from_and_the_choice_stands_in_the_address(app: Open) -> None:
    test = app(DEMO, run="reward-unit.parquet", step="31", metric="reward.mean")
    assert test.sidebar.selectbox(key="run").value == "reward-unit.parquet"
    clean(test.sidebar.selectbox(key="run").select("kl-sign.parquet").run())
    assert test.query_params["run"] == "kl-sign.parquet"
    assert "step" not in test.query_params
    assert test.query_params["metric"] == "reward.mean"


def test_a_metric_is_chosen_into_the_address(app: Open) -> None:
    test = clean(app(DEMO / "reward-unit.parquet", page="run", code="RLD401", step="31"))
    clean(test.main.selectbox(key="metric").select("policy.entropy").run())
    assert test.query_params["metric"] == "policy.entropy"
    assert "code" not in test.query_params
    assert clean(app(DEMO / "reward-unit.parquet", page="run", metric="reward.mean", code="RLD401")).main.selectbox(
        key="metric"
    ).value == "reward.mean"  # fmt: skip


@pytest.mark.parametrize(
    "query", [{"metric": "no.such"}, {"code": "RLD999"}, {"cause": "none"}, {"step": "99999"}, {"step": "x"}, {"lang": "xx"}]
)
def test_an_address_that_leads_nowhere_breaks_nothing(app: Open, query: dict[str, str]) -> None:
    for page in modules_of_pages():
        clean(app(DEMO / "reward-unit.parquet", page=page, **query))


def test_the_languages(app: Open) -> None:
    test = clean(app(DEMO / "kl-sign.parquet", lang="zh"))
    assert "结论" in texts(test)
    assert test.sidebar.segmented_control(key="lang").value == "zh"


def test_a_run_that_is_not_there(app: Open) -> None:
    test = app(DEMO, run="no-such-run")
    assert "no-such-run" in test.warning[0].value.replace("\\", "")
    assert not test.exception


def test_a_run_that_was_deleted_is_told_so_and_what_was_read_stays(app: Open, tmp_path: Path) -> None:
    for name in ("a.parquet", "b.parquet"):
        shutil.copy(DEMO / "kl-sign.parquet", tmp_path / name)
    test = clean(app(tmp_path, run="a.parquet"))
    (tmp_path / "a.parquet").unlink()
    time.sleep(0.6)
    test.run()
    assert not test.exception
    assert "This run is gone" in test.error[0].value
    assert "a.parquet" in test.error[0].value.replace("\\", "")
    assert "errors found" in texts(test)
    assert ":red-badge[:material/delete: gone]" in test.sidebar.markdown[-1].value
    assert test.sidebar.selectbox(key="run").value is None
    clean(test.sidebar.selectbox(key="run").select("b.parquet").run())
    assert test.query_params["run"] == "b.parquet"


def test_the_run_of_an_address_without_one_stays_the_same_when_it_is_deleted(app: Open, tmp_path: Path) -> None:
    for name in ("a.parquet", "b.parquet"):
        shutil.copy(DEMO / "kl-sign.parquet", tmp_path / name)
    test = clean(app(tmp_path))
    shown = test.sidebar.selectbox(key="run").value
    assert shown == "b.parquet"
    (tmp_path / shown).unlink()
    time.sleep(0.6)
    test.run()
    assert shown in test.error[0].value.replace("\\", "")


def test_an_address_of_no_run_chooses_none_and_the_choice_counts(app: Open, tmp_path: Path) -> None:
    shutil.copy(DEMO / "kl-sign.parquet", tmp_path / "b.parquet")
    test = app(tmp_path, run="gone")
    assert "gone" in test.warning[0].value
    assert test.sidebar.selectbox(key="run").value is None
    clean(test.sidebar.selectbox(key="run").select("b.parquet").run())
    assert test.query_params["run"] == "b.parquet"


def test_an_empty_folder_is_waited_for_and_what_comes_is_shown(app: Open, tmp_path: Path) -> None:
    for page in modules_of_pages():
        test = app(tmp_path, page=page)
        assert not test.exception
        assert "Waiting for a run in" in test.info[0].value
    shutil.copy(DEMO / "kl-sign.parquet", tmp_path)
    time.sleep(0.6)
    assert "errors found" in texts(clean(app(tmp_path)))


def test_the_picker_tells_the_verdict_of_what_was_looked_at(app: Open, tmp_path: Path) -> None:
    for hours, name in enumerate(("a.parquet", "b.parquet", "c.parquet")):
        shutil.copy(DEMO / "kl-sign.parquet", tmp_path / name)
        os.utime(tmp_path / name, (time.time() - 3_600 * hours,) * 2)
    judge(tmp_path / "c.parquet", tuple(rules().values()), states=States.used)
    test = clean(app(tmp_path, run="a.parquet")).run()
    picker, told = test.sidebar.selectbox(key="run"), test.sidebar.caption[0].value
    assert picker.options == ["✕ a.parquet", "b.parquet", "✕ c.parquet"]
    assert "✕ errors found · a\\.parquet" in told
    assert "✕ errors found · c\\.parquet" in told
    assert "b\\.parquet" not in told
    assert picker.help == Speaker().say("app.run_order")


def test_a_folder_opens_on_the_worst_known_and_looking_at_a_run_makes_it_known(app: Open, tmp_path: Path) -> None:
    for hours, name in enumerate(("healthy.parquet", "kl-sign.parquet")):
        shutil.copy(DEMO / name, tmp_path)
        os.utime(tmp_path / name, (time.time() - 3_600 * hours,) * 2)
    assert clean(app(tmp_path)).sidebar.selectbox(key="run").value == "healthy.parquet"
    clean(app(tmp_path, run="kl-sign.parquet"))
    assert clean(app(tmp_path)).sidebar.selectbox(key="run").value == "kl-sign.parquet"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "cannot be read"),
        (b"PAR1 not really", "cannot be read"),
        (b'{"step": 1, "loss": NaN}\n', "Nothing to judge yet"),
        (b"words without numbers\n", "cannot be read"),
    ],
    ids=["empty", "broken", "nan", "text"],
)
def test_what_cannot_be_read_is_said_in_one_line_on_every_page(app: Open, tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    for page in modules_of_pages():
        test = app(path, page=page)
        assert not test.exception
        said = [*test.error, *test.info]
        assert len(said) == 1
        assert says in said[0].value
        assert "run.jsonl" in said[0].value.replace("\\", "")


def test_a_run_that_has_nothing_yet_is_waited_for(app: Open, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_text('{"schema_version": 1, "status": "running"}')
    test = app(folder)
    assert not test.exception
    assert "Nothing to judge yet" in test.info[0].value


def test_a_log_alone(app: Open) -> None:
    for page in modules_of_pages():
        test = app(DEMO / "truncated.trainer_state.json", page=page)
        assert not test.exception, page
        assert not test.error, page


def test_the_speaker_has_all_levels() -> None:
    for level in ("error", "warning", "info", "passed", "inconclusive", "nothing", "crashed"):
        assert Speaker("zh").say(f"diagnosis.level_{level}")
