"""What the tests of all trainers share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which this checkout is installed, with its metadata and entry points; put it on PYTHONPATH.

    The environments of trainers are shared by checkouts and have no package of ours in them: our entry points are found only by a
    process that is given this folder.
    """
    folder = tmp_path_factory.mktemp("installed")
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-build-isolation",
    ]
    done = subprocess.run(
        [*command, "--target", str(folder), str(ROOT)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return folder
