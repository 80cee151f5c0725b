"""What the app and the file tell of a run in a line each: which message, with which numbers, in the order in which it is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from rl_doctor.views.age import Age
from rl_doctor.views.outcomes import Outcomes
from rl_doctor.views.recompute import Recomputed
from rl_doctor.views.stored import Stored, Trouble
from rl_doctor.views.verdict import Verdict


class Message(NamedTuple):
    """A message of the catalogues, and what its placeholders stand for."""

    key: str
    values: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact about a run.

    Attributes:
        label: what it is.
        fact: the fact; a number stands for itself.
        notes: what is worth knowing of it.
        kind: severity or outcome that it tells, else the condition of the run, or "".
    """

    label: Message
    fact: Message | int
    notes: tuple[Message, ...]
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Remark:
    """Something worth knowing.

    Attributes:
        kind: warning, note, passed (all is well) or skipped (there is nothing to tell of).
        message: what it is.
        text: a sentence of the report or a name that follows; "" for none.
    """

    kind: str
    message: Message
    text: str = ""


_OUTCOMES: Final[Mapping[str, str]] = {"inconclusive": "skipped", "nothing": "skipped"}
_WARNINGS: Final[frozenset[Trouble]] = frozenset({"dropped", "incomplete", "unsorted", "repeated", "skipped", "empty"})


def of_verdict(found: Verdict, fresh: Age) -> tuple[Fact, ...]:
    """The verdict, and how much it rests on."""
    first = Message("diagnosis.no_first") if found.first is None else Message("diagnosis.step", {"step": found.first})
    counts = {"errors": found.errors, "warnings": found.warnings, "infos": found.infos}
    judged = Message("diagnosis.short", {"n": found.short}) if found.short else Message("diagnosis.judged_note")
    reached = () if fresh.last_step is None else (Message("app.last", {"step": fresh.last_step}),)
    return (
        Fact(
            Message("diagnosis.verdict"), Message(f"diagnosis.level_{found.level}"), (Message("diagnosis.counts", counts),),
            _OUTCOMES.get(found.level, found.level),
        ),
        Fact(Message("diagnosis.first"), first, (Message("diagnosis.first_note"),)),
        Fact(
            Message("diagnosis.measured"), Message("diagnosis.judged", {"judged": found.judged, "rules": found.rules}), (judged,)
        ),
        Fact(
            Message("diagnosis.not_measured"), Message("diagnosis.columns", {"n": found.columns}),
            (Message("diagnosis.columns_note"),),
        ),
        Fact(Message("diagnosis.state"), Message(f"app.{fresh.condition}"), reached, fresh.condition),
    )  # fmt: skip


def of_stored(found: Stored) -> tuple[Fact, ...]:
    """How much there is of a run."""
    reach = (Message("data.reach", {"first": found.first, "last": found.last}),) if found.steps else ()
    gaps = Message("data.missing", {"n": found.missing_steps}) if found.missing_steps else Message("data.no_gaps")
    return (
        Fact(Message("data.rows"), found.sequences, (Message("data.rows_note"),)),
        Fact(Message("data.stored_tokens"), found.tokens, (Message("data.tokens_note"),)),
        Fact(Message("data.logged"), found.logged, (Message("data.logged_note"),)),
        Fact(Message("data.steps"), found.steps, (*reach, gaps)),
        Fact(Message("data.present"), found.present, (Message("data.present_note"),)),
    )


def of_files(found: Stored) -> Iterator[Remark]:
    """Gaps, and what was left out of the reading or is worth knowing of it; that all was read where there is nothing of it."""
    for gap in found.gaps:
        several = Message("data.gap", {"first": gap.first, "last": gap.last, "n": gap.missing})
        yield Remark("warning", several if gap.last > gap.first else Message("data.gap_one", {"step": gap.first}))
    if found.more_gaps:
        yield Remark("note", Message("data.more_gaps", {"n": found.more_gaps}))
    for entry in found.told:
        yield Remark("warning" if entry.kind in _WARNINGS else "note", Message(f"data.told_{entry.kind}"), entry.text)
    if not found.gaps and not found.told:
        yield Remark("passed", Message("data.nothing_told"))


def of_outcomes(found: Outcomes) -> Message:
    """What of the rewards counts as right."""
    kind = "constant" if found.best == found.worst else found.kind
    return Message(f"groups.about_{kind}", {"column": found.column, "best": found.best, "worst": found.worst})


def of_log(found: Recomputed) -> Remark:
    """Whether the trainer's log is right; its text is why nothing of it was recomputed."""
    if not found.compared:
        return Remark("skipped", Message("recompute.nothing"), found.reason)
    if not found.differing:
        return Remark("passed", Message("recompute.all_equal", {"n": len(found.compared)}))
    return Remark(
        "warning", Message("recompute.some_differ", {"differing": len(found.differing), "n": len(found.compared)})
    )  # fmt: skip


def not_recomputed(found: Recomputed) -> tuple[Message, ...]:
    """How many numbers of the log could not be recomputed at all."""
    counts = {"absent": found.absent, "undefined": found.undefined}
    return tuple(Message(f"recompute.{name}", {"n": n}) for name, n in counts.items() if n)
