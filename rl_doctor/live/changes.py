"""What is new between two looks at a run. Pure: the same two looks always give the same events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rl_doctor.live.sight import Sight, Trouble
from rl_doctor.report.model import SEVERITY_ORDER

Kind = Literal["onset", "past", "worsened", "recovered", "stalled", "resumed", "finished"]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that is new.

    Attributes:
        kind: ``onset``: a cause shows, for the first time or again; ``past``: one showed, and was over before it was seen;
            ``worsened``: one that went on got a higher severity;
            ``recovered``: one that went on does not show any more; ``stalled``: the run stopped writing; ``resumed``: it writes
            again; ``finished``: it has ended.
        trouble: the cause as it was last seen; None for events of the run as a whole.
    """

    kind: Kind
    trouble: Trouble | None = None


def changes(previous: Sight | None, now: Sight) -> tuple[Event, ...]:
    """What is new: causes in reading order, then those that are over, then what became of the run as a whole.

    Args:
        previous: the look before, or None. One at another run counts as None.
        now: this look.
    """
    before = previous if previous is not None and previous.key == now.key else None
    known = () if before is None else before.troubles
    pairs = matched(known, now.troubles)
    events = [event for index, trouble in enumerate(now.troubles) if (event := _change(pairs.get(index), trouble)) is not None]
    kept = {id(trouble) for trouble in pairs.values()}
    events += [Event("recovered", trouble) for trouble in known if trouble.going_on and id(trouble) not in kept]
    if now.ended:
        if before is None or not before.ended:
            events.append(Event("finished"))
    elif now.quiet is not None:
        if before is None or before.quiet is None:
            events.append(Event("stalled"))
    elif before is not None and before.quiet is not None:
        events.append(Event("resumed"))
    return tuple(events)


def _change(before: Trouble | None, now: Trouble) -> Event | None:
    was = before is not None and before.going_on
    if now.going_on and not was:
        return Event("onset", now)
    if before is None and not now.going_on:
        return Event("past", now)
    if was and not now.going_on:
        return Event("recovered", now)
    if was and before is not None and SEVERITY_ORDER[now.severity] > SEVERITY_ORDER[before.severity]:
        return Event("worsened", now)
    return None


def matched(before: Sequence[Trouble], now: Sequence[Trouble]) -> dict[int, Trouble]:
    """Which cause of the look before each cause of this one is: by its place in ``now``.

    The same name makes it the same, and of several of one name the findings' fingerprints decide. With more steps another cause
    may explain the same findings better: fingerprints make it the same trouble, so that it is not told as a new one.
    """
    pairs = [
        (-likeness, old.name, new.name, one, other)
        for one, old in enumerate(before)
        for other, new in enumerate(now)
        if (likeness := alike(old.name, old.fingerprints, new)) > 0
    ]
    taken: set[int] = set()
    found: dict[int, Trouble] = {}
    for _, _, _, one, other in sorted(pairs):
        if one not in taken and other not in found:
            taken.add(one)
            found[other] = before[one]
    return found


def alike(name: str, fingerprints: Sequence[str], trouble: Trouble) -> int:
    """How surely what had this name and these fingerprints is that trouble; 0 where it is another one."""
    shared = bool(set(fingerprints).intersection(trouble.fingerprints))
    return 2 * (name == trouble.name) + shared
