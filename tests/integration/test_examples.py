"""The example of a rule makes a run that the rule finds something in, by the command that stands below it."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

import pytest

import rl_doctor.examples
from rl_doctor import check, open_run
from rl_doctor.examples import example_of, written_by
from rl_doctor.rules.registry import rules

BY_NAME = {rule.name: rule for rule in rules().values()}
EXAMPLES = sorted(path.stem for path in Path(rl_doctor.examples.__file__).parent.glob("*.py") if path.stem != "__init__")


def test_every_rule_has_an_example() -> None:
    assert sorted(name.replace("-", "_") for name in BY_NAME) == EXAMPLES


@pytest.mark.parametrize("name", BY_NAME)
def test_an_example_is_short_and_says_what_is_wrong(name: str) -> None:
    program = example_of(name)
    assert program is not None
    said = ast.get_docstring(ast.parse(program))
    assert said is not None
    assert re.fullmatch(r"A (log|recording|run file)\b[^\n]*\.", said), said
    assert len(program.splitlines()) <= 24


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_rule_finds_what_the_example_shows(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = BY_NAME[example.replace("_", "-")]
    program = example_of(rule.name)
    assert program is not None
    monkeypatch.chdir(tmp_path)
    runpy.run_module(f"rl_doctor.examples.{example}")
    (result,) = check(open_run(written_by(program)), [rule]).results
    assert result.outcome == "found", (result.outcome, result.detail, result.missing)
