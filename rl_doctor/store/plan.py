"""In which order the pieces of a run are read, so that steps come in order and memory does not grow with the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from rl_doctor.frozen import frozen
from rl_doctor.schema import RunInfo
from rl_doctor.store.batch import Batch
from rl_doctor.store.rows import Rows, concatenate

WINDOW_TOKENS: Final = 1 << 23
"""Tokens held at once where the steps of a file are not in order."""


class Fragment(Protocol):
    """A stretch of a run that is decoded on its own, such as a row group."""

    def read(self, columns: Sequence[str], start: int, stop: int) -> Iterator[Rows]:
        """Decode the sequences ``start`` to ``stop`` of the fragment, in order, in pieces of bounded size."""


@frozen
class Segment:
    """Neighbouring sequences of one step in one fragment.

    Attributes:
        step: their step.
        fragment: index of the fragment, in the order of reading.
        start: first sequence within the fragment.
        stop: end of the sequences within the fragment.
        tokens: about how many tokens they have.
    """

    step: int
    fragment: int
    start: int
    stop: int
    tokens: int


@frozen
class Opened:
    """The rows of a file, ready to be read in pieces.

    Attributes:
        fragments: its fragments, in the order of reading.
        segments: its segments.
        columns: canonical columns that reading gives.
        unsorted: number of places where the step falls from one row to the next.
        notes: finds out what a reader should be told about the values.
    """

    fragments: Sequence[Fragment]
    segments: Sequence[Segment]
    columns: frozenset[str]
    unsorted: int
    notes: Callable[[], Iterable[str]] = tuple


@dataclass(slots=True)
class _Window:
    """Segments that are read together: streamed where the steps are in order, else gathered and sorted."""

    segments: list[Segment] = field(default_factory=list)
    tokens: int = 0
    in_order: bool = True

    def add(self, segments: Sequence[Segment], *, in_order: bool) -> None:
        self.segments.extend(segments)
        self.tokens += sum(segment.tokens for segment in segments)
        self.in_order = self.in_order and in_order


def segments_of(steps: NDArray[np.int64], fragment: int, tokens: NDArray[np.int64] | None) -> list[Segment]:
    """Segments of one fragment.

    Args:
        steps: step of each sequence, ``[n]``.
        fragment: the fragment's index.
        tokens: number of tokens of each sequence, ``[n]``; None where there are none.
    """
    if not len(steps):
        return []
    starts = np.concatenate([[0], np.flatnonzero(np.diff(steps)) + 1])
    stops = np.append(starts[1:], len(steps))
    counts = np.add.reduceat(tokens, starts) if tokens is not None else np.zeros(len(starts), np.int64)
    return [
        Segment(int(steps[start]), fragment, int(start), int(stop), int(count))
        for start, stop, count in zip(starts, stops, counts, strict=True)
    ]


def windows_of(segments: Iterable[Segment]) -> list[_Window]:
    """Group segments into windows, in increasing order of steps."""
    ordered = sorted(segments, key=lambda segment: (segment.step, segment.fragment, segment.start))
    windows: list[_Window] = []
    at = 0
    while at < len(ordered):
        end = at
        while end < len(ordered) and ordered[end].step == ordered[at].step:
            end += 1
        group = ordered[at:end]
        follows = not windows or _position(windows[-1].segments[-1]) < _position(group[0])
        tokens = sum(segment.tokens for segment in group)
        if windows and follows and windows[-1].in_order:
            windows[-1].add(group, in_order=True)
        elif windows and windows[-1].tokens + tokens <= WINDOW_TOKENS:
            windows[-1].add(group, in_order=False)
        else:
            windows.append(_Window())
            windows[-1].add(group, in_order=True)
        at = end
    return windows


def _position(segment: Segment) -> tuple[int, int]:
    return segment.fragment, segment.start


def rows_in_order(
    fragments: Sequence[Fragment], windows: Sequence[_Window], columns: Sequence[str]
) -> Iterator[tuple[int, Rows]]:
    """Decode all windows: (step, rows) in increasing order of steps, in pieces of bounded size."""
    for window in windows:
        pieces = _pieces(fragments, sorted(window.segments, key=_position), columns)
        if window.in_order:
            yield from pieces
            continue
        held: dict[int, list[Rows]] = {}
        for step, rows in pieces:
            held.setdefault(step, []).append(rows)
        for step in sorted(held):
            yield step, concatenate(held.pop(step))


def _pieces(fragments: Sequence[Fragment], segments: Sequence[Segment], columns: Sequence[str]) -> Iterator[tuple[int, Rows]]:
    """Read each fragment once, from its first segment to its last, and cut it at the segments' bounds."""
    for index, group in groupby(segments, key=lambda segment: segment.fragment):
        wanted = list(group)
        current, position = 0, wanted[0].start
        for rows in fragments[index].read(columns, position, wanted[-1].stop):
            end = position + rows.n_sequences
            while current < len(wanted) and wanted[current].start < end:
                segment = wanted[current]
                start, stop = max(segment.start, position), min(segment.stop, end)
                yield segment.step, rows.slice(start - position, stop - position)
                if segment.stop > end:
                    break
                current += 1
            position = end
            del rows


def batches_of(pieces: Iterable[tuple[int, Rows]], max_tokens: int, info: RunInfo, run_tokens: int = 0) -> Iterator[Batch]:
    """Make batches of whole sequences of one step, of at most ``max_tokens`` tokens unless one sequence has more."""
    held: list[Rows] = []
    held_step, held_tokens = 0, 0
    for step, piece in pieces:
        for rows in _cut(piece, max_tokens):
            if held and (step != held_step or held_tokens + rows.n_tokens > max_tokens):
                yield _batch(held_step, held, info, run_tokens)
                held, held_tokens = [], 0
            held.append(rows)
            held_step, held_tokens = step, held_tokens + rows.n_tokens
        del piece, rows  # held apart from what is still needed, they would outlive the next row group's reading
    if held:
        yield _batch(held_step, held, info, run_tokens)


def _cut(rows: Rows, max_tokens: int) -> Iterator[Rows]:
    at = 0
    while at < rows.n_sequences:
        full = int(np.searchsorted(rows.splits, rows.splits[at] + max_tokens, side="right")) - 1
        stop = min(max(full, at + 1), rows.n_sequences)
        yield rows if stop - at == rows.n_sequences else rows.slice(at, stop)
        at = stop


def _batch(step: int, held: list[Rows], info: RunInfo, run_tokens: int) -> Batch:
    rows = concatenate(held)
    columns = {name: values for name, values in rows.columns.items() if name != "step"}
    columns["step"] = np.full(rows.n_sequences, step, np.int64)
    return Batch(step, columns, rows.splits, info, run_tokens)
