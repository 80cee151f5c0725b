"""The detector of changes: the same looks give the same events, and nothing is told twice without having been over."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_doctor.live.changes import Event, changes, matched
from rl_doctor.live.sight import Sight
from tests.unit.live.sights import sight, sights, trouble


def kinds(events: tuple[Event, ...]) -> list[tuple[str, str | None]]:
    return [(event.kind, None if event.trouble is None else event.trouble.name) for event in events]


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (None, sight(), []),
        (None, sight(trouble()), [("onset", "a")]),
        (None, sight(trouble(going_on=False)), [("past", "a")]),
        (sight(), sight(trouble(going_on=False)), [("past", "a")]),
        (sight(trouble(going_on=False)), sight(trouble(going_on=False)), []),
        (sight(), sight(trouble()), [("onset", "a")]),
        (sight(trouble("a", "1")), sight(trouble("a", "2")), []),
        (sight(trouble("a", "1")), sight(trouble("b", "1")), []),
        (sight(trouble("a", "1")), sight(trouble("b", "2")), [("onset", "b"), ("recovered", "a")]),
        (sight(trouble("a", "1")), sight(trouble("b", "1"), trouble("a", "2")), [("onset", "b")]),
        (sight(trouble(severity="warning")), sight(trouble()), [("worsened", "a")]),
        (sight(trouble()), sight(trouble(severity="warning")), []),
        (sight(trouble()), sight(trouble(going_on=False)), [("recovered", "a")]),
        (sight(trouble()), sight(), [("recovered", "a")]),
        (sight(trouble(going_on=False)), sight(), []),
        (sight(trouble(going_on=False)), sight(trouble()), [("onset", "a")]),
        (sight(), sight(quiet=70.0), [("stalled", None)]),
        (sight(quiet=70.0), sight(quiet=90.0), []),
        (sight(quiet=70.0), sight(), [("resumed", None)]),
        (sight(quiet=70.0), sight(ended=True), [("finished", None)]),
        (sight(ended=True), sight(ended=True), []),
        (None, sight(ended=True), [("finished", None)]),
        (sight(trouble(), quiet=70.0), sight(trouble(), key="another"), [("onset", "a")]),
    ],
)
def test_each_kind_of_change(before: Sight | None, now: Sight, expected: list[tuple[str, str | None]]) -> None:
    assert kinds(changes(before, now)) == expected


@given(sights())
def test_the_same_look_is_no_change(seen: Sight) -> None:
    assert changes(seen, seen) == ()


@given(sights())
def test_at_the_first_look_all_is_new(seen: Sight) -> None:
    told = [(event.kind, event.trouble) for event in changes(None, seen) if event.trouble is not None]
    assert told == [("onset" if each.going_on else "past", each) for each in seen.troubles]


@given(sights(unique=True), sights(unique=True), st.randoms(use_true_random=False))
def test_the_order_of_causes_does_not_matter(before: Sight, now: Sight, chance: random.Random) -> None:
    def shuffled(seen: Sight) -> Sight:
        return replace(seen, troubles=tuple(chance.sample(seen.troubles, len(seen.troubles))))

    def told(events: tuple[Event, ...]) -> Counter[tuple[object, ...]]:
        return Counter((event.kind, None if event.trouble is None else event.trouble.name) for event in events)

    assert told(changes(before, now)) == told(changes(shuffled(before), shuffled(now)))


@given(sights(), sights())
def test_each_cause_is_matched_at_most_once(before: Sight, now: Sight) -> None:
    pairs = matched(before.troubles, now.troubles)
    assert len({id(old) for old in pairs.values()}) == len(pairs)
    assert {one.name for one in before.troubles} & {one.name for one in now.troubles} <= {
        now.troubles[index].name for index in pairs
    }


@given(st.lists(sights(), min_size=1, max_size=6))
def test_what_begins_ends_before_it_begins_again(looks: list[Sight]) -> None:
    """Onsets and recoveries balance: as many troubles go on as have begun and not ended."""
    going_on = 0
    stalled = False
    before = None
    for now in looks:
        events = changes(before, now)
        assert len(events) == len(set(map(id, events)))
        going_on += sum(event.kind == "onset" for event in events) - sum(event.kind == "recovered" for event in events)
        assert going_on == sum(each.going_on for each in now.troubles)
        for event in events:
            assert event.kind != "stalled" or not stalled
            assert event.kind != "resumed" or stalled
        stalled = now.quiet is not None
        before = now


@given(sights(), sights())
def test_a_look_survives_being_kept(before: Sight, now: Sight) -> None:
    kept = Sight.from_json(json.loads(json.dumps(before.to_json())))
    assert kept == before
    assert changes(kept, now) == changes(before, now)
