"""Small run files, healthy and broken, for the tests of the real command line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Row = dict[str, Any]


def rows(steps: int = 40, per_step: int = 8) -> list[Row]:
    """A healthy run: old and new logprobs near each other, a reward that rises slowly."""
    rng = np.random.default_rng(7)
    made: list[Row] = []
    for step in range(steps):
        for index in range(per_step):
            length = int(rng.integers(6, 16))
            old = -rng.exponential(0.8, length)
            made.append({
                "step": step,
                "uid": f"{step}-{index}",
                "group": f"{step}-{index // 4}",
                "reward": float(rng.random() < 0.4 + 0.004 * step),
                "response_length": length,
                "response_mask": [True] * length,
                "old_logprob": old.tolist(),
                "logprob": np.minimum(old + rng.normal(0, 0.01, length), 0).tolist(),
                "advantage": [float(rng.normal())] * length,
            })  # fmt: skip
    return made


def write(path: Path, table: Sequence[Row] | Mapping[str, Any] | pa.Table) -> Path:
    """Write rows, columns or a table as Parquet."""
    if isinstance(table, Mapping):
        table = pa.table(dict(table))
    elif not isinstance(table, pa.Table):
        table = pa.Table.from_pylist(list(table))
    pq.write_table(table, path)
    return path


@dataclass(frozen=True)
class Outcome:
    """What a process printed and how it ended."""

    code: int
    out: str
    err: str

    def checked(self) -> Outcome:
        """Itself; whatever happened, there must be no traceback and no error that is a bug."""
        for printed in (self.out, self.err):
            assert "Traceback" not in printed, printed
            assert "internal error" not in printed, printed
        return self

    @property
    def error_line(self) -> str:
        """The one line on standard error."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("rl-doctor: error: "), self.err
        return lines[0]


def run_cli(*arguments: object, timeout: float = 120, env: Mapping[str, str] | None = None) -> Outcome:
    """Run ``rl-doctor`` in a process of its own."""
    environment = {key: value for key, value in os.environ.items() if key not in {"RL_DOCTOR_TRACEBACK", "COLUMNS"}}
    done = subprocess.run(
        [sys.executable, "-m", "rl_doctor", *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=timeout,
        check=False,
        env=environment | {"PYTHONIOENCODING": "utf-8"} | dict(env or {}),
    )
    return Outcome(done.returncode, done.stdout, done.stderr).checked()
