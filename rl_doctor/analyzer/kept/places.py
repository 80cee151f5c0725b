"""Where states lie: in the run folder, or where that cannot be written to and for files in the user's cache."""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path
from typing import Final

FOLDER: Final = ".rl_doctor"
"""Folder inside a run folder."""


def places(path: Path) -> tuple[Path, ...]:
    """Folders in which the states of a run may lie, the one to write to first.

    A file has none beside it: it may lie in a folder of artefacts that are uploaded as they are.
    """
    apart = cache() / blake2b(os.fsencode(path.resolve()), digest_size=12).hexdigest()
    return (path / FOLDER, apart) if path.is_dir() else (apart,)


def cache() -> Path:
    """The folder of all states that do not lie beside their run: ``$XDG_CACHE_HOME/rl-doctor``."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(given) if given and Path(given).is_absolute() else Path("~/.cache").expanduser()
    return home / "rl-doctor"
