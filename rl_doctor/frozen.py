"""Frozen dataclasses that cost little to declare.

``dataclasses.dataclass`` writes up to seven functions for a class as source and compiles each, half a millisecond to one for a
class; for the hundred and more that a check imports that was a quarter of the check of a small run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from reprlib import recursive_repr
from typing import Any, Final, TypeVar, dataclass_transform, overload

_Class = TypeVar("_Class", bound=type)
_NOT_GIVEN: Final = object()


@overload
def frozen(cls: _Class) -> _Class: ...
@overload
def frozen(*, eq: bool = True) -> Callable[[_Class], _Class]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: _Class | None = None, *, eq: bool = True) -> _Class | Callable[[_Class], _Class]:
    """Decorate a class as ``dataclass(frozen=True, slots=True, eq=eq)`` does.

    It behaves the same, ``fields``, ``replace`` and pickling included, but only ``__init__`` is compiled, and that when the first
    is made. Of what a field can be told, ``default``, ``default_factory`` and ``repr`` count; ``__post_init__`` is not called.
    """
    if cls is None:
        return lambda decorated: _frozen(decorated, eq=eq)
    return _frozen(cls, eq=eq)


def _frozen(cls: _Class, *, eq: bool) -> _Class:
    made: Any = dataclass(init=False, repr=False, eq=False, slots=True)(cls)

    def __init__(self: Any, *args: Any, **named: Any) -> None:  # noqa: N807 - a method of the class
        made.__init__ = _compiled_init(made)
        made.__init__(self, *args, **named)

    made.__init__ = __init__
    made.__repr__ = _repr
    made.__setattr__, made.__delattr__ = _set, _delete
    made.__getstate__, made.__setstate__ = _state, _restore
    if eq:
        made.__eq__, made.__hash__ = _comparing(tuple(made.__dataclass_fields__))
    return made  # type: ignore[no-any-return]


def _compiled_init(made: Any) -> Callable[..., None]:
    """``__init__`` as ``dataclass`` writes it."""
    scope: dict[str, Any] = {"_set": object.__setattr__, "_NOT_GIVEN": _NOT_GIVEN}
    arguments, lines = ["self"], []
    for at, one in enumerate(fields(made)):
        value = one.name
        if one.default_factory is not MISSING:
            scope[f"_make_{at}"] = one.default_factory
            arguments.append(f"{one.name}=_NOT_GIVEN")
            value = f"_make_{at}() if {one.name} is _NOT_GIVEN else {one.name}"
        elif one.default is not MISSING:
            scope[f"_default_{at}"] = one.default
            arguments.append(f"{one.name}=_default_{at}")
        else:
            arguments.append(one.name)
        lines.append(f"_set(self, {one.name!r}, {value})")
    source = f"def __init__({', '.join(arguments)}):\n " + "\n ".join(lines or ["pass"])
    # A string would not do: running one makes Python forget that an interrupt ends it, and it may be run while it ends.
    exec(compile(source, f"<{made.__qualname__}>", "exec"), scope)  # noqa: S102 - names of fields only
    init: Callable[..., None] = scope["__init__"]
    init.__qualname__ = f"{made.__qualname__}.__init__"
    return init


def _comparing(names: tuple[str, ...]) -> tuple[Callable[[Any, object], bool], Callable[[Any], int]]:
    one_each = attrgetter(*names) if len(names) > 1 else None

    def values(self: Any) -> tuple[object, ...]:
        return one_each(self) if one_each else tuple(getattr(self, name) for name in names)

    def __eq__(self: Any, other: object) -> bool:  # noqa: N807 - a method of the class
        return values(self) == values(other) if type(other) is type(self) else NotImplemented

    def __hash__(self: Any) -> int:  # noqa: N807 - a method of the class
        return hash(values(self))

    return __eq__, __hash__


@recursive_repr()
def _repr(self: Any) -> str:
    told = ", ".join(f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr)
    return f"{type(self).__qualname__}({told})"


def _set(self: Any, name: str, value: object) -> None:
    del self, value
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delete(self: Any, name: str) -> None:
    del self
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[object]:
    return [getattr(self, one.name) for one in fields(self)]


def _restore(self: Any, state: list[object]) -> None:
    for one, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, one.name, value)
