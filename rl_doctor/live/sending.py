"""What a channel is to be told: once for each onset of a cause, and never again by a watch that was restarted. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from rl_doctor.live.changes import Event, alike, changes
from rl_doctor.live.sight import Sight
from rl_doctor.live.words import Message, Words
from rl_doctor.report.model import SEVERITY_ORDER, Severity

COOL_DOWN: Final = 3600.0
"""Seconds in which a cause that was told is not told again, however often it comes and goes, unless it got worse."""
SEVERAL: Final = 3
"""Causes that come at once and still get a message each; more get one together."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A cause that was told.

    Attributes:
        name: of the cause.
        fingerprints: of its findings.
        severity: as it was told.
        time: Unix time.
    """

    name: str
    fingerprints: tuple[str, ...]
    severity: Severity
    time: float


@dataclass(frozen=True, slots=True)
class Told:
    """What a channel knows.

    Attributes:
        sight: the look that it was told of last.
        sent: causes that were told lately.
        last: Unix time of the last message; 0 where there was none.
    """

    sight: Sight
    sent: tuple[Sent, ...] = ()
    last: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {"sight": self.sight.to_json(), "sent": [asdict(item) for item in self.sent], "last": self.last}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Told:
        """What ``to_json`` made; raises KeyError or TypeError where it has another form."""
        sent = tuple(Sent(**{**item, "fingerprints": tuple(item["fingerprints"])}) for item in document["sent"])
        return cls(Sight.from_json(document["sight"]), sent, document["last"])


def due(told: Told | None, sight: Sight, now: float, at: Severity) -> tuple[Event, ...]:
    """The events to tell: causes first, then what became of the run.

    Recoveries are not told. A cause below ``at`` is not; when it got worse, it is. A run that stopped writing, that writes again,
    or that is not recorded any more, always is.

    Args:
        told: what the channel knows; None where it knows nothing.
        sight: this look.
        now: Unix time.
        at: the least severity that is told.
    """
    sent = () if told is None or told.sight.key != sight.key else told.sent
    return tuple(event for event in changes(None if told is None else told.sight, sight) if _is_due(event, sight, sent, now, at))


def _is_due(event: Event, sight: Sight, sent: Sequence[Sent], now: float, at: Severity) -> bool:
    if (trouble := event.trouble) is None:
        return event.kind != "finished" or sight.status == "detached"
    level = SEVERITY_ORDER[trouble.severity]
    if event.kind == "recovered" or level < SEVERITY_ORDER[at]:
        return False
    return not any(
        now - item.time < COOL_DOWN and SEVERITY_ORDER[item.severity] >= level and alike(item.name, item.fingerprints, trouble)
        for item in sent
    )


def messages(events: Sequence[Event], sight: Sight, words: Words) -> list[tuple[tuple[Event, ...], Message]]:
    """The messages of events, each with those that it tells: many causes together in one."""
    causes = tuple(event for event in events if event.trouble is not None)
    told = (
        [(causes, words.digest(causes, sight))]
        if len(causes) > SEVERAL
        else [((one,), words.message(one, sight)) for one in causes]
    )
    return [*told, *(((event,), words.message(event, sight)) for event in events if event.trouble is None)]


def after(told: Told | None, events: Sequence[Event], sight: Sight, now: float) -> Told:
    """What a channel knows when it was told of events; the look that it was told of stays the one before."""
    known = () if told is None or told.sight.key != sight.key else told.sent
    fresh = tuple(
        Sent(event.trouble.name, event.trouble.fingerprints, event.trouble.severity, now)
        for event in events
        if event.trouble is not None
    )
    kept = tuple(item for item in known if now - item.time < COOL_DOWN)
    before = Sight(sight.path, sight.key) if told is None else told.sight
    return Told(before, (*kept, *fresh), now if events else 0.0 if told is None else told.last)


def settled(told: Told, sight: Sight) -> Told:
    """What a channel knows when nothing of a look is left to tell."""
    return replace(told, sight=sight)
