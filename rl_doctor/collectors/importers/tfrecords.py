"""TFRecords: a length, its checksum, the bytes, their checksum. The checksums are masked CRC-32C."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

_LENGTH: Final = struct.Struct("<QI")
_AROUND: Final = 16
_CHECKED: Final = 1 << 13
"""Longest record whose checksum is looked at: longer ones hold images, texts and the like."""
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


@dataclass(frozen=True, slots=True, eq=False)
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
    found: list[int] = []
    at, end, torn = 0, len(data), False
    unpack = _LENGTH.unpack_from
    while at < end:
        if at + _AROUND > end:
            torn = True
            break
        stop = at + _AROUND + unpack(data, at)[0]
        if stop > end:
            torn = True
            break
        found.append(at)
        at = stop
    heads = np.array([*found, *([at] if torn and at + _LENGTH.size <= end else [])], np.int64)
    view = np.frombuffer(data, np.uint8)
    sound = checksums(view, heads, np.full(len(heads), 8)) == _stored(view, heads + 8)
    lost = None if sound.all() else int(heads[np.argmin(sound)])
    if lost is not None:
        found, torn = found[: int(np.argmin(sound))], False
    starts = np.array(found, np.int64) + _LENGTH.size
    stops = np.append(starts[1:] - _AROUND, at - 4)[: len(starts)] if lost is None else np.append(starts[1:], lost + 12) - _AROUND
    short = np.flatnonzero(stops - starts <= _CHECKED)
    good = np.ones(len(starts), np.bool_)
    good[short] = checksums(view, starts[short], (stops - starts)[short]) == _stored(view, stops[short])
    return Records(starts[good], stops[good], int((~good).sum()), lost, torn)


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
    longer = np.searchsorted(-lengths, -np.arange(int(lengths[0])), side="left")
    for offset, count in enumerate(longer.tolist()):
        own = crc[:count]
        crc[:count] = _TABLE[(own ^ view[starts[:count] + offset]) & 0xFF] ^ (own >> 8)
    return ~crc


def _stored(view: NDArray[np.uint8], at: NDArray[np.int64]) -> Words:
    raw = view[at[:, None] + np.arange(4)]
    return np.ascontiguousarray(raw).view("<u4").reshape(-1).astype(np.uint32)
