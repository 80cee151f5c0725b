"""TFRecords: a length, its checksum, the bytes, their checksum. The checksums are masked CRC-32C."""

from __future__ import annotations

import mmap
import struct
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.frozen import frozen

_LENGTH: Final = struct.Struct("<QI")
_AROUND: Final = 16
_CHECKED: Final = 1 << 13
"""Longest record whose checksum is looked at: longer ones hold images, texts and the like."""
_LOOKED_BACK: Final = 1 << 10
"""Records that are found one by one before more are foretold from them; also the most that a round has."""
_ALIKE: Final = 64
"""Records that come again before they count as a round."""
_ROUNDS: Final = 64
"""Rounds that are foretold at first."""
_CHUNK: Final = 1 << 12
"""Records that are checked at a time: so many that their bytes stay in the cache."""

Words = NDArray[np.uint32]
Buffer = bytes | mmap.mmap


def _table() -> Words:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1)
    return table


_TABLE: Final = _table()


@cache
def _wide_table() -> Words:
    """What two bytes make of the checksum, by its lower half."""
    once = np.arange(1 << 16, dtype=np.uint32)
    for _ in range(2):
        once = _TABLE[once & 0xFF] ^ (once >> 8)
    return once


@frozen(eq=False)
class Records:
    """Where the whole records of a file are.

    Attributes:
        starts: first byte of each, int64 ``[n]``.
        stops: the byte after each, int64 ``[n]``.
        damaged: records that are left out because their checksum is wrong.
        lost: first byte from which nothing can be read, or None; that the last record is cut short does not count.
        torn: whether the file ends within a record.
    """

    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    damaged: int
    lost: int | None
    torn: bool


def find_records(data: Buffer) -> Records:
    """Find the records of a file and check them."""
    view = np.frombuffer(data, np.uint8)
    found, at, torn = _chain(data, view)
    heads = np.append(found, [at] if torn and at + _LENGTH.size <= len(data) else []).astype(np.int64)
    sound = _length_checksums(windows(view, 8, heads).view("<u8")) == _stored(view, heads + 8)
    lost = None if sound.all() else int(heads[np.argmin(sound)])
    if lost is not None:
        found, torn = found[: int(np.argmin(sound))], False
    starts = found + _LENGTH.size
    stops = np.append(starts[1:] - _AROUND, at - 4)[: len(starts)] if lost is None else np.append(starts[1:], lost + 12) - _AROUND
    short = np.flatnonzero(stops - starts <= _CHECKED)
    good = np.ones(len(starts), np.bool_)
    good[short] = checksums(view, starts[short], (stops - starts)[short]) == _stored(view, stops[short])
    return Records(starts[good], stops[good], int((~good).sum()), lost, torn)


def _chain(data: Buffer, view: NDArray[np.uint8]) -> tuple[NDArray[np.int64], int, bool]:
    """First byte of each record, the byte after the last, and whether something follows that is no whole record.

    Records come in rounds, one for each of the same tags: where the last lengths came before, those of further rounds are
    foretold from them, and what is foretold right is taken at once.
    """
    parts: list[NDArray[np.int64]] = []
    at, end = 0, len(data)
    unpack = _LENGTH.unpack_from
    while at < end:
        found: list[int] = []
        while at < end and len(found) < _LOOKED_BACK:
            stop = at + _AROUND + unpack(data, at)[0] if at + _AROUND <= end else end + 1
            if stop > end:
                return np.concatenate([*parts, np.array(found, np.int64)]), at, True
            found.append(at)
            at = stop
        parts.append(np.array(found, np.int64))
        strides = np.diff(parts[-1], append=at)
        rounds = _ROUNDS
        while (own := _foretold(view, at, _round(strides), rounds)) is not None:
            parts.append(own[:-1])
            at = int(own[-1])
            rounds *= 2
    return np.concatenate([np.empty(0, np.int64), *parts]), at, False


def _round(strides: NDArray[np.int64]) -> NDArray[np.int64]:
    """The strides of a round, beginning with the next record; empty where nothing repeats."""
    last = strides[-_ALIKE:]
    for length in range(1, len(strides) - _ALIKE + 1):
        if strides[-1 - length] == strides[-1] and np.array_equal(strides[-_ALIKE - length : -length], last):
            return strides[-length:]
    return strides[:0]


def _foretold(view: NDArray[np.uint8], at: int, strides: NDArray[np.int64], rounds: int) -> NDArray[np.int64] | None:
    """First bytes of the records that a number of rounds has, and the byte after them; None where the first is another."""
    if not len(strides):
        return None
    foretold = np.tile(strides, rounds)
    places = at + np.cumsum(foretold) - foretold
    inside = int(np.searchsorted(places + foretold, len(view), side="right"))
    foretold, places = foretold[:inside], places[:inside]
    right = windows(view, 8, places).view("<u8") == (foretold - _AROUND).astype(np.uint64)
    count = int(np.argmin(np.append(right, False)))
    return np.append(places[:count], places[count - 1] + foretold[count - 1]) if count else None


def windows(view: NDArray[np.uint8], size: int, at: NDArray[np.int64]) -> NDArray[np.void]:
    """Stretches of ``size`` bytes, whatever their alignment."""
    if not len(at):
        return np.empty(0, np.dtype((np.void, size)))
    return np.ndarray(len(view) - size + 1, np.dtype((np.void, size)), view, strides=(1,))[at]


def _length_checksums(lengths: NDArray[np.uint64]) -> Words:
    """Masked checksums of lengths; many records have the same."""
    distinct, which = np.unique(lengths, return_inverse=True)
    raw = distinct.astype("<u8").view(np.uint8)
    return checksums(raw, np.arange(len(distinct)) * 8, np.full(len(distinct), 8))[which]


def checksums(view: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Words:
    """Masked CRC-32C of stretches of bytes, all at once: byte by byte, over those that are long enough.

    Args:
        view: the bytes.
        starts: first byte of each stretch, ``[n]``.
        lengths: bytes in each, ``[n]``.
    """
    made = np.empty(len(starts), np.uint32)
    for first in range(0, len(starts), _CHUNK):
        part = slice(first, first + _CHUNK)
        order = np.argsort(-lengths[part], kind="stable")
        made[part][order] = _crc(view, starts[part][order], lengths[part][order])
    return np.asarray(((made >> 15) | (made << 17)) + np.uint32(0xA282EAD8), np.uint32)


def _crc(view: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Words:
    """CRC-32C of stretches, the longest first."""
    crc: Words = np.full(len(starts), 0xFFFFFFFF, np.uint32)
    longer = np.searchsorted(-lengths, -np.arange(int(lengths[0]) + 1), side="left").tolist()
    table = _wide_table()
    for offset in range(0, len(longer) - 1, 2):
        count, both = longer[offset], longer[offset + 1]
        own = crc[:both] ^ windows(view, 2, starts[:both] + offset).view("<u2")
        crc[:both] = table[own & 0xFFFF] ^ (own >> 16)
        own = crc[both:count]
        crc[both:count] = _TABLE[(own ^ view[starts[both:count] + offset]) & 0xFF] ^ (own >> 8)
    return ~crc


def _stored(view: NDArray[np.uint8], at: NDArray[np.int64]) -> Words:
    return windows(view, 4, at).view("<u4").astype(np.uint32)
