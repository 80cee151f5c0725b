"""What a click in the app waits for: the views that each page asks for, of a long run that is opened from its states.

Writes a run folder with the package's own writer (that of check.py), or takes one that is there. The run is opened twice, so that
the second time takes what the first one kept; then each view is asked for, for the first time and again. Seconds of the
processor, and wall time in brackets.

    python benchmarks/clicks.py [million tokens] [--run FOLDER] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from check import prepared

from rl_doctor.live.followed import Followed
from rl_doctor.views.compare import compare
from rl_doctor.views.distributions import change, heat, known
from rl_doctor.views.groups import again, groups_at, shares, solve_map
from rl_doctor.views.opened import Opened
from rl_doctor.views.panels import drawable, panels, single
from rl_doctor.views.recompute import detail, recomputed
from rl_doctor.views.rollouts import rollouts
from rl_doctor.views.stored import stored
from rl_doctor.views.timeline import timeline
from rl_doctor.views.tokens import tokens
from rl_doctor.views.verdict import verdict


def pages(opened: Opened) -> Iterator[tuple[str, Callable[[], object]]]:
    """Each page, and what it asks for."""
    step = opened.run.steps[len(opened.run.steps) // 2]
    yield "diagnosis", lambda: (verdict(opened), timeline(opened))
    yield "run", lambda: (panels(opened), drawable(opened), single(opened, "policy.entropy"))
    yield "distributions", lambda: [(heat(opened, name), change(opened, name)) for name in known(opened)[:2]]
    yield "groups, map", lambda: (solve_map(opened), shares(opened), again(opened))
    yield "groups, a step", lambda: groups_at(opened, step)
    yield "rollouts", lambda: rollouts(opened, step=step)
    yield "rollouts, by ratio", lambda: rollouts(opened, step=step, metric="policy.ratio_mean")
    yield "tokens", lambda: tokens(opened, step=step)
    yield "compare", lambda: compare({"a": opened, "b": opened})
    yield "recompute", lambda: (recomputed(opened), detail(opened))
    yield "data", lambda: stored(opened)


def timed(work: Callable[[], object]) -> str:
    """Processor and wall time of a call."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return f"{time.process_time() - cpu:6.3f} ({time.perf_counter() - wall:.3f})"


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("million", nargs="?", type=float, default=100.0)
    parser.add_argument("--run", type=Path, help="a run that is there")
    parser.add_argument("--keep", type=Path, help="folder to keep the run in, and to take it from if it is there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        run = options.run or prepared(options.keep or Path(temporary), options.million)[0]
        print(f"{run}: opened {timed(lambda: Followed(run).opened)} s", flush=True)
        followed = Followed(run)
        print(f"again {timed(lambda: followed.opened)} s", flush=True)
        for name, work in pages(followed.opened):
            print(f"  {name:20} {timed(work)} s, again {timed(work)} s", flush=True)


if __name__ == "__main__":
    main()
