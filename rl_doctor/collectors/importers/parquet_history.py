"""A history of scalars in Parquet: a step column and metric columns, or step, name and value."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.collectors.importers.columns import Columns
from rl_doctor.collectors.importers.records import NAME_KEYS, VALUE_KEYS, evaluated, is_evaluation
from rl_doctor.collectors.importers.registry import Fit, Imported, Sample, importer, part_of
from rl_doctor.collectors.importers.rows import assemble_columns
from rl_doctor.errors import DoctorError, NothingToJudgeError
from rl_doctor.schema import METADATA_KEY, REWARD_COMPONENT_PREFIX, RunInfo, column
from rl_doctor.store import buffers
from rl_doctor.store.aliases import ALIASES, ATTENTION_MASK, PANDAS_INDEX
from rl_doctor.store.decode import is_list
from rl_doctor.store.info import info_from_json, parse_json
from rl_doctor.store.members import FACTS_MEMBER, METRICS_FILE_MEMBER
from rl_doctor.store.parquet_file import ParquetInput
from rl_doctor.store.run import PARQUET_MAGIC
from rl_doctor.store.step_axis import step_names

if TYPE_CHECKING:
    import pyarrow as pa

_TOKEN_METRICS: Final = frozenset({"advantage", "entropy", "kl", "old_entropy", "ratio", "return", "value"})
"""Token columns whose names trainers also use for a scalar per step."""
_SEQUENCE_METRICS: Final = frozenset({"epoch", "grad_norm", "learning_rate", "response_length", "reward", "score", "turns"})
"""Sequence columns whose names trainers also use for a scalar per step."""
_PARTS_OF_STEP: Final = frozenset({"rollout_step", "window"})
"""Columns that place a row in the training, like the step."""
_ROWS_PER_STEP: Final = 1.5
"""From so many rows per step on, a table with sequence columns has sequences; restarts and evaluations repeat fewer."""


def is_history(path: Path) -> bool:
    """Whether a Parquet file has one row of scalars per step, and nothing that tells sequences apart.

    Raises:
        InputError: it is damaged or cannot be read.
    """
    source = ParquetInput.open(path)
    names = [name for name in source.schema.names if not name.startswith(PANDAS_INDEX)]
    if source.file.metadata.num_rows == 0 or len(set(names)) < len(names):
        return False
    steps = step_names(names)
    return bool(steps) and (_long_keys(names) is not None or _is_wide(source, names, steps))


def _is_wide(source: ParquetInput, names: Sequence[str], steps: Sequence[str]) -> bool:
    types = {name: source.schema.field(name).type for name in names}
    known = {name: canonical for name in names if name not in steps and (canonical := _canonical(name)) is not None}
    if any(is_list(types[name]) for name in known):
        return False
    columns = {name for name in known.values() if not name.startswith(REWARD_COMPONENT_PREFIX)} - _PARTS_OF_STEP
    if columns - _TOKEN_METRICS - _SEQUENCE_METRICS:
        return False
    metrics = [name for name in names if name not in known and name not in steps and _is_number(types[name])]
    if not metrics and not columns & _TOKEN_METRICS:
        return False
    return not known or _rows_per_step(source, steps[0]) < _ROWS_PER_STEP


def _canonical(name: str) -> str | None:
    if name == ATTENTION_MASK or column(name) is not None:
        return name
    return ALIASES.get(name)


def _recognises(sample: Sample) -> Fit:
    if not sample.head.startswith(PARQUET_MAGIC):
        return Fit.NO
    try:
        return Fit.SIGNATURE if is_history(part_of(sample.path)[0]) else Fit.NO
    except DoctorError:
        return Fit.NO


@importer("parquet-history", "a history of scalars in Parquet", _recognises, parts=True)
def read(path: Path) -> Imported:
    """Read all scalars under their names in the file; a null is a gap."""
    source = ParquetInput.open(part_of(path)[0])
    names = [name for name in source.schema.names if not name.startswith(PANDAS_INDEX)]
    gathered = Columns()
    if (long := _long_keys(names)) is not None:
        _gather_long(gathered, source, names, *long)
    else:
        _gather(gathered, source, names)
    found = assemble_columns(gathered, path)
    if all(np.isnan(values).all() for _, values in found.log.points.values()):
        raise NothingToJudgeError(f"{path}: a history of scalars without a value that is not NaN")
    return Imported(found.log, _info(source), found.notes, () if long else _empty(source, names, found.log.names()))


def _info(source: ParquetInput) -> RunInfo:
    text = source.metadata(METADATA_KEY)
    if text is None:
        return RunInfo()
    where = f"{source.path}: metadata 'rl_doctor'"
    document = parse_json(text, where)
    if isinstance(document, dict):
        document = {name: value for name, value in document.items() if name not in {"metrics", FACTS_MEMBER, METRICS_FILE_MEMBER}}
    return info_from_json(document, where)


def _gather(gathered: Columns, source: ParquetInput, names: Sequence[str]) -> None:
    types = {name: source.schema.field(name).type for name in names}
    numbers = [name for name in names if _is_number(types[name])]
    texts = [name for name in names if _is_text(types[name])]
    for group in range(source.row_groups):
        table = source.read(group, [*numbers, *texts])
        for name in numbers:
            gathered.put(name, *_numbers(table.column(name)))
        for name in texts:
            gathered.put_values(name, table.column(name).to_pylist())
        gathered.rows += table.num_rows


def _gather_long(gathered: Columns, source: ParquetInput, names: Sequence[str], key: str, value: str) -> None:
    steps = step_names(names)
    split = ["split"] if "split" in names else []
    for group in range(source.row_groups):
        table = source.read(group, [*steps, key, value, *split])
        called = ["" if name is None else str(name) for name in table.column(key).to_pylist()]
        if split:
            told = table.column("split").to_pylist()
            called = [evaluated(name) if is_evaluation(own) else name for name, own in zip(called, told, strict=True)]
        shared = {name: table.column(name).to_pylist() for name in steps}
        gathered.add_long(shared, called, table.column(value).to_pylist())


def _long_keys(names: Sequence[str]) -> tuple[str, str] | None:
    key = next((key for key in NAME_KEYS if key in names), None)
    value = next((key for key in VALUE_KEYS if key in names), None)
    return None if key is None or value is None else (key, value)


def _numbers(chunked: pa.ChunkedArray) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Rows that are not null, and their values."""
    import pyarrow as pa

    arrays = chunked.chunks
    if pa.types.is_decimal(chunked.type):
        arrays = [array.cast(pa.float64()) for array in arrays]
    if not arrays:
        return np.empty(0, np.int64), np.empty(0)
    there = np.concatenate([buffers.validity(array) for array in arrays])
    values = np.concatenate([buffers.values(array).astype(np.float64) for array in arrays])
    return np.flatnonzero(there), values[there]


def _rows_per_step(source: ParquetInput, step: str) -> float:
    if not _is_number(source.schema.field(step).type):
        return np.inf
    found = [_numbers(source.read(group, [step]).column(step))[1] for group in range(source.row_groups)]
    steps = np.concatenate(found)
    return len(steps) / len(np.unique(steps)) if len(steps) else np.inf


def _empty(source: ParquetInput, names: Sequence[str], filled: Sequence[str]) -> tuple[str, ...]:
    """Columns of numbers in which nothing stands but null."""
    return tuple(name for name in names if name not in filled and _is_number_or_null(source.schema.field(name).type))


def _is_number(type_: Any) -> bool:
    import pyarrow as pa

    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    return any(test(type_) for test in tests)


def _is_number_or_null(type_: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_null(type_)) or _is_number(type_)


def _is_text(type_: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))
