"""The runs that there are to choose from, and how the picker names them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import streamlit as st

from rl_doctor.app.following import Shared, followed_before, following
from rl_doctor.live.known import remembered, written
from rl_doctor.live.listing import Listing
from rl_doctor.views.verdict import Level, verdict

SIGNS: Final[Mapping[Level, str]] = {
    "error": "✕", "warning": "▲", "info": "✓", "passed": "✓", "inconclusive": "○", "nothing": "○", "crashed": "✕",
}  # fmt: skip
"""A sign for each verdict, where no icon can stand."""


class Runs(Mapping[str, Shared]):
    """The runs that are there, by name; one is opened only when it is asked for."""

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self._paths = paths

    def __getitem__(self, name: str) -> Shared:
        return following(str(self._paths[name]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def levels(self) -> dict[str, Level]:
        """The verdict on each run that is open, or that was judged before and has not been written to since."""
        levels = {name: _level(path) for name, path in self._paths.items()}
        return {name: level for name, level in levels.items() if level is not None}


def label(name: str, levels: Mapping[str, Level]) -> str:
    """A run in the list: its name behind the sign of its verdict, where that is known."""
    return f"{SIGNS[levels[name]]} {name}" if name in levels else name


def _level(path: Path) -> Level | None:
    open_now = followed_before(str(path))
    if open_now is not None and open_now.known is not None:
        return verdict(open_now.known).level
    return remembered(path, written(path))


@st.cache_resource(show_spinner=False, max_entries=16)
def listing(paths: tuple[str, ...]) -> Listing:
    """What the app was started with, shared by all who look at it."""
    return Listing(map(Path, paths))
