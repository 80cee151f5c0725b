"""Opens a run folder: finds its parts, leaves out what is torn or superseded, and says so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from rl_doctor import schema
from rl_doctor.errors import DoctorError, InputError, NothingToJudgeError
from rl_doctor.schema import RunInfo
from rl_doctor.store import layout
from rl_doctor.store.critic import open_critic
from rl_doctor.store.facts import StoreFacts
from rl_doctor.store.index import count
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
from rl_doctor.store.sessions import fallen, incomplete, latest, told_of_sessions

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
    """Open a run folder; see ``open_run``. The passes of its critic are looked for inside."""
    run = _open(path)
    if not (path / layout.CRITIC_NAME).is_dir():
        return run

    @cache
    def critic() -> tuple[Run | None, tuple[str, ...]]:
        return open_critic(path / layout.CRITIC_NAME, run.info, _open)

    def facts() -> StoreFacts:
        found = run.facts
        return replace(found, notes=(*found.notes, *critic()[1]))

    return replace(run, _facts=facts, _critic=lambda: critic()[0])


def _open(path: Path) -> Run:
    listing = _list(path)
    info, notes = _info(path, listing)
    presence = Presence()
    skipped: list[str] = []
    if info.logprob_dtype is None:
        info = replace(info, logprob_dtype=_logprob_dtype(_claims(path, listing.claims)))
    notes += [f"{name}: a file that was not finished" for name in sorted(listing.temporaries)]
    parts = list(_open_parts(path, listing, presence, skipped, notes))
    metric_parts = list(_whole_metrics(path, listing, skipped))
    kept, overlap = latest(parts)
    if not kept and not metric_parts:
        otherwise = "; the recording has ended" if info.status == "complete" else " yet"
        told = _why([*_told(_claims(path, listing.claims))[1], *skipped], otherwise)
        raise NothingToJudgeError(f"{path}: no rows recorded{told}")
    columns = frozenset(name for name in presence.present if schema.column(name) is not None)
    if kept and not metric_parts and columns <= _BARE:
        told = _why([*_told(_claims(path, listing.claims))[1], *skipped], "; pass the columns of the batch to log_batch")
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
        found = _facts(path, info, listing, parts, (fragments, segments, columns), skipped, [*overlap, *notes])
        steps = [] if segments else logged().steps().tolist()
        return replace(
            found,
            first_step=steps[0] if steps else found.first_step,
            last_step=steps[-1] if steps else found.last_step,
            empty_columns=empty_floats(columns, presence.numeric.__contains__, read, null),
        )

    recorded_in = {step: part.name.session for part, _, step in kept}
    return Run(path, info, columns, fragments, segments, facts, logged, recorded_in=recorded_in)


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
        elif name not in {layout.INFO_NAME, layout.THINNING_NAME}:
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


def _open_parts(path: Path, listing: _Listing, presence: Presence, skipped: list[str], notes: list[str]) -> Iterator[Part]:
    """Open every part whose tables are whole, in the order of reading."""
    names = set(listing.parts)
    last: dict[tuple[int, int], int] = {}
    for name in sorted(name for name in names if name.table == "sequences"):
        last[name.session, name.rank] = name.number
        try:
            yield _opened(path, name, presence)
        except InputError as error:
            reason = str(error).removeprefix(f"{path}/")
            skipped.append(reason if reason.startswith(str(name)) else f"{name}: {reason}")
    orphans = [name for name in names if name.table in ("tokens", "contexts") and name.of("sequences") not in names]
    for name in sorted(orphans):
        if name.number > last.get((name.session, name.rank), -1):
            notes.append(f"{name}: a part that was not finished")  # its sequences would have come last
        else:
            skipped.append(f"{name}: its sequences part is missing")


def _opened(path: Path, name: PartName, presence: Presence) -> Part:
    try:
        return open_part(path, name, presence)
    except InputError:
        return open_part(path, name, presence)  # a recorder that saves space may have replaced it in between


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
    claims = _claims(path, listing.claims)
    dropped, told = _told(claims)
    steps = [segment.step for segment in segments]
    return StoreFacts(
        first_step=min(steps, default=None),
        last_step=max(steps, default=None),
        sequences=counts.sequences,
        tokens=counts.tokens,
        skipped_parts=tuple(dict.fromkeys(skipped)),
        unknown_columns=tuple(sorted({*(info.unknown_columns or ()), *(name for part in parts for name in part.unknown)})),
        notes=(*notes, *told_of_sessions(info, claims, parts), *imported(info), *told),
        dropped_steps=dropped,
        incomplete_steps=incomplete(info, listing.claims, parts),
        unsorted_steps=fallen(parts),
        repeated_rows=counts.repeated,
    )


def _claims(path: Path, claims: Iterable[tuple[int, int]]) -> dict[tuple[int, int], dict[str, Any]]:
    """What each writer says of itself; nothing where that cannot be read."""
    found = {}
    for session, rank in sorted(claims):
        file = path / layout.writer_name(session, rank)
        try:
            document = parse_json(file.read_bytes(), str(file))
        except (OSError, DoctorError):
            document = {}
        found[session, rank] = document if isinstance(document, dict) else {}
    return found


def _logprob_dtype(claims: Mapping[tuple[int, int], Mapping[str, Any]]) -> str | None:
    """Type of the log-probabilities that writers saw in the newest session in which any did; None where they differ."""
    found: dict[int, set[str]] = {}
    for (session, _), document in claims.items():
        if isinstance(dtype := document.get("logprob_dtype"), str):
            found.setdefault(session, set()).add(dtype)
    newest = found[max(found)] if found else set()
    return newest.pop() if len(newest) == 1 else None


def _told(claims: Mapping[tuple[int, int], Mapping[str, Any]]) -> tuple[int, list[str]]:
    """Steps that the writers dropped, and notes on those that stopped early."""
    total, notes = 0, []
    for (session, rank), document in claims.items():
        try:
            total += int(document["dropped_steps"])
        except (KeyError, TypeError, ValueError):
            name = layout.writer_name(session, rank)
            notes.append(f"{name} cannot be read: the steps that this writer dropped are unknown")
        if document.get("status") == "detached":
            why = document.get("reason") or "the training's log says why"
            notes.append(f"recording stopped early in session {session} on rank {rank}: {why}")
    return total, notes


def _why(known: list[str], otherwise: str) -> str:
    return f" ({'; '.join(known[:3])})" if known else otherwise


def _whole_metrics(path: Path, listing: _Listing, skipped: list[str]) -> Iterator[ParquetInput]:
    """Open every metrics part that is whole, oldest session first, so that a later one wins."""
    for name in sorted(name for name in listing.parts if name.table == "metrics"):
        try:
            yield open_metrics(path / str(name))
        except InputError as error:
            skipped.append(str(error).removeprefix(f"{path}/"))
