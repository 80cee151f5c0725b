"""What is kept of a run between its checks: states of metrics, facts about its rows, explanations of its log."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rl_doctor import __version__
from rl_doctor.analyzer.comparison import Comparison
from rl_doctor.analyzer.kept import explanations
from rl_doctor.analyzer.kept.cupboard import Cupboard
from rl_doctor.analyzer.kept.footers import Footers
from rl_doctor.analyzer.kept.keeper import Keeper, first_difference, packed, unpacked
from rl_doctor.analyzer.kept.keys import of_log
from rl_doctor.analyzer.kept.places import places
from rl_doctor.analyzer.kept.sheet import Sheet
from rl_doctor.api import open_run
from rl_doctor.errors import InputError
from rl_doctor.schema import RunInfo
from rl_doctor.store import layout
from rl_doctor.store.metric_log import MetricLog
from rl_doctor.store.part_index import PartIndex
from rl_doctor.store.run import Run

_FACTS: Final = "facts"


class Keep:
    """What is kept of a run.

    Args:
        path: the run.
        verify: read everything, hold what is kept against it, and write nothing.
        complete: whether the run is given without steps that are not complete, or has ended.
    """

    def __init__(self, path: Path, *, verify: bool = False, complete: bool = False) -> None:
        self.path = path
        self._complete = complete
        self._cupboard = Cupboard(places(path))
        self._verify = verify
        self.states = Keeper(self._cupboard, "run", verify=verify)
        self.states.critic = Keeper(self._cupboard, "critic", verify=verify)
        self.footers = None if verify else Footers(self._cupboard, "parts", path, __version__)
        self.critic_footers = None if verify else Footers(self._cupboard, "parts-critic", path / layout.CRITIC_NAME, __version__)
        self._facts: Sheet | None = None
        self._apart = ""
        self._log = MetricLog()

    def opened(self, *more: Path) -> Run:
        """The run, opened with what is kept of its parts; ``more`` are further logs of it. Raises as ``open_run`` does."""
        index, of_critic = self.parts
        return open_run(self.path, *more, index=index, of_critic=of_critic)

    @property
    def parts(self) -> tuple[PartIndex | None, PartIndex | None]:
        """What is known of the parts of a run folder, and of those of its critic; nothing where all is to be read."""
        if self.footers is None or self.critic_footers is None or not self.path.is_dir():
            return None, None
        return self.footers.index, self.critic_footers.index

    @property
    def notes(self) -> Sequence[str]:
        """What the user should be told: what could not be read, and why nothing is kept."""
        return self._cupboard.notes

    def begin(self, run: Run, info: RunInfo, log: MetricLog) -> None:
        """Go on with a run as it is now.

        Args:
            run: the run.
            info: its description, with what its log tells.
            log: what was logged.
        """
        if self._facts is None:
            self._facts = self._cupboard.load(_FACTS, lambda sheet: sheet)
        if (facts := self._facts_of(run)) is not None:
            told, before = facts
            changed = first_difference(before, run.digests)
            further = told["through"] > run.known.get("through", -math.inf)
            if not self._verify and further and (changed is None or changed > told["through"]):
                run.known.update(told)
        self._apart, self._log = of_log(info, log.names(), __version__), log
        for keeper, source in ((self.states, run), (self.states.critic, run.critic)):
            if keeper is not None and source is not None:
                keeper.begin(self._apart, None if self._complete else _settled(source))

    def failed(self, error: Exception) -> None:
        """States could not be used because of a defect."""
        self._cupboard.note(f"states could not be used ({type(error).__name__}: {error}): everything is read")

    def save(self, run: Run) -> None:
        """Write what was found out, as far as it is new.

        Raises:
            InputError: what is kept differs from what was read.
        """
        if self._verify:
            self._verified(run)
            return
        for keeper in (self.states, self.states.critic, self.footers, self.critic_footers):
            if keeper is not None:
                keeper.save()
        if "through" in run.known and (self._facts is None or self._facts.document["known"] != run.known):
            steps, digests = packed(run.digests)
            document = {"columns": sorted(run.columns), "known": dict(run.known)}
            self._facts = Sheet(document, {"steps": steps, "digests": digests})
            self._cupboard.save(_FACTS, self._facts)

    def _facts_of(self, run: Run) -> tuple[dict[str, Any], dict[int, bytes]] | None:
        """The facts that are kept of a run with these columns, and the digests of the steps that they are of."""
        if self._facts is None or self._facts.document["columns"] != sorted(run.columns):
            return None
        return self._facts.document["known"], unpacked(self._facts.arrays["steps"], self._facts.arrays["digests"])

    def _verified(self, run: Run) -> None:
        keepers = [keeper for keeper in (self.states, self.states.critic) if keeper is not None]
        wrong = [text for keeper in keepers for text in keeper.differing]
        if (facts := self._facts_of(run)) is not None:
            told, before = facts
            if list(before.items()) == list(run.digests.items()) and told != run.known:
                wrong.append("counts of rows")
        if wrong:
            more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            raise InputError(f"{self.path}: kept states differ from the run: {wrong[0]}{more}; remove {self._cupboard.where}")
        if not sum(keeper.verified for keeper in keepers):
            self._cupboard.note("no kept states fit the run as it is: nothing was verified")

    def explained(
        self,
        of: str,
        run: Run,
        comparisons: tuple[Comparison, ...],
        limits: Mapping[str, float],
        explain: Callable[[], tuple[Comparison, ...]],
    ) -> tuple[Comparison, ...]:
        """What ``explain`` gives, or gave for the same rows and numbers.

        Args:
            of: what the run is called.
            run: the run.
            comparisons: what is to be explained.
            limits: of the rule that will find it to differ.
            explain: reads the run.
        """
        rows = [digest.hex() for digest in run.digests.values()]
        if self._verify:
            return explain()
        key = explanations.key_of(comparisons, limits, self._log, rows, asdict(run.info.config), self._apart)
        name = f"explained-{of}"
        found = self._cupboard.load(
            name, lambda sheet: explanations.restored(sheet, comparisons) if sheet.document["key"] == key else None
        )
        if found is None:
            found = explain()
            self._cupboard.save(name, explanations.drawn(key, found))
        return found


def _settled(run: Run) -> int | None:
    """The last step that is complete with all before it; None where all are."""
    unfinished = run.facts.incomplete_steps
    return max((step for step in run.digests if step < min(unfinished)), default=None) if unfinished else None
