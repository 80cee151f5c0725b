"""Findings in the wandb run of the training, from inside its process; they are made in another one, of low priority."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

from rl_doctor.collectors.guard import logger
from rl_doctor.errors import DoctorError
from rl_doctor.i18n.speaker import Speaker
from rl_doctor.live.channels import Alerts
from rl_doctor.live.looking import Look
from rl_doctor.live.memory import Memory
from rl_doctor.live.notify import VARIABLE
from rl_doctor.live.sight import ENDED, Sight
from rl_doctor.live.wandb_run import WandbAlerts, WandbFindings
from rl_doctor.live.words import Words
from rl_doctor.store import layout
from rl_doctor.store.info import parse_info

_NICENESS: Final = 19
_INTERVAL: Final = 15.0
_CLOSE_SECONDS: Final = 60.0


class WandbReport:
    """Writes what is found in a run into the process's active run of wandb (``wandb.run``), while it is recorded.

    The run is watched by ``rl-doctor watch`` in another process, of the lowest priority and without a GPU; a thread of this one
    hands on what it finds. Nothing here raises into the training or makes it wait but ``close``.

    Args:
        path: the run folder that is being recorded.
        interval: seconds between looks.
    """

    def __init__(self, path: str | os.PathLike[str], interval: float = _INTERVAL) -> None:
        self._pid = os.getpid()
        self._path = os.path.abspath(path)  # noqa: PTH100 - a later change of the working directory must not matter
        self._process: subprocess.Popen[str] | None = None
        self._findings = WandbFindings(_active, own=False)
        self._alerts = Alerts(WandbAlerts(_active), Memory(), Words(Speaker()), "error", logger.warning)
        gently = [nice, "-n", str(_NICENESS)] if (nice := shutil.which("nice")) else []
        watch = ["-m", "rl_doctor", "watch", self._path, "--output-format", "json", "--interval", str(interval)]
        others = {name: value for name, value in os.environ.items() if name != VARIABLE}
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [*gently, sys.executable, *watch], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                text=True, env={**others, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            )  # fmt: skip
        except OSError as error:
            logger.warning("rl-doctor: no findings in wandb: %s", error)
            return
        self._thread = threading.Thread(target=self._listen, args=(self._process.stdout,), name="rl-doctor-wandb", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def close(self, timeout: float = _CLOSE_SECONDS) -> None:
        """Wait until what the recording ended with has been written, and end the watch; to be called before ``wandb.finish``.

        Args:
            timeout: seconds to wait at most.
        """
        process, self._process = self._process, None
        if process is None or os.getpid() != self._pid:
            return
        atexit.unregister(self.close)
        if not _ended(self._path):
            timeout = 0.0  # nothing ends the watch of a recording that was not closed
        self._thread.join(timeout)
        process.terminate()
        self._thread.join(_CLOSE_SECONDS)
        process.wait()

    def _listen(self, lines: IO[str]) -> None:
        for line in lines:
            try:
                self._hand_on(json.loads(line))
            except Exception as error:  # noqa: BLE001 - the training goes on, whatever wandb does
                logger.warning("rl-doctor: cannot write findings to wandb: %s: %s", type(error).__name__, error)
        lines.close()

    def _hand_on(self, document: Mapping[str, Any]) -> None:
        if document["sight"] is None or _active() is None:
            return
        look = Look(Sight.from_json(document["sight"]), document["problem"], over=document["over"])
        self._findings.take(look, last=look.over)
        self._alerts.take(look, last=look.over)


def _active() -> Any:
    """The active run of wandb in this process, or None."""
    return getattr(sys.modules.get("wandb"), "run", None)


def _ended(path: str) -> bool:
    """Whether the recording was closed."""
    info = Path(path) / layout.INFO_NAME
    try:
        return parse_info(info.read_bytes(), str(info)).status in ENDED
    except (DoctorError, OSError):
        return False
