"""The page that lists every formula with its arguments, shapes and source, from the docstrings of the functions."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final

from rl_doctor.analyzer import formulas
from rl_doctor.analyzer.arguments import shapes

_ARGUMENTS: Final = ("\nArgs:", "\nReturns:", "\nRaises:")
_GIVEN: Final = re.compile(r"(float64|int64|bool)? ?``(\[[a-z0-9 +,]+\])``")
_INTRO: Final = """\
What metrics and the numbers of trainers are computed with, as functions of numpy arrays. They may be called from own code, from \
the modules named below; changes of a name, an argument or a result are told in the changelog.

Arrays are flat: the tokens of all sequences one after the other, `[n]`, or a value for each sequence, `[sequences]`. `splits`, \
`[sequences + 1]`, says which tokens are whose: sequence i has the tokens from `splits[i]` up to, without, `splits[i + 1]`. It \
begins with 0 and ends with n, as the running sum of the lengths does; a sequence may be empty. `labels`, `[sequences]`, has the \
same value, of any type that can be sorted, for the responses to the same prompt. A mask is of true and false.

All is computed in float64, whatever the type of what is given (lists too), in natural logarithms; losses are what is minimised. \
An argument of another shape or length, splits that are no offsets, and words that a function does not know raise a `ValueError` \
of one line that names the argument. NaN in gives NaN out. Each function is held against loops over numbers of 50 digits, to \
1e-12 of the sum of its absolute terms.
"""
EXAMPLE: Final = """\
import numpy as np

from rl_doctor.analyzer.formulas import advantage, aggregation, policy_loss, segments

lengths = np.array([3, 2])
splits = np.append(0, np.cumsum(lengths))  # [0, 3, 5]
old = np.array([-0.9, -0.2, -0.4, -1.3, -0.1])
new = np.array([-0.7, -0.2, -0.5, -1.6, -0.1])
advantages = advantage.grpo([1.0, 0.0], ["a", "a"])  # one for each response
losses = policy_loss.surrogate_loss(new - old, segments.spread(advantages, splits), low=0.2, high=0.2)
loss = aggregation.aggregated(segments.segment_sums(losses, splits), aggregation.token_mean(lengths))
print(f"{loss:.6f}")  # -0.184532
"""


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


def call(name: str, function: Callable[..., Any]) -> str:
    """How a function is called: its arguments with the shapes of arrays and the defaults of the others."""
    stated, told_star, parts = shapes(inspect.getdoc(function) or ""), False, []
    for argument, one in inspect.signature(function).parameters.items():
        if one.kind is inspect.Parameter.KEYWORD_ONLY and not told_star:
            parts.append("*")
            told_star = True
        shape = f" [{', '.join(stated[argument])}]" if "any" not in stated.get(argument, ("any",)) else ""
        parts.append(f"{argument}{shape}" + ("" if one.default is inspect.Parameter.empty else f" = {one.default!r}"))
    return f"{name}({', '.join(parts)})"


def given(function: Callable[..., Any]) -> str:
    """What a function gives: the type and the shape, as far as its docstring says more than a float."""
    text = inspect.getdoc(function) or ""
    if "Returns:" not in text:
        return str(inspect.signature(function).return_annotation)
    section = _GIVEN.findall(text.partition("Returns:")[2])
    found = " or ".join(dict.fromkeys(f"{kind} {shape}".strip() for kind, shape in section))
    return found or str(inspect.signature(function).return_annotation)


def _line(text: str) -> str:
    return " ".join(text.split()).replace("``", "`")


def lines() -> Iterator[str]:
    """The page as Markdown, below its heading: an introduction, an example, and a table for each module."""
    yield from (*_INTRO.splitlines(), "", "```python", *EXAMPLE.splitlines(), "```")
    for module in modules():
        package, _, name = module.__name__.rpartition(".")
        yield from ("", f"## {name}", "", _line(module.__doc__ or ""), "")
        yield from (f"`from {package} import {name}`", "", "| function | gives | formula | source |", "| --- | --- | --- | --- |")
        for function, value in functions(module).items():
            cells = (f"`{call(function, value)}`", given(value), *told(value))
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
