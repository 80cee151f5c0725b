"""Keeps what was made of a run for as long as the run, as it was opened, is there."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast
from weakref import WeakKeyDictionary

from rl_doctor.views.opened import Opened

P = ParamSpec("P")
T = TypeVar("T")

_KEPT: Final[WeakKeyDictionary[Opened, dict[Hashable, Any]]] = WeakKeyDictionary()


def kept(function: Callable[Concatenate[Opened, P], T]) -> Callable[Concatenate[Opened, P], T]:
    """Keep the function's values, by its arguments, which are hashable; a run that was opened anew has its own."""

    @wraps(function)
    def cached(opened: Opened, /, *args: P.args, **kwargs: P.kwargs) -> T:
        values = _KEPT.setdefault(opened, {})
        key = function, args, tuple(sorted(kwargs.items()))
        if key not in values:
            values[key] = function(opened, *args, **kwargs)
        value: T = values[key]
        return value

    return cast("Callable[Concatenate[Opened, P], T]", cached)
