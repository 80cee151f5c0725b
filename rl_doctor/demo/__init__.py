"""Small recorded runs that ship with the package. ``index.json`` names each with its title and the fault to expect.

``index.json`` is a list of ``{"name": ..., "title": ..., "fault": ..., "errors": [...]}``, in the order to show. ``name`` is a
run folder or a Parquet file beside it; ``fault`` is the name of the rule that must find something, or null for a healthy run,
in which nothing above info may be found; ``errors`` names every rule that reports an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from rl_doctor.errors import InputError
from rl_doctor.frozen import frozen

INDEX_NAME: Final = "index.json"


@frozen
class DemoRun:
    """A recorded run.

    Attributes:
        path: run folder or Parquet file.
        title: what was done to the training, in one line.
        fault: name of the rule that must find it; None for a healthy run.
    """

    path: Path
    title: str
    fault: str | None


@contextmanager
def recorded_runs(folder: Traversable | None = None) -> Iterator[tuple[DemoRun, ...]]:
    """The recorded runs as files, for as long as the context is open (a zipped package is unpacked for it).

    Args:
        folder: where ``index.json`` and the runs lie; by default this package.

    Raises:
        InputError: there is no index, or a run that it names is missing.
    """
    folder = resources.files(__name__) if folder is None else folder
    index = folder / INDEX_NAME
    if not index.is_file():
        raise InputError(f"{index}: no recorded runs in this installation")
    with ExitStack() as stack:
        yield tuple(_run(entry, folder, stack) for entry in json.loads(index.read_text("utf-8")))


def _run(entry: dict[str, str | None], folder: Traversable, stack: ExitStack) -> DemoRun:
    name = str(entry["name"])
    place = folder / name
    if not place.is_file() and not place.is_dir():
        raise InputError(f"{folder / INDEX_NAME}: names the run {name}, which is not there")
    return DemoRun(stack.enter_context(resources.as_file(place)), str(entry["title"]), entry["fault"])
