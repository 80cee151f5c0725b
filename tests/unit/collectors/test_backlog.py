"""The queue between trainer and writer."""

from __future__ import annotations

import threading

from rl_doctor.collectors.backlog import Backlog, Flush, Logged, Rollout, StepDropped, StepEnd


def taken(backlog: Backlog) -> list[object]:
    return list(iter(lambda: backlog.get(0), None))


def test_gives_what_was_put_in_order() -> None:
    backlog = Backlog(100)
    messages = [Rollout(1, {}, 10), Logged(1, 0.0, {}, "train", "log"), StepEnd(1)]
    for message in messages:
        backlog.put(message)
    assert taken(backlog) == messages


def test_is_bounded_in_bytes_but_takes_one_of_any_size() -> None:
    backlog = Backlog(100)
    assert backlog.fits(1000)
    backlog.put(Rollout(1, {}, 60))
    assert backlog.fits(40)
    assert not backlog.fits(41)
    backlog.get(0)
    assert not backlog.fits(41), "what was taken is not written yet"
    backlog.hold(0)
    assert backlog.fits(1000)


def test_dropping_a_step_takes_its_rollouts_and_nothing_else() -> None:
    backlog = Backlog(100)
    kept = [Rollout(1, {}, 30), Logged(2, 0.0, {}, "train", "log"), StepEnd(1)]
    for message in (kept[0], Rollout(2, {}, 30), kept[1], Rollout(2, {}, 30), kept[2]):
        backlog.put(message)
    backlog.drop(2)
    assert backlog.fits(70)
    assert taken(backlog) == [*kept, StepDropped(2)]


def test_clearing_releases_whoever_waits_for_a_flush() -> None:
    backlog = Backlog(100)
    flush = Flush()
    backlog.put(flush)
    backlog.clear()
    assert flush.done.is_set()
    assert taken(backlog) == []


def test_waiting_for_room_ends_when_there_is_some_or_nobody_makes_it() -> None:
    backlog = Backlog(100)
    backlog.put(Rollout(1, {}, 100))
    backlog.wait_until_fits(1, alive=lambda: False)
    assert not backlog.fits(1)
    backlog.get(0)
    pressed = []
    threading.Timer(0.05, lambda: (pressed.append(backlog.get(5) is None and backlog.pressed()), backlog.hold(0))).start()
    backlog.wait_until_fits(1, alive=lambda: True)
    assert backlog.fits(1)
    assert pressed == [True], "whoever holds the rest is asked for it"
    assert not backlog.pressed()
