"""From padded arrays to ragged rows: which positions of a sequence are kept, and where its response begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rl_doctor import schema
from rl_doctor.errors import InputError
from rl_doctor.schema import MISSING_INT
from rl_doctor.store.aliases import ATTENTION_MASK
from rl_doctor.store.coerce import coerce
from rl_doctor.store.rows import Rows, is_token, splits_of

MASKS: Final = ("response_mask", "loss_mask")
"""Token columns that say which positions the loss covers."""
_PER_SEQUENCE: Final = frozenset({"advantage", "return", "is_weight", "ratio", "turn", "token_version"})
"""Token columns that trainers also hold as one value per sequence."""

Mask = NDArray[np.bool_]
Ints = NDArray[np.int64]


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
    arrays = {name: _coerced(name, values, where) for name, values in columns.items() if values is not None}
    batch = _batch_size(arrays, where)
    sequence = {name: _per_sequence(name, array, batch, where) for name, array in arrays.items() if not _is_wide(name)}
    wide = {name: array for name, array in arrays.items() if _is_wide(name) and not _is_one_per_sequence(name, array)}
    single = {name: array.reshape(batch) for name, array in arrays.items() if _is_wide(name) and name not in wide}
    if not wide:
        if single:
            raise InputError(f"{where}: {min(single)} has one value per sequence; pass response_mask [B, T] with it")
        return Rows(sequence, np.zeros(batch + 1, np.int64))
    layout = _layout(wide, sequence, full_width=full_width, where=where)
    masks: dict[str, Mask] = {name: layout.response(wide[name]) for name in (ATTENTION_MASK, *MASKS) if name in wide}
    first, length = _span(layout, masks, sequence.get("response_length"))
    splits = splits_of(length)
    row = np.repeat(np.arange(batch), length)
    position = np.arange(splits[-1]) - np.repeat(splits[:-1] - first, length)
    tokens = {name: layout.take(array, row, position) for name, array in wide.items() if name != ATTENTION_MASK}
    trained = tokens.get("response_mask")
    for name, values in single.items():
        spread = np.repeat(values, length)
        tokens[name] = spread if trained is None else np.where(trained, spread, np.zeros((), spread.dtype))
    derived = _derived(wide, masks, layout)
    return Rows({**derived, **sequence, **tokens, "stored_length": length.astype(np.int32)}, splits)


@dataclass(frozen=True, slots=True, eq=False)
class _Layout:
    """Where responses lie: arrays of ``full`` columns begin them at column ``start[row]``, others at column 0."""

    width: int
    full: int | None
    start: Ints

    @property
    def room(self) -> Ints:
        """Number of response positions that each row has room for."""
        return np.full(len(self.start), self.width) if self.full != self.width else self.width - self.start

    def _offset(self, array: NDArray[Any]) -> Ints:
        return self.start if array.shape[1] == self.full else np.zeros_like(self.start)

    def response(self, mask: Mask) -> Mask:
        """The response part of a mask, ``[B, width]``."""
        at = self._offset(mask)[:, None] + np.arange(self.width)
        inside: Mask = at < mask.shape[1]
        if not mask.shape[1]:
            return inside
        found: Mask = inside & np.take_along_axis(mask, np.minimum(at, mask.shape[1] - 1), axis=1)
        return found

    def before(self, mask: Mask) -> Mask | None:
        """The prompt part of a full-width mask, ``[B, full]``; None for a response-wide one."""
        if mask.shape[1] != self.full:
            return None
        return mask & (np.arange(mask.shape[1]) < self.start[:, None])

    def take(self, array: NDArray[Any], row: Ints, position: Ints) -> NDArray[Any]:
        """Values at response positions, ``[n_tokens]``; beyond a mask's last column it is not set."""
        at = position + self._offset(array)[row]
        inside = at < array.shape[1]
        if inside.all():
            taken: NDArray[Any] = array.reshape(-1)[row * array.shape[1] + at]
            return taken
        flags: Mask = inside & array[row, np.minimum(at, array.shape[1] - 1)]
        return flags


def _layout(wide: Mapping[str, NDArray[Any]], sequence: Mapping[str, NDArray[Any]], *, full_width: bool, where: str) -> _Layout:
    shapes = {name: array.shape for name, array in wide.items()}
    masks = (ATTENTION_MASK, *MASKS)
    tensors = {array.shape[1] for name, array in wide.items() if name not in masks and name != "token_id"}
    tensors = tensors or {array.shape[1] for name, array in wide.items() if name not in masks}
    widths = {shape[1] for shape in shapes.values()}
    batch = next(iter(wide.values())).shape[0]
    shown = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
    prompt = sequence.get("prompt_length")
    attention = wide.get(ATTENTION_MASK)
    if len(tensors) > 1 or len(widths) > 2:
        raise InputError(f"{where}: token columns of different widths ({shown}); pass all response-wide")
    if len(widths) == 1:
        width = widths.pop()
        if not full_width and not _covers_prompt(wide, prompt, sequence.get("response_length")):
            return _Layout(width, None, np.zeros(batch, np.int64))
        if prompt is None:
            raise InputError(f"{where}: columns cover prompt and response ({shown}); pass prompt_length to tell them apart")
        lead = np.argmax(attention, axis=1) if attention is not None and width else np.zeros(batch, np.int64)
        start = lead + prompt.astype(np.int64)
        if ((prompt < 0) | (start > width)).any():
            at = int(np.argmax((prompt < 0) | (start > width)))
            raise InputError(f"{where}: prompt_length is {prompt[at]} in row {at} of columns {width} wide; it does not fit")
        return _Layout(width, width, start)
    full = max(widths)
    width = tensors.pop() if tensors else min(widths)
    start = None if prompt is None or width == full else _certain_start(attention, prompt, full, width)
    if start is None:
        raise InputError(
            f"{where}: cannot align {shown} for certain"
            f"{'' if prompt is not None else ' without prompt_length'}; pass masks as wide as the other columns ({width})"
        )
    return _Layout(width, full, start)


def _covers_prompt(wide: Mapping[str, NDArray[Any]], prompt: NDArray[Any] | None, response: NDArray[Any] | None) -> bool:
    """Whether equally wide columns are known to cover the prompt.

    With response lengths: the attention mask counts prompt and response. Without them: either nothing is trained at the first
    ``prompt_length`` attended positions of any row and in most rows training begins right after them, or the log-probabilities
    are placeholders (0 or NaN) at all of them.
    """
    attention = wide.get(ATTENTION_MASK)
    if attention is None or prompt is None or not np.any(prompt > 0):
        return False
    count = attention.sum(axis=1)
    if response is not None:
        return bool(np.array_equal(count, prompt.astype(np.int64) + response))
    if (count < prompt).any():
        return False
    ordinal = np.cumsum(attention, axis=1)
    inside = attention & (ordinal <= prompt[:, None])
    masks = [wide[name] for name in MASKS if name in wide]
    if masks:
        trained = np.logical_or.reduce(masks)
        some = np.flatnonzero(trained.any(axis=1))
        begins = ordinal[some, np.argmax(trained[some], axis=1)] == prompt[some] + 1
        if len(some) and not (trained & inside).any() and begins.mean() > 0.5:
            return True
    logprob = next((wide[name] for name in schema.LOGPROBS if name in wide), None)
    if logprob is None:
        return False
    number = np.nan_to_num(logprob) != 0
    return bool((number & attention).any() and not (number & inside).any())


def _certain_start(attention: Mask | None, prompt: NDArray[Any], full: int, width: int) -> Ints | None:
    """Column at which each response begins in a full-width mask; None where it is not certain."""
    tail = np.full(len(prompt), full - width, np.int64)
    if attention is None or attention.shape[1] != full:
        return tail if np.array_equal(prompt, tail) else None
    if np.array_equal(attention[:, : full - width].sum(axis=1), prompt):
        return tail
    count = attention.sum(axis=1)
    unpadded = np.array_equal(attention, np.arange(full) < count[:, None])
    if unpadded and (prompt >= 0).all() and ((count >= prompt) & (count - prompt <= width)).all():
        return prompt.astype(np.int64)
    return None


def _span(layout: _Layout, masks: Mapping[str, Mask], lengths: NDArray[Any] | None) -> tuple[Ints, Ints]:
    """First kept position and number of kept positions of each row."""
    width, batch, room = layout.width, len(layout.start), layout.room
    if not masks and lengths is None:
        return np.zeros(batch, np.int64), room
    kept = np.zeros((batch, width), np.bool_)
    for mask in masks.values():
        kept |= mask
    if ATTENTION_MASK not in masks and lengths is not None:
        kept |= _by_length(width, kept, lengths) & (np.arange(width) < room[:, None])
    if not width:
        return np.zeros(batch, np.int64), np.zeros(batch, np.int64)
    some = kept.any(axis=1)
    first = np.where(some, np.argmax(kept, axis=1), 0)
    last = np.where(some, width - np.argmax(kept[:, ::-1], axis=1), 0)
    return first.astype(np.int64), (last - first).astype(np.int64)


def _by_length(width: int, masked: Mask, lengths: NDArray[Any]) -> Mask:
    """Positions that the lengths cover: at the right end only if every mask fits there and some does not at the left."""
    length = np.where(lengths == MISSING_INT["int32"], 0, lengths)[:, None]
    left = np.arange(width) < length
    right = np.arange(width) >= width - length
    if (masked & ~left).any() and not (masked & ~right).any():
        return right
    return left


def _derived(wide: Mapping[str, NDArray[Any]], masks: Mapping[str, Mask], layout: _Layout) -> dict[str, NDArray[Any]]:
    found: dict[str, NDArray[Any]] = {}
    attention = wide.get(ATTENTION_MASK)
    if attention is not None:
        found["response_length"] = masks[ATTENTION_MASK].sum(axis=1).astype(np.int32)
        if attention.shape[1] == layout.full:
            lead = np.where(attention.any(axis=1), np.argmax(attention, axis=1), 0)
            found["left_padding"] = np.minimum(lead, layout.start).astype(np.int32)
    prompts = [before for name in MASKS if name in wide and (before := layout.before(wide[name])) is not None]
    if prompts:
        found["prompt_loss_tokens"] = np.logical_or.reduce(prompts).sum(axis=1).astype(np.int32)
    return found


def _coerced(name: str, values: ArrayLike, where: str) -> NDArray[Any]:
    column = schema.COLUMNS["response_mask"] if name == ATTENTION_MASK else schema.column(name)
    if column is None:
        raise InputError(f"{where}: {name!r} is not a known column")
    return coerce(values, column, f"{where}: {name}" if name == ATTENTION_MASK else where)


def _is_wide(name: str) -> bool:
    return name == ATTENTION_MASK or is_token(name)


def _is_one_per_sequence(name: str, array: NDArray[Any]) -> bool:
    return name in _PER_SEQUENCE and (array.ndim == 1 or (array.ndim == 2 and array.shape[1] == 1))


def _batch_size(arrays: Mapping[str, NDArray[Any]], where: str) -> int:
    sizes: dict[int, str] = {}
    for name, array in arrays.items():
        if _is_wide(name) and array.ndim != 2 and not _is_one_per_sequence(name, array):
            raise InputError(f"{where}: {name} has shape {list(array.shape)}; token columns are [B, T]")
        if array.ndim > 2:
            raise InputError(f"{where}: {name} has shape {list(array.shape)}; columns are [B, T] or [B]")
        if array.ndim:
            sizes.setdefault(array.shape[0], f"{name} {list(array.shape)}")
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
