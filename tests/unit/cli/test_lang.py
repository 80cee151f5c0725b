"""The language of the text report: an option, the environment, and what the terminal can print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rl_doctor.cli.app import app

RUN = str(Path(__file__).resolve().parents[3] / "rl_doctor" / "demo" / "truncated.trainer_state.json")


def printed(*words: str, charset: str = "utf-8", **environment: str) -> str:
    done = CliRunner(charset=charset).invoke(app, ["check", RUN, *words], env=environment)
    assert done.exit_code in {0, 1}, done.output
    return done.stdout


def test_the_option_sets_the_language() -> None:
    assert "退出码" in printed("--lang", "zh")
    assert "; exit " in printed("--lang", "en")
    assert "; exit " in printed()


@pytest.mark.parametrize("value", ["zh", "zh_CN.UTF-8", "ZH-cn"])
def test_the_environment_sets_it(value: str) -> None:
    assert "退出码" in printed(RL_DOCTOR_LANG=value)
    assert "; exit " in printed("--lang", "en", RL_DOCTOR_LANG=value)


@pytest.mark.parametrize("value", ["", "en", "fr_FR.UTF-8"])
def test_other_languages_are_english(value: str) -> None:
    assert "; exit " in printed(RL_DOCTOR_LANG=value)


def test_json_is_english() -> None:
    english, chinese = (json.loads(printed("--output-format", "json", "--lang", lang)) for lang in ("en", "zh"))
    assert english["results"]
    assert english["results"] == chinese["results"]


def test_a_terminal_without_chinese_gets_english_and_a_file_chinese(tmp_path: Path) -> None:
    shown = printed("--lang", "zh", "--output", f"text={tmp_path}/report.txt", charset="ascii")
    assert "; exit " in shown
    assert "退出码" in (tmp_path / "report.txt").read_text("utf-8")


def test_an_unknown_language_is_refused() -> None:
    assert CliRunner().invoke(app, ["check", RUN, "--lang", "fr"]).exit_code == 2
