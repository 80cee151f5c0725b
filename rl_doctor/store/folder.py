"""Opens a run folder: finds its parts, leaves out what is torn or superseded, and says so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from rl_doctor import schema
from rl_doctor.errors import DoctorError, InputError, NothingToJudgeError
from rl_doctor.schema import RunInfo
from rl_doctor.store import layout
from rl_doctor.store.facts import StoreFacts
from rl_doctor.store.index import count, falls
from rl_doctor.store.info import parse_info, parse_json
from rl_doctor.store.layout import PartName
from rl_doctor.store.members import imported
from rl_doctor.store.metric_log import MetricLog
from rl_doctor.store.parquet_file import ParquetInput
from rl_doctor.store.part import Part, PartFragment, open_metrics, open_part, read_metrics
from rl_doctor.store.plan import Segment, rows_in_order, windows_of
from rl_doctor.store.presence import Presence, empty_floats, require_values
from rl_doctor.store.rows import Rows
from rl_doctor.store.run import Run

_BARE: Final = frozenset({"step", "sequence", "stored_length", "rollout_step", "epoch", "minibatch", "microbatch", "rank"})
"""Columns that say where a row belongs, and nothing of what was trained on."""


@dataclass(slots=True)
class _Listing:
    """The names in a folder, sorted by what they are."""

    parts: list[PartName] = field(default_factory=list)
    claims: list[tuple[int, int]] = field(default_factory=list)
    temporaries: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)


def open_folder(path: Path) -> Run:
    """Open a run folder; see ``open_run``."""
    listing = _list(path)
    info, notes = _info(path, listing)
    presence = Presence()
    skipped = [f"{name}: a file that was not finished" for name in sorted(listing.temporaries)]
    parts = list(_open_parts(path, listing, presence, skipped))
    metric_parts = list(_whole_metrics(path, listing, skipped))
    kept, overlap = _last_session(parts)
    if not kept and not metric_parts:
        otherwise = "; the recording has ended" if info.status == "complete" else " yet"
        told = _why([*_told(path, listing.claims)[1], *skipped], otherwise)
        raise NothingToJudgeError(f"{path}: no rows recorded{told}")
    columns = frozenset(name for name in presence.present if schema.column(name) is not None)
    if kept and not metric_parts and columns <= _BARE:
        told = _why([*_told(path, listing.claims)[1], *skipped], "; pass the columns of the batch to log_batch")
        raise NothingToJudgeError(f"{path}: no values recorded, only steps{told}")
    null = frozenset(name for name in presence.named - presence.present if schema.column(name) is not None)
    fragments = [PartFragment(part, group) for part, group, _ in kept]
    segments = [Segment(step, index, 0, part.rows[group], part.tokens[group]) for index, (part, group, step) in enumerate(kept)]

    def read(name: str) -> Iterator[Rows]:
        return (rows for _, rows in rows_in_order(fragments, windows_of(segments), [name]))

    require_values(columns, presence.numeric.__contains__, read, str(path), null)

    def logged() -> MetricLog:
        return MetricLog.of(record for part in metric_parts for record in read_metrics(part))

    def facts() -> StoreFacts:
        found = _facts(path, info, listing, parts, (fragments, segments, columns), skipped, [*notes, *overlap])
        steps = [] if segments else logged().steps().tolist()
        return replace(
            found,
            first_step=steps[0] if steps else found.first_step,
            last_step=steps[-1] if steps else found.last_step,
            empty_columns=empty_floats(columns, presence.numeric.__contains__, read, null),
        )

    return Run(path, info, columns, fragments, segments, facts, logged)


def _list(path: Path) -> _Listing:
    found = _Listing()
    try:
        names = [entry.name for entry in path.iterdir()]
    except PermissionError as error:
        raise InputError(f"{path}: no permission to read it; change its mode or run as its owner") from error
    for name in names:
        if part := layout.parse_part(name):
            found.parts.append(part)
        elif claim := layout.parse_writer(name):
            found.claims.append(claim)
        elif name.endswith(layout.TEMPORARY_SUFFIX):
            found.temporaries.append(name)
        elif name != layout.INFO_NAME:
            found.others.append(name)
    return found


def _info(path: Path, listing: _Listing) -> tuple[RunInfo, list[str]]:
    file = path / layout.INFO_NAME
    if file.exists():
        try:
            return parse_info(file.read_bytes(), str(file)), []
        except OSError as error:
            raise InputError(f"{file}: cannot be read ({error.strerror}); change its mode or run as its owner") from error
    if not listing.parts:
        files = sorted(name for name in listing.others if name.endswith(".parquet"))
        hint = f"; give the file, e.g. {path / files[0]}" if files else ""
        raise InputError(f"{path}: not a run folder (neither {layout.INFO_NAME} nor part files){hint}")
    return RunInfo(), [f"{layout.INFO_NAME} is missing: trainer and configuration are unknown"]


def _open_parts(path: Path, listing: _Listing, presence: Presence, skipped: list[str]) -> Iterator[Part]:
    """Open every part whose tables are whole, in the order of reading."""
    names = set(listing.parts)
    for name in sorted(name for name in names if name.table == "sequences"):
        try:
            yield open_part(path, name, presence)
        except InputError as error:
            reason = str(error).removeprefix(f"{path}/")
            skipped.append(reason if reason.startswith(str(name)) else f"{name}: {reason}")
    orphans = [name for name in names if name.table in ("tokens", "contexts") and name.of("sequences") not in names]
    skipped += [f"{name}: its sequences part is missing" for name in sorted(orphans)]


def _last_session(parts: Iterable[Part]) -> tuple[list[tuple[Part, int, int]], list[str]]:
    """Row groups that count, in the order of steps, and a note on each session that a later one supersedes."""
    found = [(part, group, step) for part in parts for group, step in enumerate(part.steps) if part.rows[group]]
    newest: dict[int, int] = {}
    for part, _, step in found:
        newest[step] = max(newest.get(step, 0), part.name.session)
    lost: dict[int, set[int]] = {}
    for part, _, step in found:
        if part.name.session < newest[step]:
            lost.setdefault(part.name.session, set()).add(step)
    notes = [
        f"sessions overlap: step {min(steps)} of session {session} is replaced by a later session"
        if len(steps) == 1
        else f"sessions overlap: steps {min(steps)} to {max(steps)} of session {session} ({len(steps)} steps) "
        "are replaced by a later session"
        for session, steps in sorted(lost.items())
    ]
    kept = [item for item in found if item[0].name.session == newest[item[2]]]
    return sorted(kept, key=lambda item: (item[2], item[0].name, item[1])), notes


def _facts(
    path: Path,
    info: RunInfo,
    listing: _Listing,
    parts: list[Part],
    content: tuple[list[PartFragment], list[Segment], frozenset[str]],
    skipped: list[str],
    notes: list[str],
) -> StoreFacts:
    fragments, segments, columns = content
    counts = count(fragments, segments, columns)
    dropped, told = _told(path, listing.claims)
    steps = [segment.step for segment in segments]
    return StoreFacts(
        first_step=min(steps, default=None),
        last_step=max(steps, default=None),
        sequences=counts.sequences,
        tokens=counts.tokens,
        skipped_parts=tuple(dict.fromkeys(skipped)),
        unknown_columns=tuple(sorted({*(info.unknown_columns or ()), *(name for part in parts for name in part.unknown)})),
        notes=(*notes, *imported(info), *told),
        dropped_steps=dropped,
        incomplete_steps=_incomplete(info, listing, parts),
        unsorted_steps=_falls(parts),
        repeated_rows=counts.repeated,
    )


def _told(path: Path, claims: Iterable[tuple[int, int]]) -> tuple[int, list[str]]:
    """What the writers say of themselves: steps dropped, and notes for the reader."""
    total, notes = 0, []
    for session, rank in sorted(claims):
        file = path / layout.writer_name(session, rank)
        try:
            document = parse_json(file.read_bytes(), str(file))
            total += int(document["dropped_steps"])
            if document.get("status") == "detached":
                why = document.get("reason") or "the training's log says why"
                notes.append(f"recording stopped early in session {session} on rank {rank}: {why}")
        except (OSError, DoctorError, KeyError, TypeError, ValueError):
            notes.append(f"{file.name} cannot be read: the steps that this writer dropped are unknown")
    return total, notes


def _incomplete(info: RunInfo, listing: _Listing, parts: list[Part]) -> tuple[int, ...]:
    """Steps that some rank that writes in their session has not completed, nor a later one."""
    done: dict[tuple[int, int], int] = {}
    writers: dict[int, set[int]] = {}
    session_of: dict[int, int] = {}
    for part in parts:
        key = (part.name.session, part.name.rank)
        writers.setdefault(key[0], set()).add(key[1])
        if part.completes:
            done[key] = max(done.get(key, part.completes[-1]), part.completes[-1])
        for step in part.steps:
            session_of[step] = max(session_of.get(step, 0), key[0])
    for session, rank in listing.claims:
        writers.setdefault(session, set()).add(rank)
    if info.writing_ranks is not None and writers:
        writers[max(writers)] = set(info.writing_ranks)
    bound = {
        session: min((done.get((session, rank), -np.inf) for rank in ranks), default=-np.inf)
        for session, ranks in writers.items()
    }
    return tuple(sorted(step for step, session in session_of.items() if step > bound[session]))


def _why(known: list[str], otherwise: str) -> str:
    return f" ({'; '.join(known[:3])})" if known else otherwise


def _whole_metrics(path: Path, listing: _Listing, skipped: list[str]) -> Iterator[ParquetInput]:
    """Open every metrics part that is whole, oldest session first, so that a later one wins."""
    for name in sorted(name for name in listing.parts if name.table == "metrics"):
        try:
            yield open_metrics(path / str(name))
        except InputError as error:
            skipped.append(str(error).removeprefix(f"{path}/"))


def _falls(parts: Iterable[Part]) -> int:
    """Places where a writer's steps fall."""
    writers: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for part in parts:
        steps = writers.setdefault((part.name.session, part.name.rank), [])
        steps.extend((step, step, 0) for step, rows in zip(part.steps, part.rows, strict=True) if rows)
    return sum(falls(steps) for steps in writers.values())
