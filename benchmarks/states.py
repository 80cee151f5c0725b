"""What kept states give: opening a run again, following one of many parts, what a first check pays for them.

Writes runs with the package's own writer into a temporary folder. Figures are seconds of the processor (user and system): of a
process of its own for opening, of the calling thread for a refresh; wall time stands in brackets.

    python benchmarks/states.py                 # 3 million tokens, and 1,000 parts
    python benchmarks/states.py --million 100 --parts 10000
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.check import GROUP, _advantages, _sequences, _tokens, write_run

FRESH = 10
"""Parts that come between two refreshes."""
ROWS = 2 * GROUP


def spent(*command: str) -> tuple[float, float, float]:
    """Processor seconds, wall seconds and peak memory in MB of a process."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    child = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    if os.waitstatus_to_exitcode(status) not in {0, 1}:
        raise SystemExit(f"{command} failed")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, time.perf_counter() - start, used.ru_maxrss / 1024


def opening(folder: Path, million: float) -> None:
    """A run of so many million tokens: checked without states, for the first time, and again; opened by the app again."""
    run = folder / "tokens"
    tokens = write_run(run, int(million * 1e6))
    print(f"{tokens / 1e6:.1f} million tokens, {len(list(run.glob('sequences-*')))} parts", flush=True)
    follow = f"from pathlib import Path; from rl_doctor.live.followed import Followed; Followed(Path({str(run)!r})).opened"
    for name, command in (
        ("check --no-cache", ["-m", "rl_doctor", "check", str(run), "--no-cache"]),
        ("check, first", ["-m", "rl_doctor", "check", str(run)]),
        ("check, again", ["-m", "rl_doctor", "check", str(run)]),
        ("app, first", ["-c", follow]),
        ("app, again", ["-c", follow]),
    ):
        cpu, wall, memory = spent(*command)
        print(f"  {name:18} {cpu:7.2f} ({wall:.2f}) s, {memory:.0f} MB", flush=True)
    kept = sum(path.stat().st_size for path in (run / ".rl_doctor").iterdir())
    print(f"  states: {kept / 1e6:.1f} MB", flush=True)


class Growing:
    """A run of many small parts, one step each.

    Args:
        folder: the run folder.
        length: tokens of a response, about.
    """

    def __init__(self, folder: Path, length: int) -> None:
        from rl_doctor.schema import RunConfig, RunInfo
        from rl_doctor.store.writer import RunWriter

        config = RunConfig(clip_low=0.2, clip_high=0.28, loss_agg="token-mean", adv_estimator="grpo", epochs=1, minibatches=4)
        self._writer = RunWriter(folder, RunInfo(trainer="custom", algorithm="grpo", status="running", config=config))
        self._length = length
        self._step = 0

    def grow(self, parts: int) -> None:
        """Write so many parts more."""
        import numpy as np

        from rl_doctor.store.rows import Rows, splits_of

        for _ in range(parts):
            self._step += 1
            generator = np.random.default_rng(self._step)
            lengths = np.clip(generator.lognormal(np.log(self._length), 0.5, ROWS), 8, 4096).astype(np.int64)
            columns = _sequences(generator, self._step, lengths) | _tokens(generator, lengths)
            group = columns.pop("group_index")
            columns["advantage"] = np.repeat(_advantages(columns["reward"], group), lengths).astype(np.float32)
            self._writer.write_metrics(
                [
                    {"step": self._step, "time": 0.0, "name": name, "value": float(generator.random()), "split": "train",
                     "source": "log"}
                    for name in ("actor/pg_loss", "actor/grad_norm", "critic/score/mean", "response_length/mean")
                ]
            )  # fmt: skip
            self._writer.write_part(Rows(columns, splits_of(lengths)), completes=[self._step])


def timed(work: Callable[[], object]) -> str:
    """Processor and wall time of a call."""
    wall, cpu = time.perf_counter(), time.thread_time()
    work()
    return f"{time.thread_time() - cpu:.3f} ({time.perf_counter() - wall:.3f}) s"


def following(folder: Path, parts: int, length: int) -> None:
    """A run of so many parts: opened, refreshed with new ones and without, opened again."""
    from rl_doctor.live.followed import Followed

    run = folder / "parts"
    growing = Growing(run, length)
    growing.grow(parts)
    print(f"{parts} parts of {ROWS} sequences", flush=True)
    followed = Followed(run, everything=False)
    print(f"  opened without states {timed(lambda: followed.opened)}", flush=True)
    for _ in range(3):
        growing.grow(FRESH)
        print(f"  refresh with {FRESH} new parts {timed(followed.refresh)}", flush=True)
        print(f"  refresh with none {timed(followed.refresh)}", flush=True)
    followed.close()
    print(f"  opened from states {timed(lambda: Followed(run, everything=False).opened)}", flush=True)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--million", type=float, default=3.0)
    parser.add_argument("--parts", type=int, default=1000)
    parser.add_argument("--length", type=int, default=60)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        if options.million:
            opening(folder, options.million)
        if options.parts:
            following(folder, options.parts, options.length)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
