"""Has the trackers themselves write logs, in processes of their own: their threads and warnings stay out of the tests."""

import os
import subprocess
import sys
from pathlib import Path


def environment(home: Path, **more: str) -> dict[str, str]:
    """Variables under which a tracker finds no login, no other settings, and tells nobody."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "TRACKIO_"))}
    quiet = {"HOME": str(home), "WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true", "HF_HUB_OFFLINE": "1"}
    return {**kept, **quiet, **more}


def written(script: str, folder: Path, **more: str) -> str:
    """What a script prints that is run in a folder."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], cwd=folder, env=environment(folder, **more), capture_output=True,
        text=True, timeout=300, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
