"""Texts as consoles show them, for the tests of importers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from hypothesis import strategies as st

from rl_doctor.collectors.importers.opening import open_log
from rl_doctor.collectors.importers.registry import Fit, find, sample
from rl_doctor.store.run import Run

LOGGED = st.floats(-1e30, 1e30) | st.sampled_from([math.nan, math.inf, -math.inf])
"""Numbers as a trainer may log them."""


def opened(path: Path, content: str | bytes, name: str = "run.txt") -> Run:
    """A text, written under a name that tells nothing, opened by its content."""
    file = path / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return open_log([file])


def importer_of(path: Path, content: str | bytes) -> tuple[str | None, Fit]:
    """The importer that recognises a content, and how well it fits."""
    file = path / "content"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    seen = sample(file)
    chosen = find(seen)
    return (None, Fit.NO) if chosen is None else (chosen.name, chosen.recognises(seen))


def values(run: Run, name: str, split: str = "train") -> dict[int, float]:
    """A series as step -> value."""
    steps, found = run.metrics().series(name, split)
    return dict(zip(steps.tolist(), found.tolist(), strict=True))


def bar(count: int, total: int, name: str = "") -> str:
    """A progress bar as tqdm draws it over the last one."""
    label = f"{name}: " if name else ""
    return f"\r{label}{100 * count // total:3d}%|{'█' * (10 * count // total):<10}| {count}/{total} [04:51<8:00:57, 291.49s/it]"


def python_row(row: Mapping[str, object]) -> str:
    """A row as Hugging Face's Trainer prints it."""
    return str(dict(row))


def trained(rows: Sequence[Mapping[str, object]], every: int = 1, total: int = 100) -> str:
    """Rows with the bars of a training around them: the bar is drawn up to a row's step, cleared, and drawn again after it."""
    text = bar(0, total)
    for index, row in enumerate(rows, 1):
        for step in range((index - 1) * every + 1, index * every + 1):
            text += bar(step, total)
        text += f"\r{' ' * 50}\r{python_row(row)}\n{bar(index * every, total)}"
    return text
