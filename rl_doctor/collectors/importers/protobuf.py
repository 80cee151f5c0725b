"""Just enough of the protobuf wire format to read the few fields that trackers put numbers in."""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_MAX_SHIFT = 63


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The unsigned integer that starts at a byte, and where the next field starts.

    Raises:
        ValueError: it has more than 64 bits.
        IndexError: the data end in it.
    """
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > _MAX_SHIFT:
            raise ValueError("an integer of more than 64 bits")


def placed(data: bytes) -> Iterator[tuple[int, int, int | bytes, int]]:
    """The fields of a message in order: number, wire type, the integer or the bytes, and where these start.

    Raises:
        ValueError: the data are no message.
    """
    at, end = 0, len(data)
    try:
        while at < end:
            key, at = varint(data, at)
            number, kind = key >> 3, key & 7
            if kind == VARINT:
                start = at
                value, at = varint(data, at)
                yield number, kind, value, start
                continue
            if kind == LENGTH:
                size, at = varint(data, at)
            elif kind in (FIXED64, FIXED32):
                size = 8 if kind == FIXED64 else 4
            else:
                raise ValueError(f"wire type {kind}")
            if not number or at + size > end:
                raise ValueError("a field that is longer than its message")
            yield number, kind, data[at : at + size], at
            at += size
    except IndexError:
        raise ValueError("a message that ends within a field") from None


def fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """As ``placed``, without the places."""
    for number, kind, value, _ in placed(data):
        yield number, kind, value


def member(data: bytes, number: int) -> bytes:
    """The last field of that number that is a text or a message; empty where there is none."""
    found = b""
    for own, _, value in fields(data):
        if own == number and isinstance(value, bytes):
            found = value
    return found


def signed(value: int) -> int:
    """An int64 as protobuf writes it, from the unsigned integer."""
    return value - (1 << 64) if value >= 1 << 63 else value


def zigzag(value: int) -> int:
    """A sint64, from the unsigned integer."""
    return value >> 1 ^ -(value & 1)
