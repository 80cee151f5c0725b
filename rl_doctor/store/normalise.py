"""From padded arrays to ragged rows: what a caller hands in, checked, cut to what is kept, and in the convention of batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rl_doctor import schema
from rl_doctor.errors import InputError
from rl_doctor.frozen import frozen
from rl_doctor.store.aliases import ATTENTION_MASK
from rl_doctor.store.alignment import Alignment, align
from rl_doctor.store.coerce import Locate, coerce
from rl_doctor.store.rows import Rows

PER_SEQUENCE: Final = frozenset({"advantage", "return", "is_weight", "ratio", "turn", "token_version"})
"""Token columns that trainers also hold as one value per sequence."""

WIDE: Final = frozenset({ATTENTION_MASK, *(column.name for column in schema.TOKEN_COLUMNS)})
"""Columns that have one value per token."""


def normalise(columns: Mapping[str, ArrayLike], *, full_width: bool = False, where: str = "log_batch") -> Rows:
    """Turn padded arrays into ragged rows.

    Kept of a sequence are the response positions from the first to the last at which the attention mask, the response mask or
    the loss mask is set; where neither attention mask nor ``response_length`` is given, ``response_length`` stays unknown.

    Args:
        columns: canonical names and ``attention_mask``. Token columns are ``[B, T]``, left or right padded; an advantage may
            also be ``[B]`` or ``[B, 1]``. Sequence and context columns are ``[B]`` or a scalar. Masks may be wider than the
            other token columns (prompt and response), with ``prompt_length``.
        full_width: every token column covers prompt and response; needs ``prompt_length``.
        where: what messages call the caller.

    Returns:
        The rows, with ``stored_length`` and, where masks tell, ``response_length``, ``prompt_loss_tokens`` and ``left_padding``.

    Raises:
        InputError: shapes or values do not fit, or tensors of different widths cannot be aligned for certain.
    """
    padded = Padded.of(columns, where)
    if not padded.wide:
        return assemble(None, {}, padded.others, where)
    alignment = padded.align(full_width=full_width)
    return assemble(alignment, alignment.take(padded.wide), padded.others, where)


@frozen(eq=False)
class Padded:
    """The columns of a batch by their shape.

    Attributes:
        wide: columns with one value per token, ``[B, T]``, as given where they are numbers.
        others: columns with one value per sequence or batch, as given.
        where: what messages call the caller.
    """

    wide: Mapping[str, NDArray[Any]]
    others: Mapping[str, ArrayLike]
    where: str

    @classmethod
    def of(cls, columns: Mapping[str, ArrayLike], where: str) -> Padded:
        """Sort columns by their shape; see ``normalise``."""
        given = {name: values for name, values in columns.items() if values is not None}
        tokens = {name: _numbers(name, values, where) for name, values in given.items() if _is_wide(name)}
        wide = {name: array for name, array in tokens.items() if not _is_one_per_sequence(name, array)}
        others = {name: tokens.get(name, values) for name, values in given.items() if name not in wide}
        for name, array in wide.items():
            if array.ndim != 2:
                raise InputError(f"{where}: {name} has shape {list(array.shape)}; token columns are [B, T]")
        _batch_size({name: array.shape for name, array in wide.items()}, where)
        if not wide and tokens:
            raise InputError(f"{where}: {min(tokens)} has one value per sequence; pass response_mask [B, T] with it")
        return cls(wide, others, where)

    def align(self, *, full_width: bool) -> Alignment:
        """Find the responses."""
        prompt, response = (
            _per_sequence(name, _coerced(name, self.others[name], self.where), len(next(iter(self.wide.values()))), self.where)
            if name in self.others
            else None
            for name in ("prompt_length", "response_length")
        )
        return align(self.wide, prompt, response, full_width=full_width, where=self.where)


def assemble(
    alignment: Alignment | None, tokens: Mapping[str, NDArray[Any]], others: Mapping[str, ArrayLike], where: str = "log_batch"
) -> Rows:
    """Check values that were cut already, and put rows together.

    Args:
        alignment: by which the tokens were cut; None where there are none.
        tokens: canonical names and ``attention_mask``, ``[n_tokens]``.
        others: columns with one value per sequence or batch.
        where: what messages call the caller.

    Returns:
        See ``normalise``.

    Raises:
        InputError: values do not fit.
    """
    arrays = {name: _coerced(name, values, where) for name, values in others.items()}
    flat: dict[str, NDArray[Any]] = {}
    shapes = {name: array.shape for name, array in arrays.items()}
    if alignment is not None:
        flat = {name: _coerced(name, values, where, alignment.locate) for name, values in tokens.items()}
        shapes |= {name: (len(alignment.first), alignment.width) for name in flat}
    batch = _batch_size(shapes, where)
    sequence = {name: _per_sequence(name, array, batch, where) for name, array in arrays.items() if not _is_wide(name)}
    if alignment is None:
        return Rows(sequence, np.zeros(batch + 1, np.int64))
    lengths = np.diff(alignment.splits)
    derived = dict(alignment.derived)
    attention = flat.pop(ATTENTION_MASK, None)
    if attention is not None:
        derived["response_length"] = _sums(attention, alignment.splits)
    trained = flat.get("response_mask")
    for name in arrays.keys() - sequence.keys():
        spread = np.repeat(arrays[name].reshape(batch), lengths)
        flat[name] = spread if trained is None else np.where(trained, spread, np.zeros((), spread.dtype))
    return Rows({**derived, **sequence, **flat, "stored_length": lengths.astype(np.int32)}, alignment.splits)


def _sums(flags: NDArray[np.bool_], splits: NDArray[np.int64]) -> NDArray[np.int32]:
    """How many flags are set in each row."""
    counts = np.zeros(len(flags) + 1, np.int32)
    np.cumsum(flags, out=counts[1:])
    return counts[splits[1:]] - counts[splits[:-1]]


def _numbers(name: str, values: ArrayLike, where: str) -> NDArray[Any]:
    """An array of numbers as it is; anything else coerced."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        return values
    return _coerced(name, values, where)


def _coerced(name: str, values: ArrayLike, where: str, locate: Locate | None = None) -> NDArray[Any]:
    column = schema.COLUMNS["response_mask"] if name == ATTENTION_MASK else schema.column(name)
    if column is None:
        raise InputError(f"{where}: {name!r} is not a known column")
    label = f"{where}: {name}" if name == ATTENTION_MASK else where
    return coerce(values, column, label) if locate is None else coerce(values, column, label, locate)


def _is_wide(name: str) -> bool:
    return name in WIDE


def _is_one_per_sequence(name: str, array: NDArray[Any]) -> bool:
    return name in PER_SEQUENCE and (array.ndim == 1 or (array.ndim == 2 and array.shape[1] == 1))


def _batch_size(shapes: Mapping[str, tuple[int, ...]], where: str) -> int:
    sizes: dict[int, str] = {}
    for name, shape in shapes.items():
        if len(shape) > 2:
            raise InputError(f"{where}: {name} has shape {list(shape)}; columns are [B, T] or [B]")
        if shape:
            sizes.setdefault(shape[0], f"{name} {list(shape)}")
    if len(sizes) > 1:
        raise InputError(f"{where}: different numbers of sequences: {', '.join(sizes.values())}")
    return next(iter(sizes), 1)


def _per_sequence(name: str, array: NDArray[Any], batch: int, where: str) -> NDArray[Any]:
    if array.ndim == 0:
        return np.repeat(array.reshape(1), batch)
    if array.ndim == 2 and array.shape[1] == 1:
        return array.reshape(batch)
    if array.ndim != 1:
        raise InputError(f"{where}: {name} has shape {list(array.shape)}; sequence columns are [B]")
    return array
