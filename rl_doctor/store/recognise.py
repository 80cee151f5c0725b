"""Finds out by its columns what a Parquet file is, and opens it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from functools import cache
from pathlib import Path
from typing import Any

from rl_doctor.errors import InputError, NothingToJudgeError
from rl_doctor.frozen import frozen
from rl_doctor.schema import METADATA_KEY, RunInfo
from rl_doctor.store.aliases import ATTENTION_MASK, PANDAS_INDEX, Resolution, resolve
from rl_doctor.store.critic import open_critic
from rl_doctor.store.decode import is_list
from rl_doctor.store.facts import StoreFacts
from rl_doctor.store.flat import POSITIONS, open_flat
from rl_doctor.store.info import info_from_json, parse_json
from rl_doctor.store.known import look
from rl_doctor.store.members import (
    CRITIC_FILE_MEMBER,
    FACTS_MEMBER,
    METRICS_FILE_MEMBER,
    RECORDED_IN_MEMBER,
    facts_from_json,
    recorded_in,
)
from rl_doctor.store.metric_log import MetricLog
from rl_doctor.store.metrics_json import metrics_from_json
from rl_doctor.store.parquet_file import ParquetInput
from rl_doctor.store.part import open_metrics, read_metrics
from rl_doctor.store.plan import Opened, rows_in_order, windows_of
from rl_doctor.store.presence import MASK, Presence, require_values
from rl_doctor.store.rows import Rows, is_token
from rl_doctor.store.run import Run
from rl_doctor.store.run_file import open_lists
from rl_doctor.store.stamps import stamp


def open_file(source: ParquetInput, *, with_critic: bool = True) -> Run:
    """Open a Parquet file of any recognised form; see ``open_run``. Passes of a critic are looked for beside it if asked for."""
    where = str(source.path)
    described = _describe(source)
    described = described if with_critic else replace(described, critic_file=None)
    if source.file.metadata.num_rows == 0:
        raise NothingToJudgeError(f"{where}: has no row; record or export the run again")
    resolution = resolve((name for name in source.schema.names if not name.startswith(PANDAS_INDEX)), where)
    presence = Presence()
    presence.add(source.file.metadata, source.schema)
    names = {name: found for name, found in resolution.found.items() if found in presence.present or name == "step"}
    if MASK in resolution.found and not any(map(is_token, names)) and _has_lists(source, resolution.found[MASK]):
        names[MASK] = resolution.found[MASK]  # 0 everywhere, so that no position was worth keeping
    if "step" not in resolution.found:
        shown = ", ".join(source.schema.names[:12])
        raise NothingToJudgeError(f"{where}: no column 'step' among {shown}; add the optimizer step of each row")
    types = {name: source.schema.field(found).type for name, found in names.items()}
    lists = {name for name, type_ in types.items() if is_list(type_)}
    if not resolution.found.keys() - {"step", ATTENTION_MASK}:
        shown = ", ".join(source.schema.names[:12])
        raise NothingToJudgeError(f"{where}: nothing known in its columns ({shown}); rename them or see the documented schema")
    null = [name for name in resolution.found if name not in names]
    if not names.keys() - {"step", ATTENTION_MASK}:
        raise NothingToJudgeError(f"{where}: holds nothing but NaN or null in {', '.join(null)}")
    position = next((name for name in POSITIONS if name in resolution.unknown), None)
    told = not names.keys().isdisjoint({"sequence", "uid"})
    if not lists and any(is_token(name) for name in names) and (told or position is not None):
        opened = open_flat(source, names, None if told else position)
    else:
        opened = open_lists(source, names)
    return _run(source, names, opened, (resolution, presence), described)


def _has_lists(source: ParquetInput, name: str) -> bool:
    """Whether a column of lists has one, be it empty: to a footer an empty list is a null."""
    if not is_list(source.schema.field(name).type):
        return False
    groups = range(source.row_groups)
    return any(piece.column(0).null_count < piece.num_rows for group in groups for piece in source.stream(group, [name], 4096))


def _run(
    source: ParquetInput,
    names: Mapping[str, str],
    opened: Opened,
    found: tuple[Resolution, Presence],
    described: _Description,
) -> Run:
    resolution, presence = found
    columns = frozenset(opened.columns)
    null = {name: found for name, found in resolution.found.items() if name not in names}

    def proven(name: str) -> bool:
        return names.get(name) in presence.numeric

    def read(name: str) -> Iterator[Rows]:
        return (rows for _, rows in rows_in_order(opened.fragments, windows_of(opened.segments), [name]))

    require_values(columns, proven, read, str(source.path), null)
    told = tuple(f"column {found!r} is null everywhere: it counts as absent" for found in null.values())

    known: dict[str, Any] = {}

    def facts() -> StoreFacts:
        if "notes" not in known:
            known["notes"] = list(opened.notes())
        counts, empty = look(known, opened.fragments, opened.segments, columns, proven, null)
        return replace(
            described.facts,
            first_step=min(segment.step for segment in opened.segments),
            last_step=max(segment.step for segment in opened.segments),
            sequences=counts.sequences,
            tokens=counts.tokens,
            unknown_columns=tuple(sorted({*(described.info.unknown_columns or ()), *resolution.unknown})),
            renamed_columns=resolution.renamed,
            notes=(*described.facts.notes, *resolution.notes, *told, *known["notes"], *left_out),
            unsorted_steps=opened.unsorted,
            repeated_rows=counts.repeated,
            empty_columns=tuple(sorted({*described.facts.empty_columns, *empty})),
        )

    @cache
    def stamped() -> bytes:
        return stamp([source.path], named=False)

    critic, left_out = described.critic(source.path)
    return Run(
        source.path, described.info, columns, opened.fragments, opened.segments, facts, lambda: described.metrics, lambda: critic,
        recorded_in(described.stretches, (segment.step for segment in opened.segments), str(source.path)),
        lambda _: stamped(), known,
    )  # fmt: skip


@frozen
class _Description:
    """What the file's metadata say."""

    info: RunInfo = RunInfo()
    metrics: MetricLog = field(default_factory=MetricLog)
    facts: StoreFacts = StoreFacts()
    critic_file: str | None = None
    stretches: Any = ()

    def critic(self, of: Path) -> tuple[Run | None, tuple[str, ...]]:
        """The passes of the critic that were packed beside the file ``of``, and why they are left out if they are."""
        if self.critic_file is None:
            return None, ()
        path = of.with_name(self.critic_file)
        critic, told = open_critic(path, self.info, lambda path: open_file(ParquetInput.open(path), with_critic=False))
        return critic, told if critic is None else ()


def _describe(source: ParquetInput) -> _Description:
    text = source.metadata(METADATA_KEY)
    if text is None:
        return _Description()
    where = f"{source.path}: metadata 'rl_doctor'"
    document = parse_json(text, where)
    if not isinstance(document, dict):
        return _Description(info_from_json(document, where))
    member: Any = document.pop("metrics", None)
    beside = document.pop(METRICS_FILE_MEMBER, None)
    apart: Any = document.pop(CRITIC_FILE_MEMBER, None)
    critic = Path(str(apart)).name if apart else None
    facts = facts_from_json(document.pop(FACTS_MEMBER, None) or {}, where)
    stretches: Any = document.pop(RECORDED_IN_MEMBER, None) or ()
    info = info_from_json(document, where)
    if member is not None:
        log, told = metrics_from_json(member, where)
        return _Description(info, log, replace(facts, notes=(*facts.notes, *told)), critic, stretches)
    if beside is None:
        return _Description(info, facts=facts, critic_file=critic, stretches=stretches)
    path = source.path.with_name(str(beside))
    if not path.exists():
        raise InputError(f"{where}: the logged metrics are in {beside!r}, which is not beside the run file; copy it there")
    return _Description(info, MetricLog.of(read_metrics(open_metrics(path))), facts, critic, stretches)
