"""Keeps a run folder within a quota: takes the tokens out of old steps, in the writer's thread."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from rl_doctor.collectors.findings import FindingsCheck
from rl_doctor.collectors.guard import one_line
from rl_doctor.errors import UsageError
from rl_doctor.store import layout
from rl_doctor.store.layout import PartName
from rl_doctor.store.rows import Rows, without_tokens
from rl_doctor.store.thinning import Plan, StepsOfRun, choose, read_plan, sizes, thin_part, write_plan
from rl_doctor.store.writer import RunWriter

QUOTA: Final = 0.1
"""Share of the free space that a run may take where nothing else is said."""
_FLOOR_SHARE: Final = 0.02
_FLOOR_BYTES: Final = 1 << 30
_MEASURE_SECONDS: Final = 5.0
_MEASURE_PAUSE: Final = 20.0
"""The folder is measured again after that many seconds, and that many times as long as it took."""
_SETTLE_SECONDS: Final = 30.0
"""How long the other ranks have to follow a plan before the next one."""
_CLOSE_SECONDS: Final = 20.0
_CHECK_FROM: Final = 0.9
_WAIT_UNTIL: Final = 1.25
"""Share of the quota from which the run is checked for findings, and up to which that is waited for."""
_TARGET: Final = 0.75
_FEWEST: Final = 4
"""Share of the quota that thinning leaves, and how many generation batches it must have room for."""


class Thinner:
    """Thins what one rank has recorded.

    Rank 0 measures the folder and writes the plan; every rank takes the tokens out of its own parts, rank 0 out of those of
    earlier sessions too. After the constructor nothing raises: what fails is said once, and the tokens of new steps are left out
    from then on.

    Args:
        quota: bytes that all files of the run may take, or a share (below 1) of the space that is free or the run's; None for no
            quota.
        tell: logs a line, once.

    Raises:
        UsageError: the quota is neither.
    """

    def __init__(self, quota: float | None, tell: Callable[[str], object]) -> None:
        if quota is not None and (isinstance(quota, bool) or not isinstance(quota, (int, float)) or not quota > 0):
            raise UsageError(f"quota is a number of bytes, a share of the free space below 1, or None, not {quota!r}")
        self._writer: RunWriter
        self._folder: Path
        self._steps: StepsOfRun
        self._check = FindingsCheck(tell)
        self._tell = tell
        self._quota = quota
        self._floor = 0
        self._plan: Plan | None = None
        self._seen: int | None = None
        self._pending: list[PartName] = []
        self._next_measure = 0.0
        self._settled = 0.0
        self._low = False
        self._failed = False

    def begin(self, writer: RunWriter) -> None:
        """Take over the run that is recorded, in the thread that writes it; ``writer`` writes the parts of this rank."""
        self._writer = writer
        self._folder = writer.path
        self._steps = StepsOfRun(self._folder)
        if self._quota is not None:
            self._guarded(self._continue)

    @property
    def pending(self) -> bool:
        """Whether parts wait to be thinned."""
        return bool(self._pending)

    def fit(self, rows: Rows) -> Rows:
        """The rows as they may be written now: without tokens where there is no room for them."""
        if self._quota is None or not (self._low or self._failed or (self._plan is not None and self._plan.stopped)):
            return rows
        if rows.n_tokens:
            self._guarded(lambda: self._writer.count_left_out(tokenless=len(np.unique(rows.columns["step"]))))
        return without_tokens(rows, np.ones(rows.n_sequences, np.bool_))

    def after_part(self, rows: Rows) -> None:
        """Look at the disk, and plan (rank 0) or follow the plan (other ranks)."""
        if self._quota is not None and not self._failed:
            self._guarded(lambda: self._look(rows))

    def work(self, seconds: float) -> None:
        """Thin parts that wait for it, for about that long."""
        self._guarded(lambda: self._thin(time.monotonic() + seconds))

    def close(self) -> None:
        """Finish what can be finished soon."""
        self._guarded(lambda: self._thin(time.monotonic() + _CLOSE_SECONDS))
        self._check.stop()

    def _guarded(self, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - recording goes on without tokens where saving space fails
            self._failed = True
            self._pending = []
            self._tell(f"cannot save space ({one_line(error)}): the tokens of new steps are left out from now on")

    def _continue(self) -> None:
        """Follow a plan that an earlier session left; its steps that were not thinned then are thinned now."""
        disk = shutil.disk_usage(self._folder)
        self._floor = min(_FLOOR_BYTES, int(disk.total * _FLOOR_SHARE))
        if self._quota is not None and self._quota < 1:
            self._quota = int(self._quota * (disk.free + sizes(self._folder).total))
        plan = read_plan(self._folder)
        if plan is not None and plan.stopped and self._writer.rank == 0:
            plan = Plan(plan.until, plan.kept, plan.stage, plan.findings)
            write_plan(self._folder, plan)
        self._follow(plan)

    def _look(self, rows: Rows) -> None:
        free = shutil.disk_usage(self._folder).free
        if free < self._floor and not self._low:
            self._tell(f"only {_shown(free)} are free on the disk: the tokens of new steps are left out until there is more")
        self._low = free < (2 * self._floor if self._low else self._floor)
        if self._writer.rank != 0:
            self._follow(read_plan(self._folder) if self._changed() else self._plan)
            return
        self._go_back(rows)
        if time.monotonic() >= self._next_measure:
            started = time.monotonic()
            self._measure()
            self._next_measure = time.monotonic() + max(_MEASURE_SECONDS, _MEASURE_PAUSE * (time.monotonic() - started))

    def _changed(self) -> bool:
        try:
            stamp = (self._folder / layout.THINNING_NAME).stat().st_mtime_ns
        except FileNotFoundError:
            return False
        changed = stamp != self._seen
        self._seen = stamp
        return changed

    def _go_back(self, rows: Rows) -> None:
        """A training that went back to an earlier step records it anew: the plan ends before it."""
        if self._plan is None or not rows.n_sequences:
            return
        first = int(rows.columns["step"].min())
        if first <= self._plan.until:
            kept = tuple((start, min(stop, first - 1)) for start, stop in self._plan.kept if start < first)
            self._plan = Plan(first - 1, kept, self._plan.stage, self._plan.findings, self._plan.stopped)
            write_plan(self._folder, self._plan)

    def _measure(self) -> None:
        quota = self._quota or 0
        used = sizes(self._folder)
        if used.total > _CHECK_FROM * quota and not (self.pending or (self._plan and self._plan.stopped)):
            self._check.start(self._folder)
        if used.total <= quota or self.pending or time.monotonic() < self._settled or (self._plan and self._plan.stopped):
            return
        if self._check.running and used.total <= _WAIT_UNTIL * quota:
            return
        units = self._steps.generation_batches()
        before = self._plan or Plan(-(2**62), ())
        whole = sum(all(before.keeps(step) for step in unit) for unit in units)
        each = used.tokens / max(whole, 1)
        room = int((_TARGET * quota - (used.total - used.tokens)) / each) if each else 0
        plan = choose(units, max(room, _FEWEST), self._check.take() or before.findings, before)
        if room < _FEWEST or all(plan.keeps(step) for unit in units for step in unit if before.keeps(step)):
            plan = Plan(plan.until, plan.kept, plan.stage, plan.findings, stopped=True)
        self._announce(plan, before, used.total)
        write_plan(self._folder, plan)
        self._settled = time.monotonic() + _SETTLE_SECONDS
        self._follow(plan)

    def _announce(self, plan: Plan, before: Plan, total: int) -> None:
        over = f"the run's files take {_shown(total)}, its quota is {_shown(int(self._quota or 0))}"
        if plan.stage != before.stage:
            self._tell(
                f"{over}: of the old generation batches up to step {plan.until} 1 in {2**plan.stage} keeps its tokens, beside "
                "the first, the newest and those with findings; rewards, lengths and metrics of all stay"
            )
        if plan.stopped and not before.stopped:
            self._tell(f"{over}, and thinning cannot free enough: the tokens of new steps are left out from now on")

    def _follow(self, plan: Plan | None) -> None:
        if plan is None or plan == self._plan:
            return
        self._plan = plan
        names = (layout.parse_part(path.name) for path in self._folder.iterdir())
        own = [name for name in names if name is not None and name.table == "sequences" and self._is_mine(name)]
        self._pending = sorted(own, reverse=True)

    def _is_mine(self, name: PartName) -> bool:
        if name.session == self._writer.session:
            return name.rank == self._writer.rank
        return self._writer.rank == 0

    def _thin(self, until: float) -> None:
        plan, steps = self._plan, 0
        try:
            while self._pending and plan is not None and time.monotonic() < until:
                steps += len(thin_part(self._folder, self._pending.pop(), plan.keeps))
        finally:
            if steps:
                self._settled = time.monotonic() + _SETTLE_SECONDS
                self._writer.count_left_out(thinned=steps)


def _shown(size: int) -> str:
    """A number of bytes for people."""
    value, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.3g} {unit}"
