"""Values as trackers nest them, made flat; histograms, tables and media are told from numbers and left out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

_KIND: Final = "_type"
"""A member with this name tells a histogram, table, image or another medium."""
_SHOWN: Final = 6


def unfold(row: Mapping[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """Values by name, inner names after a dot, and the names of media."""
    if dict not in map(type, row.values()):
        return dict(reversed(list(row.items()))), set()
    return unfold_items(((name,), value) for name, value in row.items())


def unfold_items(items: Iterable[tuple[Sequence[str], Any]]) -> tuple[dict[str, Any], set[str]]:
    """As ``unfold``, of paths of names with their values."""
    flat: list[tuple[tuple[str, ...], Any]] = []
    pending = [(tuple(path), value) for path, value in items if path]
    while pending:
        path, value = pending.pop()
        if isinstance(value, dict):
            pending.extend(((*path, str(key)), below) for key, below in value.items())
        else:
            flat.append((path, value))
    media = {path[:-1] for path, _ in flat if path[-1] == _KIND and len(path) > 1}
    kept = flat
    if media:
        kept = [(path, value) for path, value in flat if not any(path[:depth] in media for depth in range(len(path)))]
    return {".".join(path): value for path, value in kept}, {".".join(path) for path in media}


def media_note(names: Collection[str]) -> tuple[str, ...]:
    """What to say of media, where there are any."""
    if not names:
        return ()
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return (f"histograms, tables and media left out: {', '.join(sorted(names)[:_SHOWN])}{more}",)
