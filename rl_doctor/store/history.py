"""Reads a history of scalars: a step column and metric columns, or step, name and value."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from rl_doctor import schema
from rl_doctor.errors import InputError, NothingToJudgeError
from rl_doctor.schema import REWARD_COMPONENT_PREFIX
from rl_doctor.store.aliases import PANDAS_INDEX
from rl_doctor.store.decode import decode
from rl_doctor.store.metric_log import MetricLog, Record
from rl_doctor.store.parquet_file import ParquetInput
from rl_doctor.store.presence import floats

if TYPE_CHECKING:
    import pyarrow as pa

_TOKEN_METRICS: Final = frozenset({"advantage", "entropy", "kl", "old_entropy", "ratio", "return", "value"})
"""Token columns whose names trainers also use for a scalar per step."""
_SEQUENCE_METRICS: Final = frozenset({"epoch", "grad_norm", "learning_rate", "response_length", "reward", "score", "turns"})
"""Sequence columns whose names trainers also use for a scalar per step."""
_LONG: Final = frozenset({"step", "name", "value"})


def is_history(source: ParquetInput, names: Mapping[str, str], lists: Collection[str], unknown: Collection[str]) -> bool:
    """Whether the file has one row of scalars per step and nothing that tells sequences apart.

    Args:
        source: the file.
        names: canonical name -> name in the file.
        lists: canonical names whose column holds lists.
        unknown: names in the file that are no known column.
    """
    if lists:
        return False
    if set(source.schema.names) >= _LONG and "name" in unknown:
        return True
    known = {name for name in names if name != "step"}
    components = {name for name in known if name.startswith(REWARD_COMPONENT_PREFIX)}
    if known - components - _TOKEN_METRICS - _SEQUENCE_METRICS:
        return False
    metrics = [name for name in unknown if _is_number(source.schema.field(name).type)]
    if not metrics and not known & _TOKEN_METRICS:
        return False
    return not known or _one_row_per_step(source, names["step"])


def read_history(source: ParquetInput, step: str) -> MetricLog:
    """Read all scalars under their names in the file.

    Args:
        source: the file.
        step: name of its step column.

    Raises:
        InputError: a step is null or not a whole number.
        NothingToJudgeError: there is no value.
    """
    names = source.schema.names
    long_form = set(names) >= _LONG
    columns = [name for name in names if _is_metric(name, step) and _is_number(source.schema.field(name).type)]
    wanted = [step, "name", "value", *(["split"] if "split" in names else [])] if long_form else [step, *columns]

    def records() -> Iterator[Record]:
        first_row = 0
        for group in range(source.row_groups):
            table = source.read(group, wanted)
            steps = _steps(source, table, step, first_row)
            yield from _long(table, steps) if long_form else _wide(table, steps, columns)
            first_row += table.num_rows

    log = MetricLog.of(records())
    if all(np.isnan(values).all() for _, values in log.points.values()):
        raise NothingToJudgeError(f"{source.path}: a history of scalars without a value that is not NaN")
    return log


def empty_scalars(source: ParquetInput, found: Mapping[str, str], log: MetricLog) -> tuple[str, ...]:
    """Canonical float columns of a history that hold no value; none in the long form, whose columns are no metrics.

    Args:
        source: the file.
        found: canonical name -> name in the file.
        log: what ``read_history`` gave.
    """
    if set(source.schema.names) >= _LONG:
        return ()
    filled = {name for (name, _), (_, values) in log.points.items() if not np.isnan(values).all()}
    return tuple(floats(name for name, own in found.items() if own not in filled))


def _steps(source: ParquetInput, table: pa.Table, name: str, first_row: int) -> list[int]:
    where = f"{source.path}: column {name!r}"
    values = decode(table.column(name), schema.COLUMNS["step"], where, lambda index: f"row {first_row + index}")
    missing = values == schema.MISSING_INT["int64"]
    if missing.any():
        raise InputError(f"{where} is null in row {first_row + int(np.argmax(missing))}; every row needs its step")
    found: list[int] = values.tolist()
    return found


def _wide(table: pa.Table, steps: list[int], columns: list[str]) -> Iterator[Record]:
    for name in columns:
        for step, value in zip(steps, table.column(name).to_pylist(), strict=True):
            if value is not None:
                yield step, name, float(value), "train"


def _long(table: pa.Table, steps: list[int]) -> Iterator[Record]:
    splits = table.column("split").to_pylist() if "split" in table.column_names else ["train"] * len(steps)
    values = table.column("value").to_pylist()
    for step, name, value, split in zip(steps, table.column("name").to_pylist(), values, splits, strict=True):
        if name is not None:
            yield step, str(name), float("nan") if value is None else float(value), split or "train"


def _one_row_per_step(source: ParquetInput, step: str) -> bool:
    first_row = 0
    seen: set[int] = set()
    for group in range(source.row_groups):
        table = source.read(group, [step])
        steps = _steps(source, table, step, first_row)
        first_row += len(steps)
        if len(set(steps)) < len(steps) or not seen.isdisjoint(steps):
            return False
        seen.update(steps)
    return True


def _is_metric(name: str, step: str) -> bool:
    return name != step and not name.startswith(PANDAS_INDEX)


def _is_number(type_: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_))
