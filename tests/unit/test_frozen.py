"""A frozen class behaves as the dataclass that it stands for."""

import copy
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace

import pytest

from rl_doctor.frozen import frozen


class _Written:
    """What both are made of."""

    name: str
    numbers: tuple[int, ...] = ()
    more: dict[str, int] = field(default_factory=dict)
    hidden: object = field(repr=False, default=None)


def _declared(decorate):
    body = {key: value for key, value in vars(_Written).items() if key not in {"__dict__", "__weakref__"}}
    return decorate(type("Declared", (), body | {"__qualname__": "Declared"}))


ONE = _declared(frozen)
OTHER = _declared(dataclass(frozen=True, slots=True))


@frozen
class Point:
    """A point."""

    x: float
    y: float = 0.0


@frozen(eq=False)
class Place:
    """A place."""

    at: Point


@frozen
class Nothing:
    """No field."""


@pytest.mark.parametrize("arguments", [("a",), ("a", (1, 2)), ("a", (1,), {"b": 2}, 3)])
def test_it_is_made_told_and_listed_as_a_dataclass(arguments):
    one, other = ONE(*arguments), OTHER(*arguments)
    assert repr(one) == repr(other)
    assert [(item.name, getattr(one, item.name)) for item in fields(one)] == [
        (item.name, getattr(other, item.name)) for item in fields(other)
    ]
    assert ONE.__slots__ == OTHER.__slots__
    assert ONE.__match_args__ == OTHER.__match_args__
    assert not hasattr(one, "__dict__")


@pytest.mark.parametrize("wrong", [((), {}), (("a",), {"name": "b"}), (("a",), {"unknown": 1}), (("a", (), {}, 1, 2), {})])
def test_a_wrong_call_is_refused_the_first_time_and_later(wrong):
    arguments, named = wrong
    made = _declared(frozen)
    for _ in range(2):
        with pytest.raises(TypeError, match="__init__"):
            made(*arguments, **named)


def test_each_has_what_its_factory_makes():
    one, other = ONE("a"), ONE("a")
    assert one.more == {}
    assert one.more is not other.more


def test_equal_ones_are_equal_and_hash_alike_those_of_another_class_are_not():
    assert Point(1.0) == Point(1.0, 0.0)
    assert (
        hash(Point(1.0))
        == hash(Point(1.0, 0.0))
        == hash(dataclass(frozen=True)(type("P", (), {"__annotations__": {"x": float, "y": float}}))(1.0, 0.0))
    )
    assert Point(1.0) != Point(2.0)
    assert Point(1.0) != (1.0, 0.0)
    assert Nothing() == Nothing()
    assert {Nothing(): 1}[Nothing()] == 1
    assert Nothing() != Point(0.0)


def test_without_equality_each_is_its_own():
    place = Place(Point(1.0))
    assert place == place  # noqa: PLR0124 - identity is the point
    assert place != Place(Point(1.0))
    assert len({place, Place(Point(1.0))}) == 2


def test_nothing_can_be_changed():
    point = Point(1.0)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'x'"):
        point.x = 2.0
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'x'"):
        del point.x
    assert point == Point(1.0)


def test_it_is_replaced_copied_and_pickled():
    place = Place(Point(1.0, 2.0))
    assert replace(place.at, y=3.0) == Point(1.0, 3.0)
    assert copy.copy(place).at is place.at
    assert copy.deepcopy(place).at == place.at
    assert pickle.loads(pickle.dumps(place)).at == place.at  # noqa: S301 - written here


def test_one_that_holds_itself_is_told():
    around = ONE("a")
    around.more["me"] = around
    assert repr(around) == "Declared(name='a', numbers=(), more={'me': ...})"
