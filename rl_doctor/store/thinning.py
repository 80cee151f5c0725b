"""Takes the tokens of old steps out of a run folder, so that a kill at any moment leaves a run that can be read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from rl_doctor.errors import InputError
from rl_doctor.frozen import frozen
from rl_doctor.store import encode, layout
from rl_doctor.store.info import parse_json
from rl_doctor.store.layout import PartName
from rl_doctor.store.parquet_file import ParquetInput
from rl_doctor.store.part import footer, step_of
from rl_doctor.store.presence import chunks_of

if TYPE_CHECKING:
    import pyarrow as pa

Spans = tuple[tuple[int, int], ...]
"""Ranges of steps, first and last of each, increasing."""

_FLAG: Final = "tokens_dropped"
_FIRST: Final = 8
"""Generation batches at the start of the run that keep their tokens, where there is room."""
_ENDS: Final = 4
"""Generation batches at either end of a long finding that keep their tokens."""


@frozen
class Plan:
    """Which steps of a run keep their tokens; ``thinning.json``, written by rank 0 and followed by every rank.

    Attributes:
        until: last step that the plan is about; later steps are whole.
        kept: steps up to ``until`` that keep their tokens.
        stage: of the old generation batches, each ``2 ** stage``-th keeps its tokens.
        findings: steps that the findings of the last check rest on.
        stopped: whether the tokens of new steps are left out, because thinning did not free enough.
    """

    until: int
    kept: Spans
    stage: int = 0
    findings: Spans = ()
    stopped: bool = False

    def keeps(self, step: int) -> bool:
        """Whether the step keeps its tokens."""
        return step > self.until or any(first <= step <= last for first, last in self.kept)


def read_plan(folder: Path) -> Plan | None:
    """The folder's plan; None where it was never thinned.

    Raises:
        InputError: it cannot be read.
    """
    path = folder / layout.THINNING_NAME
    try:
        document = parse_json(path.read_bytes(), str(path))
        kept, findings = (tuple((int(first), int(last)) for first, last in document[name]) for name in ("kept", "findings"))
        return Plan(int(document["until"]), kept, int(document["stage"]), findings, bool(document["stopped"]))
    except FileNotFoundError:
        return None
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error}); remove it") from error


def write_plan(folder: Path, plan: Plan) -> None:
    """Write the folder's plan; durable when it returns."""
    document = {
        "until": plan.until, "kept": plan.kept, "stage": plan.stage, "findings": plan.findings, "stopped": plan.stopped
    }  # fmt: skip
    layout.write_json_durably(folder / layout.THINNING_NAME, document)


def spans_of(steps: Iterable[int]) -> Spans:
    """Ranges of steps, each as long as it can be."""
    found: list[list[int]] = []
    for step in sorted(set(steps)):
        if found and found[-1][1] == step - 1:
            found[-1][1] = step
        else:
            found.append([step, step])
    return tuple((first, last) for first, last in found)


@frozen
class Sizes:
    """Bytes of a run's own files: all of them, and those of tokens."""

    total: int
    tokens: int


def sizes(folder: Path) -> Sizes:
    """How much room the files of a run take."""
    total = tokens = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            part = layout.parse_part(entry.name)
            own = part or layout.parse_writer(entry.name) or entry.name in {layout.INFO_NAME, layout.THINNING_NAME}
            if not own and not entry.name.endswith(layout.TEMPORARY_SUFFIX):
                continue
            try:
                size = entry.stat().st_size
            except FileNotFoundError:
                continue
            total += size
            tokens += size if part is not None and part.table == "tokens" else 0
    return Sizes(total, tokens)


class StepsOfRun:
    """The steps of a run folder by generation batch, from the footers of one rank's parts, each read once.

    Args:
        folder: the run folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[PartName, dict[int, int | None]] = {}

    def generation_batches(self) -> list[tuple[int, ...]]:
        """Steps that trained on the same generation batch, in order; a step that trained on several stands alone."""
        names = (layout.parse_part(path.name) for path in self._folder.iterdir())
        ranks: dict[int, dict[int, list[PartName]]] = {}
        for name in sorted(name for name in names if name is not None and name.table == "sequences"):
            ranks.setdefault(name.session, {}).setdefault(name.rank, []).append(name)
        batch_of: dict[int, int | None] = {}
        for session in sorted(ranks):
            for rank in sorted(ranks[session]):
                steps = {step: batch for name in ranks[session][rank] for step, batch in self._steps(name).items()}
                batch_of |= steps
                if steps:
                    break
        found: list[list[int]] = []
        for step in sorted(batch_of):
            if found and batch_of[step] is not None and batch_of[found[-1][-1]] == batch_of[step]:
                found[-1].append(step)
            else:
                found.append([step])
        return [tuple(steps) for steps in found]

    def _steps(self, name: PartName) -> dict[int, int | None]:
        """Generation batch of each step of a part; None where it is unknown or not the same for all rows."""
        if name not in self._known:
            try:
                source = ParquetInput.open(self._folder / str(name))
            except InputError:
                return {}
            steps: dict[int, int | None] = {}
            for group in range(source.row_groups):
                if source.rows_of(group):
                    step, batch = step_of(source, group), _only_value(source, group, "rollout_step")
                    steps[step] = batch if steps.get(step, batch) == batch else None
            self._known[name] = steps
        return self._known[name]


def _only_value(source: ParquetInput, group: int, column: str) -> int | None:
    for chunk in chunks_of(source.file.metadata, group, column):
        told = chunk.statistics
        if told is not None and told.has_min_max and told.min == told.max and not told.null_count:
            return int(told.min)
    return None


def choose(batches: Sequence[tuple[int, ...]], room: int, findings: Spans, before: Plan) -> Plan:
    """Which generation batches keep their tokens: the first, the newest, some with findings, and of the others each 2nd, 4th ...

    Args:
        batches: steps of each generation batch, in order.
        room: how many may keep them, at least 4.
        findings: steps with findings, the gravest first.
        before: the plan so far, which is only ever narrowed.
    """
    n = len(batches)
    first, newest = min(_FIRST, max(room // 4, 1)), max(room // 4, 1)
    always = {*range(min(first, n)), *range(max(n - newest, 0), n)}
    pinned: dict[int, None] = {}
    for start, stop in findings:
        hit = [index for index, steps in enumerate(batches) if steps[0] <= stop and start <= steps[-1]]
        pinned |= dict.fromkeys(hit if len(hit) <= 2 * _ENDS else [*hit[:_ENDS], *hit[-_ENDS:]])
    always |= set([index for index in pinned if index not in always][: room // 4])
    whole = {index for index, steps in enumerate(batches) if all(before.keeps(step) for step in steps)}
    for stage in range(max(before.stage, 1), n.bit_length() + 2):
        kept = whole & (always | {index for index in range(n) if index % 2**stage == 0})
        if len(kept) <= min(room, len(whole) - 1):
            break
    until = batches[max(n - newest, 1) - 1][-1] if n else before.until
    steps = (step for index in kept for step in batches[index] if step <= until)
    return Plan(until, spans_of(steps), stage, findings)


def thin_part(folder: Path, name: PartName, keeps: Callable[[int], bool]) -> tuple[int, ...]:
    """Take the tokens of some steps out of a part.

    The tokens that stay are written under a new name first. Then the sequences part is replaced in one rename by one that says
    so, and only then the old tokens go; what a kill leaves beside it is not read, and removed by the next call.

    Args:
        folder: the run folder.
        name: name of the sequences part.
        keeps: whether a step keeps its tokens.

    Returns:
        The steps whose tokens were taken out now.

    Raises:
        InputError: the part is damaged.
        OSError: it cannot be written.
    """
    sequences = ParquetInput.open(folder / str(name))
    document = footer(sequences)
    version = int(document.get("tokens_version", 0))
    gone: tuple[int, ...] = ()
    if "tokens" in document["tables"]:
        tokens = ParquetInput.open(folder / str(name.of("tokens", version)))
        groups = range(sequences.row_groups)
        dropped = frozenset(group for group in groups if sequences.rows_of(group) and not keeps(step_of(sequences, group)))
        gone = tuple(sorted({step_of(sequences, group) for group in dropped if tokens.rows_of(group)}))
        if gone:
            version += 1
            document = {**document, "tokens_version": version}
            if any(tokens.rows_of(group) for group in groups if group not in dropped):
                left = folder / str(name.of("tokens", version))
                _copy(left, tokens, lambda group, table: table[:0] if group in dropped else table)
            else:
                document["tables"] = [table for table in document["tables"] if table != "tokens"]
            told = {layout.PART_METADATA_KEY: json.dumps(document).encode()}
            _copy(folder / str(name), sequences, lambda group, table: _marked(table, dropped=group in dropped), told)
    _remove_others(folder, name, version, keep="tokens" in document["tables"])
    return gone


def _remove_others(folder: Path, name: PartName, version: int, *, keep: bool) -> None:
    """Remove the part's tokens in other versions than the one that its sequences part names, if it names one."""
    removed = False
    for other in range(version + 2):  # a kill may have left the next one
        path = folder / str(name.of("tokens", other))
        if not (keep and other == version) and path.exists():
            path.unlink()
            removed = True
    if removed:
        layout.sync_folder(folder)


def _marked(table: pa.Table, *, dropped: bool) -> pa.Table:
    """Rows of a sequences part, marked as without tokens where they are ``dropped``."""
    import pyarrow as pa

    if _FLAG not in table.column_names:
        table = table.append_column(encode.field(_FLAG), pa.array([False] * table.num_rows, pa.bool_()))
    if not dropped:
        return table
    for column, value in ((_FLAG, True), ("stored_length", 0)):
        at = table.column_names.index(column)
        values = pa.array([value] * table.num_rows, table.field(at).type)
        table = table.set_column(at, table.field(at), values)
    return table


def _copy(
    path: Path, source: ParquetInput, change: Callable[[int, pa.Table], pa.Table], metadata: dict[bytes, bytes] | None = None
) -> None:
    """Write a table anew, row group by row group."""
    import pyarrow.parquet as pq

    names = source.schema.names
    first = change(0, source.read(0, names))
    schema_ = first.schema.with_metadata({**(source.schema.metadata or {}), **(metadata or {})})

    def write(file: BinaryIO) -> None:
        with pq.ParquetWriter(file, schema_, **_settings(schema_.names)) as writer:
            for group in range(source.row_groups):
                table = change(group, source.read(group, names))
                writer.write_table(table.replace_schema_metadata(schema_.metadata), row_group_size=max(table.num_rows, 1))

    layout.write_durably(path, write)


def _settings(names: Iterable[str]) -> dict[str, Any]:
    from rl_doctor import schema

    return encode.parquet_settings(name for name in names if schema.column(name) is not None)
