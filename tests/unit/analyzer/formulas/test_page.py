"""The page of formulas: every function with what it computes and where that is from."""

from __future__ import annotations

import pytest

from rl_doctor.analyzer import formulas_page
from rl_doctor.analyzer.formulas import advantage


def test_every_formula_has_a_line_with_its_source() -> None:
    page = "\n".join(formulas_page.lines())
    names = [name for module in formulas_page.modules() for name in formulas_page.functions(module)]
    assert len(names) == len(set(names)) > 100
    for module in formulas_page.modules():
        assert module.__doc__
        for name, function in formulas_page.functions(module).items():
            formula, source = formulas_page.told(function)
            assert formula, name
            assert source, name
            assert f"| `{formulas_page.call(name, function)}` | {formulas_page.given(function)} | " in page
            assert formulas_page.given(function), name
        package, _, name = module.__name__.rpartition(".")
        assert f"`from {package} import {name}`" in page


def test_the_example_runs_and_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    exec(formulas_page.EXAMPLE, {})  # noqa: S102 - the page's own example
    assert capsys.readouterr().out == formulas_page.EXAMPLE.rpartition("# ")[2]
    assert formulas_page.EXAMPLE in "\n".join(formulas_page.lines())


def test_a_call_has_shapes_and_defaults() -> None:
    assert formulas_page.call("grpo", advantage.grpo) == (
        "grpo(rewards [sequences], labels [sequences], *, ddof = 1, eps = 1e-06, singles = 'raw')"
    )


def test_arguments_are_left_out() -> None:
    assert "Args:" not in "\n".join(formulas_page.lines())
