"""A plain call of the check means the same whether typer reads it or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rl_doctor.cli import check, main, plain
from rl_doctor.cli.app import app
from rl_doctor.cli.judging import FailLevel, Format, States

PLAIN = [
    ["a"],
    ["a", "b/c.json", "--join"],
    ["--fail-on", "never", "a"],
    ["a", "--fail-on=warning", "--fail-on", "error"],
    ["a", "--select", "RLD1,kl-spike", "b", "--select=RLD2", "--ignore", "RLD101", "--require", "RLD2"],
    ["a", "--output-format", "json", "--output", "junit=x.xml", "--output=json=y.json"],
    ["a", "--first-steps", "2", "--first-steps=10"],
    ["a", "--lang", "en", "--lang=zh"],
    ["a", "--no-cache"],
    ["a=b", "wandb://entity/project/run", "log.sqlite#run 1", "ä b"],
]
OTHER = [
    [],
    ["--help"],
    ["a", "-h"],
    ["--", "a"],
    ["a", "--fail-on", "info"],
    ["a", "--fail-on"],
    ["a", "--output-format", "TEXT"],
    ["a", "--sel", "RLD1"],
    ["a", "--select", ""],
    ["a", "--select", "--ignore"],
    ["a", "--first-steps", "0"],
    ["a", "--first-steps", "two"],
    ["a", "--join=yes"],
    ["a", ""],
    ["-"],
    ["--join"],
]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    made: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def noted(*given: Any, **named: Any) -> int:
        made.append((given, named))
        return 0

    for module in (check, main):
        monkeypatch.setattr(module, "check_runs", noted)
    return made


@pytest.mark.parametrize("words", PLAIN, ids=" ".join)
def test_it_means_what_typer_reads(calls: list[tuple[tuple[Any, ...], dict[str, Any]]], words: list[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["check", *words])
    with pytest.raises(SystemExit):
        app(["check", *words])
    (_, plainly), (by_typer, _) = calls
    names = ("runs", "select", "ignore", "require", "fail_on", "output_format", "output", "join", "first_steps", "lang", "states")
    unset = {
        "fail_on": FailLevel.error,
        "output_format": Format.text,
        "join": False,
        "first_steps": None,
        "lang": None,
        "states": States.used,
    }
    assert [plainly.get(name, unset.get(name, ())) for name in names] == list(by_typer)
    assert all(isinstance(path, Path) for path in plainly["runs"])


@pytest.mark.parametrize("words", OTHER, ids=" ".join)
def test_typer_reads_the_rest(words: list[str]) -> None:
    assert plain.plain_check(["check", *words]) is None


def test_typer_reads_other_verbs_and_patterns_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plain.plain_check(["rules"]) is None
    assert plain.plain_check([]) is None
    monkeypatch.setattr(plain.os, "name", "nt")
    assert plain.plain_check(["check", "*.json"]) is None


def test_an_interrupted_check_ends_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(**_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "check_runs", interrupted)
    with pytest.raises(SystemExit) as ended:
        main.main(["check", "a"])
    assert ended.value.code == 130
    assert capsys.readouterr() == ("", "")
