"""Rules may read only the metrics that they ask for: whatever else they read would depend on the rules beside them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from rl_doctor.analyzer.series import Series
from rl_doctor.rules.view import View


class Asked(dict[str, Series]):
    """Series by name that insist on the name having been asked for."""

    def __init__(self, series: dict[str, Series], names: frozenset[str]) -> None:
        super().__init__(series)
        self._names = names

    def _insist(self, name: object) -> None:
        prefixes = tuple(one for one in self._names if one.endswith("."))
        assert name in self._names or str(name).startswith(prefixes), f"reads {name} without asking for it"

    def __getitem__(self, name: str) -> Series:
        self._insist(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self._insist(name)
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._insist(name)
        return super().get(name, default)


@pytest.fixture(autouse=True)
def _only_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = View.narrowed

    def narrowed(view: View, names: Iterable[str]) -> View:
        asked = frozenset(names)
        return replace(view, all_series=Asked(dict(narrow(view, asked).all_series), asked))

    monkeypatch.setattr(View, "narrowed", narrowed)
