"""Members of ``run.json`` and of a run file's metadata beside the fields of ``RunInfo`` and ``metrics``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from rl_doctor.errors import InputError
from rl_doctor.schema import RunInfo
from rl_doctor.store.facts import StoreFacts

METRICS_FILE_MEMBER: Final = "metrics_file"
"""Names the file beside the run file that has the logged metrics."""
CRITIC_FILE_MEMBER: Final = "critic_file"
"""Names the file beside the run file that has the passes of the critic."""
IMPORTED_MEMBER: Final = "imported"
"""What an importer told: the format it read, what it dropped, joined or guessed."""
STOP_MEMBER: Final = "stop"
"""Member of ``run.json``, once the training is to stop: ``reason``, and the Unix ``time`` at which that was found."""
FACTS_MEMBER: Final = "store"
"""What the folder told beside its rows: steps dropped or incomplete, parts left out, columns without a value, notes."""

RECORDED_IN_MEMBER: Final = "recorded_in"
"""Which steps each session recorded, where there are several: first step, last step and session of each stretch."""


def imported(info: RunInfo) -> tuple[str, ...]:
    """What the importer told of a run that was imported."""
    told = (info.extra or {}).get(IMPORTED_MEMBER)
    return tuple(str(note) for note in told) if isinstance(told, list) else ()


def facts_to_json(facts: StoreFacts) -> dict[str, Any]:
    """The facts that the rows of a run file cannot tell, where there is anything to tell."""
    document = {
        "skipped_parts": list(facts.skipped_parts),
        "notes": list(facts.notes),
        "dropped_steps": facts.dropped_steps,
        "incomplete_steps": list(facts.incomplete_steps),
        "empty_columns": list(facts.empty_columns),
    }
    return {name: value for name, value in document.items() if value}


def facts_from_json(document: Any, where: str) -> StoreFacts:
    """Read what ``facts_to_json`` gave.

    Raises:
        InputError: it has another form.
    """
    try:
        return StoreFacts(
            skipped_parts=tuple(str(item) for item in document.get("skipped_parts", ())),
            notes=tuple(str(item) for item in document.get("notes", ())),
            dropped_steps=int(document.get("dropped_steps", 0)),
            incomplete_steps=tuple(int(item) for item in document.get("incomplete_steps", ())),
            empty_columns=tuple(str(item) for item in document.get("empty_columns", ())),
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(f"{where}: its member {FACTS_MEMBER!r} is malformed; pack the run again") from error


def stretches_of(session_of: Mapping[int, int]) -> list[list[int]]:
    """Stretches of steps that one session recorded: first step, last step and session; none of a single session.

    Args:
        session_of: step -> session that its rows come from.
    """
    found: list[list[int]] = []
    for step, session in sorted(session_of.items()):
        if found and found[-1][2] == session:
            found[-1][1] = step
        else:
            found.append([step, step, session])
    return found if len(found) > 1 else []


def recorded_in(stretches: Any, steps: Iterable[int], where: str) -> dict[int, int]:
    """The session of each of ``steps``, from what ``stretches_of`` gave.

    Raises:
        InputError: it has another form.
    """
    try:
        known = [(int(first), int(last), int(session)) for first, last, session in stretches]
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: its member {RECORDED_IN_MEMBER!r} is malformed; pack the run again") from error
    return {step: session for step in set(steps) for first, last, session in known if first <= step <= last}
