"""The page of formulas: every function with what it computes and where that is from."""

from __future__ import annotations

from rl_doctor.analyzer import formulas_page


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
            assert f"| `{name}` | " in page


def test_arguments_are_left_out() -> None:
    assert "Args:" not in "\n".join(formulas_page.lines())
