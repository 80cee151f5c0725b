"""The page that lists every formula with its source, from the docstrings of the functions."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from rl_doctor.analyzer import formulas

_ARGUMENTS = ("\nArgs:", "\nReturns:", "\nRaises:")


def modules() -> Iterator[ModuleType]:
    """The modules with formulas, by name."""
    for found in sorted(pkgutil.iter_modules(formulas.__path__), key=lambda one: one.name):
        yield importlib.import_module(f"{formulas.__name__}.{found.name}")


def functions(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """The public functions that a module defines, in its order."""
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    }


def told(function: Callable[..., Any]) -> tuple[str, str]:
    """What a function computes, and its source, each on one line."""
    text = inspect.getdoc(function) or ""
    for heading in _ARGUMENTS:
        text = text.partition(heading)[0]
    formula, _, source = _line(text).partition("Source: ")
    return formula.strip(), source.strip()


def _line(text: str) -> str:
    return " ".join(text.split()).replace("``", "`")


def lines() -> Iterator[str]:
    """The page as Markdown, below its heading: a table for each module."""
    yield (
        "In float64 and natural logarithms, over flat arrays of tokens or sequences. Each is held against loops over numbers of "
        "50 digits, to 1e-12 of the sum of its absolute terms. Losses are what is minimised."
    )
    for module in modules():
        yield from ("", f"## {module.__name__.rpartition('.')[2]}", "", _line(module.__doc__ or ""), "")
        yield from ("| function | formula | source |", "| --- | --- | --- |")
        for name, function in functions(module).items():
            cells = (f"`{name}`", *told(function))
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
