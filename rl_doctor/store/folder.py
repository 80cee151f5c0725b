"""Opens a run folder: finds its parts, leaves out what is torn or superseded, and says so."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
from rl_doctor.store.index import Counts
from rl_doctor.store.info import parse_info, parse_json
from rl_doctor.store.known import look
from rl_doctor.store.layout import PartName
from rl_doctor.store.members import imported
from rl_doctor.store.metric_log import MetricLog
from rl_doctor.store.part import Part, PartFragment
from rl_doctor.store.part_index import PartIndex
from rl_doctor.store.plan import Segment, rows_in_order, windows_of
from rl_doctor.store.presence import MASK, Presence, require_values
from rl_doctor.store.rows import Rows
from rl_doctor.store.run import Run
from rl_doctor.store.sessions import Group, fallen, gone_on, incomplete, latest, told_of_sessions

_BARE: Final = frozenset({"step", "sequence", "stored_length", "rollout_step", "epoch", "minibatch", "microbatch", "rank"})
"""Columns that say where a row belongs, and nothing of what was trained on."""


@dataclass(slots=True)
class Listing:
    """The names in a folder, sorted by what they are."""

    parts: list[PartName] = field(default_factory=list)
    claims: list[tuple[int, int]] = field(default_factory=list)
    temporaries: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)


def open_folder(path: Path, index: PartIndex | None = None, of_critic: PartIndex | None = None) -> Run:
    """Open a run folder; see ``open_run``. The passes of its critic are looked for inside.

    Args:
        path: the folder.
        index: what is known of its parts.
        of_critic: what is known of those of its critic.
    """
    return with_critic(run_of(read_contents(path, index)), lambda critic: run_of(read_contents(critic, of_critic)))


def with_critic(run: Run, opened: Callable[[Path], Run]) -> Run:
    """The run of a folder with the passes of its critic, where there are any; ``opened`` opens their folder."""
    path = run.path
    if not (path / layout.CRITIC_NAME).is_dir():
        return run

    @cache
    def critic() -> tuple[Run | None, tuple[str, ...]]:
        return open_critic(path / layout.CRITIC_NAME, run.info, opened)

    def facts() -> StoreFacts:
        found = run.facts
        return replace(found, notes=(*found.notes, *critic()[1]))

    return replace(run, _facts=facts, _critic=lambda: critic()[0])


@dataclass(slots=True)
class Contents:
    """What is in a run folder, opened.

    Attributes:
        path: the folder.
        listing: the names in it.
        index: what is known of its parts.
        info: what ``run.json`` says.
        presence: which columns hold anything.
        parts: the parts that are whole, in the order of reading.
        metric_parts: the metrics parts that are whole.
        skipped: parts that are left out, each with the reason.
        notes: what else there is to say.
        orphans: what there is to say of parts that lack their sequences.
        known: what was found out of their rows.
    """

    path: Path
    listing: Listing
    index: PartIndex
    info: RunInfo = RunInfo()
    presence: Presence = field(default_factory=Presence)
    parts: list[Part] = field(default_factory=list)
    metric_parts: list[PartName] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    known: dict[str, Any] = field(default_factory=dict)
    order: Order | None = None


@dataclass(slots=True)
class Order:
    """Which rows of a folder count, in which order.

    Attributes:
        groups: row groups, in the order of steps.
        fragments: the same, to be read.
        segments: the same, as the plan has them.
        recorded_in: step -> session that its rows come from.
        notes: on what was recorded again.
    """

    groups: list[Group]
    notes: list[str]
    fragments: list[PartFragment] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    recorded_in: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._place(0)

    def _place(self, start: int) -> None:
        for index, (part, group, step) in enumerate(self.groups[start:], start):
            self.fragments.append(PartFragment(part, group))
            self.segments.append(Segment(step, index, 0, part.rows[group], part.tokens[group]))
            self.recorded_in[step] = part.name.session

    def with_parts(self, fresh: Sequence[Part]) -> Order | None:
        """The order with further parts; None where all parts are to be looked at for it."""
        followed = None if self.notes else gone_on(self.groups, fresh)
        if followed is None:
            return None
        size, more = followed
        other = Order([], [], self.fragments[:size], self.segments[:size], dict(self.recorded_in))
        other.groups = [*self.groups[:size], *more]
        other._place(size)
        return other

    def without(self, steps: Collection[int]) -> Order:
        """The order as if some steps had not been recorded; they are at its end, unless something was recorded again."""
        if not steps:
            return self
        size = bisect_left(self.groups, min(steps), key=lambda item: item[2])
        more = [item for item in self.groups[size:] if item[2] not in steps]
        recorded_in = {step: session for step, session in self.recorded_in.items() if step not in steps}
        other = Order([], self.notes, self.fragments[:size], self.segments[:size], recorded_in)
        other.groups = [*self.groups[:size], *more]
        other._place(size)
        return other


def read_contents(path: Path, index: PartIndex | None = None) -> Contents:
    """Open all parts of a run folder.

    Args:
        path: the folder.
        index: what is known of its parts; by default nothing.

    Raises:
        InputError: it is no run folder, or cannot be read.
    """
    found = Contents(path, listed(path), PartIndex() if index is None else index)
    found.info, found.notes = read_info(path, found.listing)
    found.index.keep_only(found.listing.parts)
    found.parts += _open_parts(found)
    found.metric_parts += _whole_metrics(found)
    return found


def run_of(found: Contents, left_out: Collection[int] = (), before: Mapping[int, bytes] | None = None) -> Run:
    """The run of a folder's contents.

    Args:
        found: what is in the folder.
        left_out: steps that are treated as if they had not been recorded.
        before: digests of its first steps, where they are known.

    Raises:
        NothingToJudgeError: there is no row, no known column, or nothing but NaN.
    """
    path, info, presence, listing, parts = found.path, found.info, found.presence, found.listing, list(found.parts)
    index, metric_parts, skipped, known = found.index, list(found.metric_parts), list(found.skipped), dict(found.known)
    unfinished = [f"{name}: a file that was not finished" for name in sorted(listing.temporaries)]
    notes = [*found.notes, *unfinished, *found.orphans]
    if found.order is None:
        found.order = Order(*latest(parts))
    order = found.order.without(left_out)
    kept, overlap, fragments, segments = order.groups, order.notes, order.fragments, order.segments
    columns = frozenset(name for name in presence.present if schema.column(name) is not None)
    if MASK in presence.named and not any(segment.tokens for segment in segments):
        columns |= {MASK}  # recorded, and 0 everywhere: no position was worth keeping
    _require_rows(found, kept, columns)
    null = frozenset(name for name in presence.named - columns if schema.column(name) is not None)
    proven = frozenset(presence.numeric)

    def read(name: str) -> Iterator[Rows]:
        return (rows for _, rows in rows_in_order(fragments, windows_of(segments), [name]))

    require_values(columns, proven.__contains__, read, str(path), null)

    @cache
    def logged() -> MetricLog:
        return index.read_log(path, metric_parts)

    def facts() -> StoreFacts:
        looked = look(known, fragments, segments, columns, proven.__contains__, null)
        told = _facts(path, info, listing, parts, segments, looked, skipped, [*overlap, *notes])
        steps = [] if segments else logged().steps().tolist()
        return replace(
            told,
            first_step=steps[0] if steps else told.first_step,
            last_step=steps[-1] if steps else told.last_step,
            incomplete_steps=tuple(step for step in told.incomplete_steps if step not in left_out),
        )

    def stamped(segment: Segment) -> bytes:
        fragment = fragments[segment.fragment]
        return index.stamp(fragment.part) + struct.pack("<q", fragment.group)

    return Run(
        path, info, columns, fragments, segments, facts, logged, recorded_in=order.recorded_in, _stamp=stamped, known=known,
        _before={} if before is None else before,
    )  # fmt: skip


def _require_rows(found: Contents, kept: Sequence[Group], columns: frozenset[str]) -> None:
    """Refuse a folder in which there is nothing to judge."""
    if (kept and not columns <= _BARE) or found.metric_parts:
        return
    path = found.path
    what, otherwise = "values recorded, only steps", "; pass the columns of the batch to log_batch"
    if not kept:
        what, otherwise = "rows recorded", "; the recording has ended" if found.info.status == "complete" else " yet"
    told = _why([*_told(_claims(path, found.listing.claims))[1], *found.skipped], otherwise)
    unread = not kept and found.skipped
    raise (InputError if unread else NothingToJudgeError)(f"{path}: no {what}{told}")


def listed(path: Path) -> Listing:
    """The names in a run folder.

    Raises:
        InputError: it may not be read.
    """
    found = Listing()
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


def read_info(path: Path, listing: Listing) -> tuple[RunInfo, list[str]]:
    """The run's description, and what there is to say about it."""
    info, notes = _info(path, listing)
    if info.logprob_dtype is None:
        info = replace(info, logprob_dtype=_logprob_dtype(_claims(path, listing.claims)))
    return info, notes


def _info(path: Path, listing: Listing) -> tuple[RunInfo, list[str]]:
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


def _open_parts(found: Contents) -> Iterator[Part]:
    """Open every part whose tables are whole, in the order of reading."""
    names = set(found.listing.parts)
    last: dict[tuple[int, int], int] = {}
    for name in sorted(name for name in names if name.table == "sequences"):
        last[name.session, name.rank] = name.number
        try:
            yield found.index.opened(found.path, name, found.presence)
        except InputError as error:
            found.skipped.append(why_skipped(found.path, name, error))
    orphans = [name for name in names if name.table in ("tokens", "contexts") and name.of("sequences") not in names]
    for name in sorted(orphans):
        if name.number > last.get((name.session, name.rank), -1):
            found.orphans.append(f"{name}: a part that was not finished")  # its sequences would have come last
        else:
            found.skipped.append(f"{name}: its sequences part is missing")


def why_skipped(path: Path, name: PartName, error: InputError) -> str:
    """What is told of a part that is left out."""
    reason = str(error).removeprefix(f"{path}/")
    own = (str(name.of(table)).removesuffix(".parquet") for table in layout.TABLES)
    return reason if reason.startswith(tuple(own)) else f"{name}: {reason}"


def _facts(
    path: Path,
    info: RunInfo,
    listing: Listing,
    parts: list[Part],
    segments: list[Segment],
    looked: tuple[Counts, tuple[str, ...]],
    skipped: list[str],
    notes: list[str],
) -> StoreFacts:
    counts, empty = looked
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
        empty_columns=empty,
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


def _whole_metrics(found: Contents) -> Iterator[PartName]:
    """Every metrics part that is whole, oldest session first, so that a later one wins."""
    for name in sorted(name for name in found.listing.parts if name.table == "metrics"):
        try:
            found.index.check_metrics(found.path, name)
        except InputError as error:
            found.skipped.append(str(error).removeprefix(f"{found.path}/"))
        else:
            yield name
