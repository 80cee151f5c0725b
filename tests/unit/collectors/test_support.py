"""What can be recorded with each trainer: columns that exist, and guides that say the same as the data."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rl_doctor import schema
from rl_doctor.collectors.support import SUPPORTED, Support

ROOT = Path(__file__).parents[3]
SETTING = re.compile(r"(?:--)?[a-z_]+(?:\.[a-z_]+)+(?:=\w+)?")
"""A setting as a trainer spells it, with its value where that is behind an equals sign."""
GUIDED = [support for support in SUPPORTED.values() if support.guide]


@pytest.mark.parametrize("support", SUPPORTED.values(), ids=lambda support: support.name)
def test_columns_are_those_of_the_schema(support: Support) -> None:
    names = [*support.columns, *(name for switch in support.switches for name in switch.columns)]
    assert [name for name in names if schema.column(name) is None] == []
    assert len(names) == len(set(names))


@pytest.mark.parametrize("support", GUIDED, ids=lambda support: support.name)
def test_the_guide_names_the_settings_of_each_column(support: Support) -> None:
    _, head, table = (ROOT / support.guide).read_text().partition("| column | setting |\n|---|---|\n")
    assert head
    rows = [line.strip("|").split("|") for line in table.partition("\n\n")[0].splitlines()]
    guide = {tuple(re.findall(r"`(\w+)`", columns)): set(SETTING.findall(setting)) for columns, setting in rows}
    assert guide == {switch.columns: set(SETTING.findall(switch.setting)) for switch in support.switches}
    assert all(guide.values())


@pytest.mark.parametrize(
    ("name", "version", "supported"),
    [
        ("trl", "1.15.2", False), ("trl", "1.16.0", True), ("trl", "2.0.0.dev0", False),
        ("verl", "0.8.0", False), ("verl", "0.9.0", True), ("verl", "0.9.1.dev0", True), ("verl", "0.10.0", False),
        ("verl", "1.0", False), ("verl", "unknown", False), ("openrlhf", "0.11.1", False), ("openrlhf", "0.11.2", True),
        ("openrlhf", "0.12", False),
    ],
)  # fmt: skip
def test_versions(name: str, version: str, *, supported: bool) -> None:
    assert SUPPORTED[name].supports(version) == supported


@pytest.mark.parametrize("support", GUIDED, ids=lambda support: support.name)
def test_the_guide_names_the_versions(support: Support) -> None:
    assert ".".join(map(str, support.first)) in (ROOT / support.guide).read_text()
