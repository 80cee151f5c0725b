"""Where the response of each row lies in padded columns, and which of its positions are kept."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any, Final, TypeVar

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from rl_doctor import schema
from rl_doctor.errors import InputError
from rl_doctor.frozen import frozen
from rl_doctor.store.aliases import ATTENTION_MASK
from rl_doctor.store.rows import splits_of

MASKS: Final = ("response_mask", "loss_mask")
"""Token columns that say which positions the loss covers."""
_ROW_BYTES: Final = 512
"""Rows of fewer bytes than that on average are gathered by index: a slice of a row costs as much as so many bytes."""
_WORD: Final = 8
_K = TypeVar("_K")
Mask = NDArray[np.bool_]
Ints = NDArray[np.int64]


@frozen(eq=False)
class Alignment:
    """Where responses lie in the columns of a batch, and what is kept of them.

    Attributes:
        width: number of response positions of the columns.
        full: width of the columns that cover the prompt too, or None.
        start: int64 ``[B]``, column of a full-width array at which the response begins.
        first: int64 ``[B]``, first response position that is kept.
        splits: int64 ``[B + 1]``; row i keeps ``splits[i + 1] - splits[i]`` positions.
        derived: sequence columns that the prompt part of the masks tells.
    """

    width: int
    full: int | None
    start: Ints
    first: Ints
    splits: Ints
    derived: Mapping[str, NDArray[Any]]

    @property
    def n_tokens(self) -> int:
        """Number of positions that are kept."""
        return int(self.splits[-1])

    def take(self, arrays: Mapping[_K, NDArray[Any]], memory: BytesIO | None = None) -> dict[_K, NDArray[Any]]:
        """The kept values, ``[n_tokens]``, as copies in one piece of memory; beyond a mask's last column it is not set.

        The interpreter is not given up while long rows are copied, so that nobody else is waited for.

        Args:
            arrays: any key -> numbers or flags, ``[B, width]`` or ``[B, full]``.
            memory: where the copies may go, at its present position; it cannot be written to while one of them is in use.
        """
        memory = memory or BytesIO()
        begins: dict[_K, int] = {}
        taken: dict[_K, NDArray[Any]] = {}
        stretches: dict[tuple[int, ...], list[slice] | None] = {}
        for key, array in arrays.items():
            shape = (array.shape[1], array.itemsize, *array.strides)
            if shape not in stretches:
                stretches[shape] = self._stretches(array)
            found = stretches[shape]
            if found is None:
                taken[key] = self._gather(array)
                continue
            memory.write(bytes(-memory.tell() % _WORD))
            begins[key] = memory.tell()
            memory.writelines(map(_bytes_of(array).__getitem__, found))
        copied = memory.getbuffer()
        for key, begin in begins.items():
            taken[key] = np.frombuffer(copied, arrays[key].dtype, self.n_tokens, begin)
        return taken

    def locate(self, index: int) -> tuple[int, int]:
        """Row and response position of a kept value."""
        row = int(np.searchsorted(self.splits, index, side="right")) - 1
        return row, int(self.first[row] + index - self.splits[row])

    def _stretches(self, array: NDArray[Any]) -> list[slice] | None:
        """Where the kept values of each row lie in the array's memory; None if rows are not contiguous, long and complete."""
        begin, lengths = self.first + _offset(self, array), np.diff(self.splits)
        rows, itemsize = len(array), array.itemsize
        contiguous = array.strides[1] == itemsize and array.strides[0] >= 0
        short = not rows or self.n_tokens * itemsize < rows * _ROW_BYTES
        if not contiguous or short or (begin + lengths > array.shape[1]).any():
            return None
        at = np.arange(rows) * array.strides[0] + begin * itemsize
        return [slice(*ends) for ends in zip(at.tolist(), (at + lengths * itemsize).tolist(), strict=True)]

    def _gather(self, array: NDArray[Any]) -> NDArray[Any]:
        row = np.repeat(np.arange(len(self.first)), np.diff(self.splits))
        at = np.arange(self.n_tokens) - (self.splits[:-1] - self.first - _offset(self, array))[row]
        inside = at < array.shape[1]
        if inside.all():
            taken: NDArray[Any] = array[:, 0][row] if array.shape[1] and not array.strides[1] else array[row, at]
            return taken
        found: NDArray[Any] = np.where(inside, array[row, np.minimum(at, array.shape[1] - 1)], np.zeros((), array.dtype))
        return found


def align(
    wide: Mapping[str, NDArray[Any]],
    prompt: NDArray[Any] | None,
    response: NDArray[Any] | None,
    *,
    full_width: bool,
    where: str,
) -> Alignment:
    """Find the responses in padded columns. Reads the masks, and other columns only where their shapes leave it open.

    Args:
        wide: canonical token columns and ``attention_mask``, numbers or flags ``[B, T]``; a mask is set where it is not 0.
        prompt: ``prompt_length`` ``[B]``, if known.
        response: ``response_length`` ``[B]``, if known.
        full_width: every token column covers prompt and response; needs ``prompt``.
        where: what messages call the caller.

    Raises:
        InputError: columns of different widths cannot be aligned for certain.
    """
    flags = {name: _flags(wide[name]) for name in (ATTENTION_MASK, *MASKS) if name in wide}
    width, full, start = _layout({**wide, **flags}, prompt, response, full_width=full_width, where=where)
    masks = {name: _response(mask, width, full, start) for name, mask in flags.items()}
    first, length = _span(masks, width, width - start if full == width else np.full(len(start), width), response)
    return Alignment(width, full, start, first, splits_of(length), _derived(flags, full, start))


def _flags(array: NDArray[Any]) -> Mask:
    return array if array.dtype == np.bool_ else array != 0


def _offset(alignment: Alignment, array: NDArray[Any]) -> Ints:
    return alignment.start if array.shape[1] == alignment.full else np.zeros_like(alignment.start)


def _bytes_of(array: NDArray[Any]) -> memoryview:
    """The memory from the first to the last element of an array with contiguous rows."""
    if array.flags.c_contiguous:
        return memoryview(array).cast("B")  # type: ignore[arg-type] # numpy's arrays are buffers
    size = (len(array) - 1) * array.strides[0] // array.itemsize + array.shape[1]
    return as_strided(array, (size,), (array.itemsize,), writeable=False).view(np.uint8).data


def _layout(
    wide: Mapping[str, NDArray[Any]], prompt: NDArray[Any] | None, response: NDArray[Any] | None, *, full_width: bool, where: str
) -> tuple[int, int | None, Ints]:
    """Response width, full width, and where responses begin in columns of full width."""
    batch = next(iter(wide.values())).shape[0]
    widths = {array.shape[1] for array in wide.values()}
    attention = wide.get(ATTENTION_MASK)
    if len(widths) == 1:
        width = widths.pop()
        if not full_width and not _covers_prompt(wide, prompt, response):
            return width, None, np.zeros(batch, np.int64)
        if prompt is None:
            shown = _shapes(wide)
            raise InputError(f"{where}: columns cover prompt and response ({shown}); pass prompt_length to tell them apart")
        lead = np.argmax(attention, axis=1) if attention is not None and width else np.zeros(batch, np.int64)
        start = lead + prompt.astype(np.int64)
        if ((prompt < 0) | (start > width)).any():
            at = int(np.argmax((prompt < 0) | (start > width)))
            raise InputError(f"{where}: prompt_length is {prompt[at]} in row {at} of columns {width} wide; it does not fit")
        return width, width, start
    masks = (ATTENTION_MASK, *MASKS)
    tensors = {array.shape[1] for name, array in wide.items() if name not in masks and name != "token_id"}
    tensors = tensors or {array.shape[1] for name, array in wide.items() if name not in masks}
    if len(tensors) > 1 or len(widths) > 2:
        raise InputError(f"{where}: token columns of different widths ({_shapes(wide)}); pass all response-wide")
    full = max(widths)
    width = tensors.pop() if tensors else min(widths)
    certain = None if prompt is None or width == full else _certain_start(attention, prompt, full, width)
    if certain is None:
        raise InputError(
            f"{where}: cannot align {_shapes(wide)} for certain"
            f"{'' if prompt is not None else ' without prompt_length'}; pass masks as wide as the other columns ({width})"
        )
    return width, full, certain


def _shapes(wide: Mapping[str, NDArray[Any]]) -> str:
    return ", ".join(f"{name} {list(array.shape)}" for name, array in wide.items())


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


def _response(mask: Mask, width: int, full: int | None, start: Ints) -> Mask:
    """The response part of a mask, ``[B, width]``."""
    if full is None or mask.shape[1] != full or not len(start):
        return mask[:, :width]
    lowest, highest = int(start.min()), int(start.max())
    if lowest == highest and lowest + width <= full:
        return mask[:, lowest : lowest + width]
    at = start[:, None] + np.arange(width)
    inside: Mask = at < full
    if not full:
        return inside
    found: Mask = inside & np.take_along_axis(mask, np.minimum(at, full - 1), axis=1)
    return found


def _span(masks: Mapping[str, Mask], width: int, room: Ints, lengths: NDArray[Any] | None) -> tuple[Ints, Ints]:
    """First kept position and number of kept positions of each row."""
    if not masks and lengths is None:
        return np.zeros_like(room), room
    first, last = _ends(next(iter(masks.values()))) if masks else (np.full_like(room, width), np.zeros_like(room))
    for mask in list(masks.values())[1:]:
        begin, end = _ends(mask)
        first, last = np.minimum(first, begin), np.maximum(last, end)
    if ATTENTION_MASK not in masks and lengths is not None:
        begin, end = _by_length(width, first, last, lengths)
        end = np.minimum(end, room)
        some = end > begin
        first, last = np.minimum(first, np.where(some, begin, width)), np.maximum(last, np.where(some, end, 0))
    length = np.maximum(last - first, 0)
    return np.where(length, first, 0), length


def _ends(mask: Mask) -> tuple[Ints, Ints]:
    """First position that is set and one beyond the last, for each row; the width and 0 where none is."""
    batch, width = mask.shape
    if not batch or not width:
        return np.full(batch, width), np.zeros(batch, np.int64)
    first = np.argmax(mask, axis=1)
    last = _last(mask)
    return np.where(last, first, width), last


def _last(mask: Mask) -> Ints:
    """One beyond the last position that is set, for each row; 0 where none is."""
    batch, width = mask.shape
    whole = width - width % _WORD
    last = np.zeros(batch, np.int64)
    if whole and mask.strides[1] == 1:
        words = mask[:, :whole].view(np.uint64)  # eight flags at a time
        at = words.shape[1] - 1 - np.argmax((words != 0)[:, ::-1], axis=1)
        word = words[np.arange(batch), at]
        # The place of the highest byte that is set; a flag is a byte.
        byte = (np.frexp(word.astype(np.float64))[1] + 7) // 8
        last = np.where(word, at * _WORD + byte, 0)
        mask = mask[:, whole:]
    else:
        whole = 0
    if mask.shape[1]:
        end = mask.shape[1] - np.argmax(mask[:, ::-1], axis=1)
        last = np.where(mask.any(axis=1), whole + end, last)
    return last


def _by_length(width: int, first: Ints, last: Ints, lengths: NDArray[Any]) -> tuple[Ints, Ints]:
    """Positions that the lengths cover: at the right end only if every mask fits there and some does not at the left."""
    length = np.clip(lengths, 0, width).astype(np.int64)
    some = last > 0
    if (last > length)[some].any() and (first >= width - length)[some].all():
        return width - length, np.full_like(length, width)
    return np.zeros_like(length), length


def _derived(flags: Mapping[str, Mask], full: int | None, start: Ints) -> dict[str, NDArray[Any]]:
    """What the prompt part of full-width masks tells."""
    found: dict[str, NDArray[Any]] = {}
    covering = {name: mask for name, mask in flags.items() if mask.shape[1] == full}
    if ATTENTION_MASK in covering:
        attention = covering.pop(ATTENTION_MASK)
        lead = np.argmax(attention, axis=1) if full else np.zeros_like(start)
        some = attention[np.arange(len(lead)), lead] if full else np.zeros(len(lead), np.bool_)
        found["left_padding"] = np.minimum(np.where(some, lead, 0), start).astype(np.int32)
    if covering:
        masked = np.logical_or.reduce(list(covering.values()))
        found["prompt_loss_tokens"] = (masked & (np.arange(masked.shape[1]) < start[:, None])).sum(axis=1).astype(np.int32)
    return found
