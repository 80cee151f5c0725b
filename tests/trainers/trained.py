"""What a training of a test recorded, and trainings that are made once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray

from rl_doctor import Run, open_run
from tests.trainers.warm import Warm

T = TypeVar("T")


@dataclass(frozen=True)
class Recorded:
    """The folder that a training recorded into, and what it printed beside its result."""

    folder: Path
    said: str

    @property
    def run(self) -> Run:
        return open_run(self.folder)

    def columns(self, *names: str, critic: bool = False) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64]]:
        """Columns of the whole run, and the lengths of its sequences."""
        run = open_run(self.folder / "critic") if critic else self.run
        batches = list(run.batches([*names, "step"]))
        lengths = np.concatenate([np.diff(batch.splits) for batch in batches])
        return {name: np.concatenate([batch.columns[name] for batch in batches]) for name in [*names, "step"]}, lengths


def once(
    warm: Warm,
    module: str,
    folders: pytest.TempPathFactory,
    make: Callable[[Path, Mapping[str, Any], str, str], T],
    beside: Callable[[Path], Mapping[str, str]] = lambda folder: {},  # noqa: ARG005 - nothing, wherever it records
) -> Callable[..., T]:
    """A function that runs a module with options, which records into a new folder; the same options are run once only.

    Args:
        warm: what runs the module.
        module: trains with the options that it is given as JSON; ``record`` among them is the folder or None.
        folders: makes folders.
        make: (folder, result, standard output, standard error) -> what is returned.
        beside: folder -> further options.
    """
    made: dict[str, T] = {}

    def run(*, record: bool | str = True, ranks: int = 1, **options: Any) -> T:
        key = json.dumps([record, ranks, options], sort_keys=True)
        if key not in made:
            folder = folders.mktemp("run") / "recorded"
            target = str(folder) if record is True else record or None
            made[key] = make(folder, *warm.run(module, {**options, "record": target, **beside(folder)}, ranks))
        return made[key]

    return run
