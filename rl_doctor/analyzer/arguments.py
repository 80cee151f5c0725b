"""What the formulas are given: float64, of the shapes that their docstrings state, or a ``ValueError`` of one line.

Costs a few microseconds a call, and time proportional to the sequences where there are splits, never to the tokens.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from rl_doctor.frozen import frozen

_P = ParamSpec("_P")
_R = TypeVar("_R")
_ARGUMENT: Final = re.compile(r"^    (?:\s{4})?(?P<name>\w+): (?P<text>.*(?:\n\s{9,}.*)*)", re.MULTILINE)
_SHAPE: Final = re.compile(r"``\[([a-z0-9 +,]+)\]``")
_LIKEWISE: Final = re.compile(r"likewise", re.IGNORECASE)
_SPLITS: Final = "sequences + 1"
_ANY: Final = ("any",)
"""Shape of what may be of several."""
_LONGEST: Final = 60


@frozen
class Parameter:
    """What one argument must be.

    Attributes:
        position: among the arguments.
        name: of the argument.
        shape: names of its dimensions as the docstring has them; ``_ANY`` where it has none, or may be of several.
        kind: type of the elements: "f" float64, "i" whole numbers, "b" booleans, "" any.
        words: what it may be, of a word; () of anything else.
        optional: whether None may stand for it.
    """

    position: int
    name: str
    shape: tuple[str, ...]
    kind: str
    words: tuple[Any, ...]
    optional: bool


def shapes(text: str) -> dict[str, tuple[str, ...]]:
    """Dimensions of the arguments by the section ``Args`` of a docstring; those that may be of two shapes have no fixed one."""
    section = text.partition("Args:")[2].partition("Returns:")[0]
    found: dict[str, tuple[str, ...]] = {}
    last: tuple[str, ...] = ()
    for argument in _ARGUMENT.finditer(section):
        stated = _SHAPE.findall(argument["text"])
        if stated:
            last = tuple(part.strip() for part in stated[0].split(",")) if len(stated) == 1 else _ANY
            found[argument["name"]] = last
        elif _LIKEWISE.match(argument["text"]) or argument["text"].startswith(("under the", "likewise")):
            found[argument["name"]] = last
    return found


@functools.cache
def parameters(function: Callable[..., Any]) -> tuple[Parameter, ...]:
    """The arguments of a formula that can be checked, by its signature and its docstring."""
    hints, stated = get_type_hints(function), shapes(inspect.getdoc(function) or "")
    found = []
    for position, (name, one) in enumerate(inspect.signature(function).parameters.items()):
        hint = hints.get(name, Any)
        optional = type(None) in get_args(hint)
        if optional:
            hint = next(part for part in get_args(hint) if part is not type(None))
        words: tuple[Any, ...] = get_args(hint) if get_origin(hint) is Literal else ((0, 1) if name == "ddof" else ())
        kind = _kind(str(hint))
        if words or kind or "ndarray" in str(hint):
            optional = optional or one.default is None
            found.append(Parameter(position, name, stated.get(name, _ANY), kind, words, optional))
    return tuple(found)


def _kind(hint: str) -> str:
    kinds = {"float64": "f", "int64": "i", "numpy.bool": "b"}
    return next((kind for word, kind in kinds.items() if word in hint), "")


def checked(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The function, with its arrays turned into numpy's, float64 where it takes numbers, and its arguments looked at."""

    @functools.wraps(function)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        given, named = list(args), dict(kwargs)
        sizes: dict[str, tuple[int, str]] = {}
        arrays: list[tuple[Parameter, NDArray[Any]]] = []
        for one in parameters(function):
            place: Any = (given, one.position) if one.position < len(given) else (named, one.name)
            if place[0] is named and one.name not in named:
                continue
            value = place[0][place[1]]
            if value is None and one.optional:
                continue
            if one.words:
                if value not in one.words:
                    raise refused(one.name, f"one of {', '.join(map(repr, one.words))}", value)
                continue
            place[0][place[1]] = array = _array(one, value)
            arrays.append((one, array))
        for one, array in arrays:
            _measure(one, array, sizes)
        for one, array in arrays:
            _compare(one, array, sizes)
        return function(*given, **named)  # type: ignore[arg-type]

    return wrapper


def refused(name: str, expected: str, found: object) -> ValueError:
    """The error of one line for an argument that is not what is expected."""
    text = " ".join(str(found.tolist() if isinstance(found, np.ndarray) else found).split())
    return ValueError(f"{name}: expected {expected}, found {text if len(text) <= _LONGEST else text[:_LONGEST] + '...'}")


def positive(**values: float) -> None:
    """Refuse a number that is not above 0.

    Raises:
        ValueError: one line with its name.
    """
    for name, value in values.items():
        if not value > 0:
            raise refused(name, "a number above 0", value)


def _array(one: Parameter, value: Any) -> NDArray[Any]:
    if type(value) is np.ndarray and one.kind == value.dtype.kind and value.dtype.itemsize in (1, 8):
        return value
    found = np.asarray(value)
    kind = found.dtype.kind
    if one.kind == "f":
        if kind not in "fiub":
            raise refused(one.name, "numbers", value)
        return found.astype(np.float64, copy=False)
    if one.kind == "i":
        if kind not in "iub" and not (kind == "f" and bool((found == np.floor(found)).all())):
            raise refused(one.name, "whole numbers", value)
        return found.astype(np.int64, copy=False)
    if one.kind == "b" and kind != "b" and found.size:
        raise refused(one.name, "true or false of each", value)
    return found.astype(np.bool_) if one.kind == "b" else found


def _measure(one: Parameter, array: NDArray[Any], sizes: dict[str, tuple[int, str]]) -> None:
    """Take the lengths of an array's dimensions as those of their names, where none is known yet."""
    if one.shape == _ANY or array.ndim == 0:
        return
    if array.ndim != len(one.shape):
        raise refused(one.name, f"an array [{', '.join(one.shape)}]", f"one of shape {array.shape}")
    for name, size in zip(one.shape, array.shape, strict=True):
        if name != _SPLITS:
            sizes.setdefault(name, (size, one.name))
        elif size:
            sizes.setdefault("sequences", (size - 1, one.name))
        else:
            raise refused(one.name, "offsets [sequences + 1], the first of them 0", "none")


def _compare(one: Parameter, array: NDArray[Any], sizes: Mapping[str, tuple[int, str]]) -> None:
    """Hold the lengths of an array, and what stands in splits, against the others."""
    if one.shape == _ANY:
        return
    if array.ndim == 0:
        if one.kind != "f" or one.shape[0] not in sizes:
            raise refused(one.name, f"an array [{', '.join(one.shape)}]", array)
        return
    for name, size in zip(one.shape, array.shape, strict=True):
        wanted, by = sizes["sequences" if name == _SPLITS else name]
        if size != wanted + (name == _SPLITS):
            expected = f"{wanted + 1} offsets" if name == _SPLITS else f"{wanted} values"
            raise refused(one.name, f"{expected} as of {by} [{name.removesuffix(' + 1')}]", size)
    if one.shape == (_SPLITS,):
        total = sizes["n"][0] if "n" in sizes else array[-1]
        if array[0] != 0 or array[-1] != total or not bool((array[1:] >= array[:-1]).all()):
            ends = f" to {total}" if "n" in sizes else ""
            raise refused(one.name, f"offsets from 0{ends} that never fall, not lengths", array)
