"""Which rows of a run folder count: of a step that was recorded again, those of the last session and the last attempt."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rl_doctor.schema import RunInfo
from rl_doctor.store import layout
from rl_doctor.store.index import falls
from rl_doctor.store.part import Part

_ANEW: Final = (
    "; if it did not begin anew but its step does at every epoch, the earlier epochs are missing here: "
    "let step count over the whole training"
)
"""What to do where the steps are repeated from the first one."""

Group = tuple[Part, int, int]
"""A part, one of its row groups, and the step of that group."""


@dataclass(slots=True)
class _Branch:
    """What one attempt of one session recorded, over its ranks."""

    steps: set[int] = field(default_factory=set)
    replaced: set[int] = field(default_factory=set)
    kept: set[int] = field(default_factory=set)


def latest(parts: Iterable[Part]) -> tuple[list[Group], list[str]]:
    """Row groups that count, in the order of steps, and a note on each stretch of steps that was recorded again.

    A later session replaces the steps that it repeats. Within a session, a rank that goes back to an earlier step replaces its
    own rows of the steps that it repeats.
    """
    found = [(part, group, step) for part in parts for group, step in enumerate(part.steps) if part.rows[group]]
    session: dict[int, int] = {}
    attempt: dict[tuple[int, int, int], int] = {}
    for part, _, step in found:
        session[step] = max(session.get(step, 0), part.name.session)
        key = (step, part.name.session, part.name.rank)
        attempt[key] = max(attempt.get(key, 0), part.attempt)
    kept: list[Group] = []
    branches: dict[tuple[int, int], _Branch] = {}
    for item in found:
        part, _, step = item
        branch = branches.setdefault((part.name.session, part.attempt), _Branch())
        branch.steps.add(step)
        if part.name.session < session[step]:
            branch.replaced.add(step)
        elif part.attempt == attempt[step, part.name.session, part.name.rank]:
            branch.kept.add(step)
            kept.append(item)
    kept.sort(key=lambda item: (item[2], item[0].name, item[1]))
    return kept, [*_replaced(branches), *_left_over(branches)]


def gone_on(kept: Sequence[Group], fresh: Sequence[Part]) -> tuple[int, list[Group]] | None:
    """What ``latest`` gives with further parts, where it had found nothing that was recorded again.

    Args:
        kept: what it gave.
        fresh: parts that came since.

    Returns:
        How many of ``kept`` stay as they are, and what follows them; None where parts are to be sorted anew.
    """
    added = [(part, group, step) for part in fresh for group, step in enumerate(part.steps) if part.rows[group]]
    if not kept or not added:
        return len(kept), added
    last = kept[-1][0]
    if any((part.name.session, part.attempt) != (last.name.session, last.attempt) for part in fresh):
        return None
    cut = bisect_left(kept, min(step for _, _, step in added), key=lambda item: item[2])
    tail = [*kept[cut:], *added]
    if any((part.name.session, part.attempt) != (last.name.session, last.attempt) for part, _, _ in tail):
        return None
    return cut, sorted(tail, key=lambda item: (item[2], item[0].name, item[1]))


class Completion:
    """Which steps at the end of a session are not complete; see ``incomplete``.

    Args:
        session: the session.
    """

    def __init__(self, session: int) -> None:
        self.session = session
        self._ranks: set[int] = set()
        self._done: dict[int, dict[int, int]] = {}
        self._begun: dict[tuple[int, int], int] = {}
        self._steps: list[int] = []
        self._with_rows: set[int] = set()

    def add(self, part: Part) -> None:
        """Take a part of the session."""
        rank = part.name.rank
        self._ranks.add(rank)
        for step in part.completes[-1:]:
            attempts = self._done.setdefault(rank, {})
            attempts[part.attempt] = max(attempts.get(part.attempt, step), step)
        for step, rows in zip(part.steps, part.rows, strict=True):
            at = bisect_left(self._steps, step)
            if self._steps[at : at + 1] != [step]:
                self._steps.insert(at, step)
            if rows:
                self._with_rows.add(step)
                self._begun[step, rank] = max(self._begun.get((step, rank), 0), part.attempt)

    def open_steps(self, info: RunInfo, claims: Collection[tuple[int, int]]) -> frozenset[int]:
        """Steps at the end that some rank has not completed.

        Args:
            info: the run's description.
            claims: session and rank of every writer.
        """
        ranks = self._ranks | {rank for session, rank in claims if session == self.session}
        if info.writing_ranks is not None and all(session <= self.session for session, _ in claims):
            ranks = set(info.writing_ranks)
        found = []
        for step in reversed(self._steps):
            if step not in self._with_rows or all(self._completed(step, rank) for rank in ranks):
                break
            found.append(step)
        return frozenset(found)

    def _completed(self, step: int, rank: int) -> bool:
        since = self._begun.get((step, rank), 0)
        return any(last >= step and at >= since for at, last in self._done.get(rank, {}).items())


def _replaced(branches: Mapping[tuple[int, int], _Branch]) -> Iterable[str]:
    sessions: dict[int, set[int]] = {}
    again: dict[int, set[int]] = {}
    for (session, _), branch in sorted(branches.items()):
        sessions.setdefault(session, set()).update(branch.replaced)
        again.setdefault(session, set()).update(branch.steps - branch.replaced - branch.kept)
    for session, steps in sessions.items():
        if steps:
            number = f" ({len(steps)} steps) are" if len(steps) > 1 else " is"
            yield f"sessions overlap: {_span(steps)} of session {session}{number} replaced by a later session"
    for session, steps in again.items():
        if steps:
            number = f" ({len(steps)} steps) were" if len(steps) > 1 else " was"
            anew = len(steps) > 1 and min(steps) == min(branches[session, min(at for of, at in branches if of == session)].steps)
            yield (
                f"the training went back in session {session}: {_span(steps)}{number} recorded again, the later rows count"
                f"{_ANEW if anew else ''}"
            )


def _left_over(branches: Mapping[tuple[int, int], _Branch]) -> Iterable[str]:
    """Steps that stand after those to which the training went back, and that it has not reached again."""
    start: int | None = None
    for (session, _), branch in sorted(branches.items(), reverse=True):
        left = {step for step in branch.kept if start is not None and step > start}
        if left:
            verb = "are" if len(left) > 1 else "is"
            yield f"{_span(left)} of session {session} {verb} from before the training went back to step {start}"
        start = min(branch.steps) if start is None else min(start, *branch.steps)


def _span(steps: Collection[int]) -> str:
    return f"step {min(steps)}" if len(steps) == 1 else f"steps {min(steps)} to {max(steps)}"


def incomplete(info: RunInfo, claims: Iterable[tuple[int, int]], parts: Collection[Part]) -> tuple[int, ...]:
    """Steps that some rank that writes in their session has not completed, nor a later one, since it last began them.

    Args:
        info: the run's description.
        claims: session and rank of every writer.
        parts: the parts that are whole.
    """
    done: dict[tuple[int, int], dict[int, int]] = {}
    writers: dict[int, set[int]] = {}
    session_of: dict[int, int] = {}
    begun: dict[tuple[int, int, int], int] = {}
    for part in parts:
        session, rank = key = (part.name.session, part.name.rank)
        writers.setdefault(session, set()).add(rank)
        for step in part.completes[-1:]:
            attempts = done.setdefault(key, {})
            attempts[part.attempt] = max(attempts.get(part.attempt, step), step)
        for step in (step for step, rows in zip(part.steps, part.rows, strict=True) if rows):
            session_of[step] = max(session_of.get(step, 0), session)
            begun[step, session, rank] = max(begun.get((step, session, rank), 0), part.attempt)
    for session, rank in claims:
        writers.setdefault(session, set()).add(rank)
    if info.writing_ranks is not None and writers:
        writers[max(writers)] = set(info.writing_ranks)

    def completed(step: int, session: int, rank: int) -> bool:
        since = begun.get((step, session, rank), 0)
        return any(last >= step and at >= since for at, last in done.get((session, rank), {}).items())

    return tuple(
        sorted(
            step for step, session in session_of.items() if not all(completed(step, session, rank) for rank in writers[session])
        )
    )


def fallen(parts: Iterable[Part]) -> int:
    """Places where a writer's steps fall without its having said that the training goes back."""
    writers: dict[tuple[int, int, int], list[tuple[int, int, int]]] = {}
    for part in parts:
        steps = writers.setdefault((part.name.session, part.name.rank, part.attempt), [])
        steps.extend((step, step, 0) for step, rows in zip(part.steps, part.rows, strict=True) if rows)
    return sum(falls(steps) for steps in writers.values())


def told_of_sessions(
    info: RunInfo, claims: Mapping[tuple[int, int], Mapping[str, Any]], parts: Collection[Part]
) -> Iterable[str]:
    """Notes on sessions that do not simply follow each other: another world size, or two at the same time.

    Args:
        info: the run's description.
        claims: what each writer says of itself, by session and rank.
        parts: the parts that are whole.
    """
    last: Mapping[str, Any] | None = None
    for entry in info.sessions:
        if last is not None and entry.get("world_size") != last.get("world_size"):
            words = (f"{item.get('world_size', 'unknown')} in session {item.get('session')}" for item in (entry, last))
            yield f"the world size changed: {', '.join(words)}"
        last = entry
    written: dict[str, tuple[int, int]] = {}
    for part in parts:
        writer = layout.writer_name(part.name.session, part.name.rank)
        written[writer] = (part.name.session, max(part.name.number, written.get(writer, (0, -1))[1]))
    pairs = set()
    for (session, _), document in claims.items():
        # What this writer found when it began: an earlier one that has written more since was still at work.
        for writer, number in document.get("before", {}).items():
            earlier, highest = written.get(writer, (session, -1))
            if earlier < session and highest >= number:
                pairs.add((earlier, session))
    for earlier, session in sorted(pairs):
        yield (
            f"session {earlier} went on after session {session} had begun: two processes record into this folder; "
            "give each run a folder of its own"
        )
