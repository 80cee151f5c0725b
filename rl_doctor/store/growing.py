"""A run folder that is recorded into: each part is opened once, as it comes."""

from __future__ import annotations

import os
import time
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from rl_doctor.errors import InputError
from rl_doctor.store import layout
from rl_doctor.store.folder import (
    Contents,
    read_contents,
    read_info,
    run_of,
    why_skipped,
    with_critic,
)
from rl_doctor.store.part import Part
from rl_doctor.store.part_index import PartIndex, Seen, signature_of
from rl_doctor.store.run import Run
from rl_doctor.store.sessions import Completion

RECHECK_SECONDS: Final = 60.0
"""How often parts that are known are looked at again, for one that was changed in its place."""


class Growing:
    """A run folder that may still grow.

    Names tell what is new: parts are never changed but by a recorder that saves space, which gives their tokens another name.

    Args:
        path: the folder.
        index: what is known of its parts; by default nothing.
        of_critic: what is known of the parts of its critic.
    """

    def __init__(self, path: Path, index: PartIndex | None = None, of_critic: PartIndex | None = None) -> None:
        self.path = path
        self._index = PartIndex() if index is None else index
        self._of_critic = of_critic
        self._contents: Contents | None = None
        self._names: set[str] = set()
        self._listed: Seen | None = None
        self._told: object = None
        self._writers: set[str] = set()
        self._completion: Completion | None = None
        self._last: Run | None = None
        self._from: int | None = None
        self._checked = 0.0
        self._failing = False
        self._critic: Growing | None = None
        self.written = 0.0
        """Unix time at which a file was last written."""

    def refresh(self) -> bool:
        """Look for what is new; whether there is anything.

        Raises:
            InputError: it is gone, no run folder, or cannot be read.
        """
        try:
            names, seen = self._list()
        except FileNotFoundError as error:
            self._contents = None
            raise InputError(f"{self.path}: no such file or folder") from error
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read ({error.strerror}); change its mode or run as its owner") from error
        fresh, gone = _recorded(names - self._names), _recorded(self._names - names)
        told = self._describing(names, fresh, gone)
        changed = bool(fresh) or bool(gone) or told != self._told
        if layout.CRITIC_NAME in names:
            self._critic = self._critic or Growing(self.path / layout.CRITIC_NAME, self._of_critic)
            changed |= self._critic.refresh()
        if self._contents is None or gone or self._failing or self._replaced():
            self._read_all()
            changed = True
        elif changed:
            self._read(fresh)
        self._names, self._listed, self._told = names, seen, told
        self._note_time(fresh)
        return changed

    def _list(self) -> tuple[set[str], Seen]:
        """The names in the folder, listed where its time says that there is another one, or may not say so yet."""
        seen, before = Seen.of(self.path, ["."]), self._listed
        if self._contents is not None and before is not None and not before.fresh and seen.signature == before.signature:
            return self._names, before
        return set(os.listdir(self.path)), seen  # noqa: PTH208 - names alone, of which there may be thousands

    def _note_time(self, fresh: Iterable[str]) -> None:
        # Whoever reads the run may keep states in its folder: only what the recorder writes is a sign of life.
        recorded = (name for name in fresh if layout.parse_part(name) or layout.parse_writer(name))
        for name in (*recorded, layout.INFO_NAME):
            with suppress(OSError):
                self.written = max(self.written, os.stat(self.path / name).st_mtime)  # noqa: PTH116
        if self._critic is not None:
            self.written = max(self.written, self._critic.written)

    def run(self) -> Run:
        """The run as of the last ``refresh``; while it is recorded without the steps at its end that are not complete.

        Raises:
            InputError: there is no run yet.
            NothingToJudgeError: there is nothing in it that could be judged yet.
        """
        found = self._contents
        if found is None:
            raise InputError(f"{self.path}: no such file or folder")
        left_out = self._open_steps(found) if found.info.status == "running" else frozenset()
        before = {} if self._last is None else self._last.digests
        if self._from is not None:
            before = {step: digest for step, digest in before.items() if step < self._from}
        if left_out and before:
            before = {step: digest for step, digest in before.items() if step < min(left_out)}
        critic = self._critic
        run = run_of(found, left_out, before)
        self._last, self._from = run, None
        return run if critic is None else with_critic(run, lambda _: critic.run())

    def keep_known(self, run: Run) -> None:
        """Take over what was found out of the rows of a run that ``run`` gave."""
        if self._contents is not None:
            self._contents.known = dict(run.known)

    def _open_steps(self, found: Contents) -> frozenset[int]:
        """Steps at the end of the newest session that some rank has not completed."""
        newest = max((part.name.session for part in found.parts[-1:]), default=0)
        if self._completion is None or self._completion.session != newest:
            self._completion = Completion(newest)
            for part in found.parts[bisect_left(found.parts, newest, key=lambda part: part.name.session) :]:
                self._completion.add(part)
        return self._completion.open_steps(found.info, found.listing.claims)

    def _describing(self, names: set[str], fresh: Iterable[str], gone: Iterable[str]) -> object:
        """Changes where the description or what the writers say of themselves does."""
        known = self._writers if self._names else names
        self._writers = {name for name in {*known, *fresh} - {*gone} if layout.parse_writer(name)}
        return signature_of(self.path, [layout.INFO_NAME, layout.THINNING_NAME, *sorted(self._writers)])

    def _read_all(self) -> None:
        found = read_contents(self.path, self._index)
        self._contents, self._checked = found, time.monotonic()
        self._failing = bool(found.skipped or found.orphans)
        self._completion, self._last, self._from = None, None, None

    def _read(self, fresh: Iterable[str]) -> None:
        found = self._contents
        if found is None:
            return
        parts = sorted(found_name for name in fresh if (found_name := layout.parse_part(name)) is not None)
        found.listing.parts += parts
        found.listing.claims += [claim for name in fresh if (claim := layout.parse_writer(name)) is not None]
        found.info, found.notes = read_info(self.path, found.listing)
        opened: list[Part] = []
        for name in parts:
            try:
                if name.table == "sequences":
                    opened.append(self._index.opened(self.path, name, found.presence))
                elif name.table == "metrics":
                    self._index.check_metrics(self.path, name)
                    insort(found.metric_parts, name)
            except InputError as error:
                found.skipped.append(why_skipped(self.path, name, error))
                self._failing = True
        self._add(found, opened)

    def _add(self, found: Contents, fresh: Sequence[Part]) -> None:
        for part in fresh:
            insort(found.parts, part, key=lambda one: (one.name.session, one.name.rank, one.name.number))
            if self._completion is not None and self._completion.session == part.name.session:
                self._completion.add(part)
        steps = [step for part in fresh for step in part.steps]
        if found.order is not None:
            found.order = found.order.with_parts(fresh)
        if found.order is None:
            self._last = None
        elif steps:
            self._from = min(steps) if self._from is None else min(self._from, *steps)

    def _replaced(self) -> bool:
        """Whether a part was changed in its place; looked at now and then."""
        if time.monotonic() - self._checked < RECHECK_SECONDS:
            return False
        self._checked = time.monotonic()
        return not self._index.holds(self.path)


def _recorded(names: Iterable[str]) -> set[str]:
    """Those of the names that are not of files that are being written, nor hidden."""
    return {name for name in names if not name.endswith(layout.TEMPORARY_SUFFIX) and not name.startswith(".")}
