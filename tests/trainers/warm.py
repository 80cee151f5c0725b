"""Trainings in processes forked from one that has imported their trainer, which takes longer than they do.

Each is a process of its own, with its own environment and arguments, that ends as any other does. The first process only imports:
it computes nothing and starts no thread, so that what is forked from it begins as a new one would.

Usage: python -m tests.trainers.warm MODULE [MODULE ...], then orders, one JSON object a line, on standard input.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TIMEOUT = 550


class Warm:
    """Runs modules in processes forked from one that has imported what they need.

    Args:
        modules: what to import first.
        environment: of the process that imports, and of all others but for what they change.
    """

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.trainers.warm", *modules],
            cwd=ROOT, env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def run(self, module: str, options: Any, ranks: int = 1, **changes: str) -> tuple[dict[str, Any], str, str]:
        """Run a module with its options as JSON on each rank.

        Returns:
            What it printed after RESULT, and all that it printed to standard output and standard error.

        Raises:
            AssertionError: a rank failed; with the end of what it said.
        """
        port = free_port()
        of_ranks = [
            {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}", "WORLD_SIZE": f"{ranks}", "LOCAL_WORLD_SIZE": f"{ranks}"}
            for rank in range(ranks)
        ]
        here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environments = [self.environment | changes | here | (own if ranks > 1 else {}) for own in of_ranks]
        with tempfile.TemporaryDirectory() as folder:
            files = [str(Path(folder, name)) for name in ("out", "err")]
            order = {"module": module, "argument": json.dumps(options), "environments": environments, "files": files}
            failed = self._ask(order)
            out, err = (Path(file).read_text("utf-8", errors="replace") for file in files)
        assert not failed, f"{module} ended with {failed}: {err[-4000:]}"
        return result_of(out), out, err

    def _ask(self, order: Mapping[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        while not (answer := self._process.stdout.readline()).startswith("ENDED "):
            assert answer, f"the process that imports ended with {self._process.wait()}"
        return int(answer.removeprefix("ENDED "))

    def close(self) -> None:
        """End the process, and what it still runs."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


def result_of(output: str) -> Any:
    """What a program printed after RESULT."""
    (line,) = [line for line in output.splitlines() if line.startswith("RESULT ")]
    return json.loads(line.removeprefix("RESULT "))


def free_port() -> str:
    """A port that nobody listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def serve(modules: Sequence[str]) -> str:
    """Import modules and fork as ordered; in a forked process the name of the module that it is to run, at the end ""."""
    for name in modules:
        importlib.import_module(name)
    gc.freeze()
    for line in sys.stdin:
        order, children = json.loads(line), []
        for environment in order["environments"]:
            if not (child := os.fork()):
                _become(order, environment)
                return str(order["module"])
            children.append(child)
        sys.stdout.write(f"ENDED {_wait(children)}\n")
        sys.stdout.flush()
    return ""


def _become(order: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [order["module"], order["argument"]]
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in enumerate(order["files"], 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)


def _wait(children: Sequence[int]) -> int:
    """Wait for processes; the exit code of the first that failed. With it, or when time is up, the others are ended."""
    left, failed = set(children), 0
    signal.signal(signal.SIGALRM, lambda *_: [os.kill(child, signal.SIGKILL) for child in left])
    signal.alarm(TIMEOUT)
    while left:
        child, status = os.wait()
        left.discard(child)
        if (code := os.waitstatus_to_exitcode(status)) and not failed:
            failed = code
            for other in left:
                os.kill(other, signal.SIGTERM)
    signal.alarm(0)
    return failed


if __name__ == "__main__" and (module := serve(sys.argv[1:])):
    runpy.run_module(module, run_name="__main__", alter_sys=True)
