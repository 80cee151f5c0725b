"""The lines of the guide on loops of one's own, and how they come into a loop."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
GUIDE = ROOT / "docs" / "guide" / "own-loops.md"
PLACES = {
    "before the loop over epochs": ("for epoch in range(", False),
    "after loss.backward()": ("loss.backward()", True),
    "where the step is logged": ("log(", False),
    "after the training": ("torch.save(", False),
}
"""What the guide calls a place -> the beginning of the line that it is next to, and whether it comes after that line."""


def guide_lines(section: str) -> str:
    """The program of a section of the guide."""
    (block,) = re.findall(rf"^## {section}$.*?^```python\n(.*?)^```", GUIDE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return str(block)


def insert(program: str, lines: str) -> str:
    """A loop with the lines of the guide, each part at its place and at the depth of what stands there."""
    for part in re.split(r"^# ", lines, flags=re.MULTILINE)[1:]:
        place, _, text = part.partition("\n")
        start, after = PLACES[place]
        rows = program.split("\n")
        (at,) = [number for number, row in enumerate(rows) if row.strip().startswith(start)]
        depth = rows[at][: len(rows[at]) - len(rows[at].lstrip())]
        at += after
        program = "\n".join([*rows[:at], textwrap.indent(text.rstrip("\n"), depth), *rows[at:]])
    return program
