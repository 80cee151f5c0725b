"""The pages of responses and tokens, run without a browser on demo runs and on one with texts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from rl_doctor.app.link import Link, read
from rl_doctor.errors import InputError
from rl_doctor.schema import RunInfo
from rl_doctor.store.layout import PartName
from rl_doctor.store.thinning import thin_part
from rl_doctor.store.writer import RunWriter
from tests.integration.app.one_page import followed
from tests.integration.app.written import LONG, SCRIPT, STEPS, VOCABULARY, write

streamlit = pytest.importorskip("streamlit")
testing = pytest.importorskip("streamlit.testing.v1")


DEMOS = sorted((Path(__file__).parents[3] / "rl_doctor" / "demo").glob("*.parquet"))


def script(**values):
    from tests.integration.app.one_page import show

    show(**values)


def page(name: str, path: Path, link: Link | None = None, language: str = "en", texts: tuple[str, ...] = ()) -> Any:
    values = {
        "module": f"rl_doctor.app.pages.{name}_page", "path": path, "link": link or Link(), "language": language, "texts": texts,
    }  # fmt: skip
    shown = testing.AppTest.from_function(script, kwargs=values, default_timeout=60)
    shown.run()
    assert not shown.exception, shown.exception[0].stack_trace
    return shown


def said(shown: Any) -> str:
    kinds = (shown.markdown, shown.caption, shown.info, shown.warning, shown.text, shown.subheader, shown.title)
    return "\n".join(item.value for kind in kinds for item in kind)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("texts") / "run")


@pytest.mark.parametrize("name", ["rollouts", "tokens"])
@pytest.mark.parametrize("path", DEMOS, ids=lambda path: path.stem)
def test_every_demo_run_and_every_finding_of_it(name: str, path: Path) -> None:
    codes = [None, *dict.fromkeys(finding.code for finding in followed(path).opened.report.findings)]
    for code in codes:
        shown = page(name, path, Link(code=code))
        assert shown.markdown
        if followed(path).opened.run.steps and code is not None:
            assert code in said(shown)


@pytest.mark.parametrize(("name", "words"), [("rollouts", "值得查看的回复"), ("tokens", "着色依据")])
def test_chinese(name: str, words: str, texts: Path) -> None:
    shown = page(name, texts, Link(step=2), "zh")
    labels = [item.label for kind in (shown.selectbox, shown.get("button_group")) for item in kind]
    assert words in said(shown) or words in labels
    assert "reward" not in " ".join(item.value for item in shown.caption)


def test_texts_of_responses_are_texts(texts: Path) -> None:
    shown = page("rollouts", texts, Link(step=2))
    assert any(SCRIPT in item.value for item in shown.text)
    assert not any("<script" in item.value for kind in (shown.markdown, shown.caption) for item in kind)


def test_what_is_chosen_goes_into_the_address(texts: Path) -> None:
    shown = page("tokens", texts, Link(step=2))
    shown.selectbox(key="tokens-step").set_value(STEPS).run()
    assert shown.query_params["step"] == str(STEPS)
    sequence = shown.selectbox(key="tokens-sequence").options[1]
    shown.selectbox(key="tokens-sequence").select(sequence).run()
    assert read(dict(shown.query_params), "tokens").sequence is not None
    assert not shown.exception
    shown = page("rollouts", texts, Link(step=2))
    shown.selectbox(key="rollouts-step").set_value(1).run()
    assert shown.query_params["step"] == "1"
    assert not shown.exception


def test_long_responses_come_in_pages(texts: Path) -> None:
    for position, words in ((0, f"Tokens 0 to 3999 of {LONG}"), (LONG - 1, f"Tokens 8000 to 8999 of {LONG}")):
        assert words in said(page("tokens", texts, Link(step=STEPS, position=position)))


def test_a_sequence_that_is_not_there(texts: Path) -> None:
    assert "There is no sequence 7 in this run" in said(page("tokens", texts, Link(sequence=7)))
    assert "There is no sequence 7 in this run" in said(page("rollouts", texts, Link(sequence=7)))
    assert "No response of step -5 is recorded; shown is one of step" in said(page("tokens", texts, Link(step=-5)))


def test_left_out_tokens_are_told(tmp_path: Path) -> None:
    folder = write(tmp_path / "run")
    thin_part(folder, PartName(1, 0, 0, "sequences"), lambda step: step != 1)
    assert "were left out to save space (step 1)" in said(page("tokens", folder, Link(step=1)))
    assert "left out to save space" in said(page("rollouts", folder, Link(step=1)))
    assert "left out to save space" not in said(page("tokens", folder, Link(step=2)))


@pytest.mark.parametrize("name", ["rollouts", "tokens"])
def test_a_log_has_no_rows(name: str, tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", RunInfo(trainer="custom", algorithm="grpo"))
    writer.write_metrics([{"step": step, "name": "reward", "value": 0.5} for step in range(1, 30)])
    writer.close()
    assert "no recorded rows" in said(page(name, tmp_path / "run"))


@pytest.mark.parametrize("name", ["rollouts", "tokens"])
def test_a_part_that_was_damaged_meanwhile_is_one_line(name: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "run")
    followed(folder).opened  # noqa: B018 - it is read while it is whole
    path = folder / str(PartName(1, 0, 1, "tokens"))
    path.write_bytes(path.read_bytes()[:-9])
    values = {
        "module": f"rl_doctor.app.pages.{name}_page", "path": folder, "link": Link(step=2), "language": "en", "texts": (),
    }  # fmt: skip
    shown = testing.AppTest.from_function(script, kwargs=values, default_timeout=60).run()
    assert InputError.__name__ in shown.exception[0].stack_trace[-1] or "cut short" in shown.exception[0].message
    assert "\n" not in shown.exception[0].message.strip()


def test_a_tokenizer_gives_words(texts: Path) -> None:
    assert "Token ids;" not in said(page("tokens", texts, Link(step=2), texts=VOCABULARY))
    assert "Token ids;" in said(page("tokens", texts, Link(step=2)))
    assert "streamlit" in sys.modules
