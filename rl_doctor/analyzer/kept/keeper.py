"""Goes on with folds from kept states, and keeps what they give."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from operator import eq
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.engine import read_into
from rl_doctor.analyzer.fold import Fold, Mark
from rl_doctor.analyzer.kept.cupboard import Cupboard
from rl_doctor.analyzer.kept.image import UnkeptError, drawn, marks_of, restored
from rl_doctor.analyzer.kept.keys import context, key_of
from rl_doctor.analyzer.kept.sheet import Sheet
from rl_doctor.analyzer.kept.verify import differences
from rl_doctor.analyzer.needs import Source
from rl_doctor.analyzer.registry import Metric, metrics_for
from rl_doctor.store.batch import Batch

_MOST_GROUPS: Final = 8
_DIGEST: Final = 16


class Kept(Source, Protocol):
    """A source whose steps can be told from what they were before."""

    @property
    def digests(self) -> Mapping[int, bytes]:
        """Digest of the rows of each step, by increasing step."""

    @property
    def about_tokens(self) -> int:
        """About how many tokens it has."""

    def batches(self, columns: Collection[str], *, after: int | None = None, until: int | None = None) -> Iterator[Batch]:
        """Batches of the steps later than ``after``, up to ``until``."""


@runtime_checkable
class Looking(Protocol):
    """A source that notes which columns hold a finite number."""

    def looked(self) -> tuple[Collection[str], Collection[str]]:
        """Columns that were found to hold one, and columns that were not."""

    def recall(self, asked: Collection[str], looked: tuple[Collection[str], Collection[str]]) -> None:
        """Take over what was noted of the columns ``asked`` in an earlier reading."""


@dataclass(slots=True, eq=False)
class _Group:
    """Metrics that were folded together.

    Attributes:
        name: of its sheet.
        keys: name of a metric -> digest of what it depends on.
        digests: step -> digest of its rows, of the steps that were folded.
        sheet: as it was read.
        fold: as it is.
        held: as it was restored from the sheet, of some of its metrics.
        marks: where it can be gone on with.
        changed: whether it was gone on with since it was written.
    """

    name: str
    keys: dict[str, str] = field(default_factory=dict)
    digests: dict[int, bytes] = field(default_factory=dict)
    sheet: Sheet | None = None
    fold: Fold | None = None
    held: Fold | None = None
    marks: list[Mark] = field(default_factory=list)
    changed: bool = False

    def reach(self, digests: Mapping[int, bytes]) -> int | None:
        """The last mark up to which the rows are what they were; None where there is none."""
        marks = marks_of(self.sheet) if self.sheet is not None else [mark.step for mark in self.marks]
        changed = first_difference(self.digests, digests)
        return max((step for step in marks if changed is None or step < changed), default=None)


def first_difference(ours: Mapping[int, bytes], theirs: Mapping[int, bytes]) -> int | None:
    """First step up to the last of ``ours`` at which they differ."""
    if len(ours) <= len(theirs) and all(map(eq, ours.items(), theirs.items())):
        return None
    for own, other in zip_longest(ours.items(), theirs.items()):
        if own is None:
            return None
        if own != other:
            return own[0] if other is None else min(own[0], other[0])
    return None


class Keeper:
    """Keeps the states of one source.

    Attributes:
        critic: what keeps the states of the critic's passes.
        verifying: whether all is read, kept states are held against that, and nothing is written.
        verified: how many metrics were held against what was read.
        differing: where they differ.

    Args:
        cupboard: where sheets lie.
        prefix: what the names of its sheets start with.
        verify: see ``verifying``.
    """

    def __init__(self, cupboard: Cupboard, prefix: str, *, verify: bool = False) -> None:
        self.critic: Keeper | None = None
        self.verifying = verify
        self.verified = 0
        self.differing: list[str] = []
        self._cupboard = cupboard
        self._prefix = prefix
        self._apart = ""
        self._settled: int | None = None
        self._context = ""
        self._groups: dict[str, dict[str, _Group]] = {}
        self._keys: dict[tuple[Any, ...], str] = {}
        self._keys_of: frozenset[str] = frozenset()

    def begin(self, apart: str, settled: int | None) -> None:
        """Go on with the source as it is now.

        Args:
            apart: what metrics depend on that are not registered.
            settled: last step that is complete with all before it; None for the last one that there is.
        """
        self._apart, self._settled = apart, settled

    def fold(self, source: Kept, wanted: Sequence[Metric]) -> list[tuple[Fold, Collection[str]]]:
        """Folds over all of the source, gone on with from states where some were kept, each with the metrics to take from it."""
        known = metrics_for(source.columns)
        self._context = context(source.info, source.about_tokens)
        if self.verifying:
            return self._verified(source, wanted)
        keys = {item.name: self._key(item, source, known) for item in wanted}
        found: list[tuple[_Group, Fold, Collection[str]]] = []
        left = {item.name: item for item in wanted}
        groups, last = self._loaded(), max(source.digests, default=None)
        for group in sorted(groups.values(), key=lambda one: -len(one.keys.keys() & left.keys())):
            valid = {name for name in left if group.keys.get(name) == keys[name]}
            reach = group.reach(source.digests) if valid else None
            if reach is None:
                continue
            items = [left.pop(name) for name in sorted(valid)]
            if reach != last:  # all go on together, so that none is left behind
                items += [
                    item
                    for name, item in known.items()
                    if name not in valid and name in group.keys and group.keys[name] == self._key(item, source, known)
                ]
            fold = self._gone_on(group, source, reach, items)
            if isinstance(source, Looking):
                looked = next(mark.looked for mark in group.marks if mark.step == reach)
                source.recall({*Fold(source, [item for item in items if item.name in valid]).columns, "step"}, looked)
            found.append((group, fold, valid))
        if left:
            serving = {name for name, one in groups.items() if one.reach(source.digests) is not None}
            group = _Group(self._free(serving, {one.name for one, _, _ in found}))
            found.append((group, Fold(source, list(left.values())), left.keys()))
        try:
            self._read(source, [(group, fold) for group, fold, _ in found])
        except BaseException:
            self._groups = {}  # folds that were left in the middle of a step are of no use
            raise
        return [(fold, names) for _, fold, names in found]

    def _verified(self, source: Kept, wanted: Sequence[Metric]) -> list[tuple[Fold, Collection[str]]]:
        """A fold that is read from the beginning; where states that would be taken differ from it, that is noted."""
        known = metrics_for(source.columns)
        read = Fold(source, wanted)
        read_into([read], source.batches(read.columns))
        for group in self._loaded().values():
            items = [item for item in wanted if group.keys.get(item.name) == self._key(item, source, known)]
            reach = group.reach(source.digests) if items else None
            if group.sheet is not None and reach is not None:
                kept = Fold(source, items, *restored(group.sheet, reach, items))
                self.verified += len(items)
                self.differing += differences(kept, read, items)
        return [(read, [item.name for item in wanted])]

    def _key(self, item: Metric, source: Source, known: Mapping[str, Metric]) -> str:
        apart = None if item.name in known else self._apart
        about = (item.name, item.version, item.part, item.reduction.needs, item.reduction.optional, apart)
        if self._keys_of != frozenset(source.columns):
            self._keys, self._keys_of = {}, frozenset(source.columns)
        if about not in self._keys:
            self._keys[about] = key_of(item, source.columns, apart)
        return self._keys[about]

    def _loaded(self) -> dict[str, _Group]:
        if self._context not in self._groups:
            found = (self._cupboard.load(name, partial(self._group, name)) for name in self._names())
            self._groups = {self._context: {group.name: group for group in found if group is not None}}
        return self._groups[self._context]

    def _names(self) -> list[str]:
        return [f"{self._prefix}{number}" for number in range(_MOST_GROUPS)]

    def _group(self, name: str, sheet: Sheet) -> _Group | None:
        if sheet.document["context"] != self._context:
            return None
        return _Group(name, sheet.document["keys"], unpacked(sheet.arrays["steps"], sheet.arrays["digests"]), sheet)

    def _gone_on(self, group: _Group, source: Kept, reach: int, items: Sequence[Metric]) -> Fold:
        """The fold of a group at its mark ``reach``, of the metrics ``items``; of more where it is not gone on with."""
        names, done = {item.name for item in items}, reach == max(source.digests, default=None)
        for fold in (group.fold, group.held):
            if fold is not None and fold.last == reach:
                known = {item.name for item in fold.metrics}
                if names == known or (done and names < known):
                    return fold
        if group.fold is not None:
            group.sheet = drawn(group.fold.settled, group.fold.metrics, group.marks)
            group.fold = None
        mark, settled = restored(group.sheet or Sheet(), reach, items)
        fold, held = Fold(source, items, mark, settled), group.held
        if not done or held is None or held.last != reach or len(items) > len(held.metrics):
            group.held, group.marks = fold, [mark]
        return fold

    def _free(self, serving: Collection[str], used: Collection[str]) -> str:
        """A name for a new sheet: one of no sheet that can be gone on with, or that of one which serves nothing now."""
        names = [name for name in self._names() if self._cupboard.may_save(name)]
        free = [name for name in names if name not in serving] + [name for name in names if name not in used]
        return free[0] if free else f"{self._prefix}{_MOST_GROUPS}"

    def _read(self, source: Kept, pairs: Sequence[tuple[_Group, Fold]]) -> None:
        """Read what the folds have not, every step once, and keep what that gave."""
        last = max(source.digests, default=None)
        growing = [(group, fold) for group, fold in pairs if fold.last != last]
        bounds = {step for step in (last, self._settled) if step in source.digests and step is not None}
        stops = bounds | {fold.last for _, fold in growing if fold.last is not None}
        for until in sorted(stops):
            behind = [pair for pair in growing if pair[1].last is None or pair[1].last < until]
            folds = [fold for _, fold in behind]
            if behind:  # all of them are at the stop before
                columns = sorted({name for fold in folds for name in fold.columns})
                read_into(folds, source.batches(columns, after=folds[0].last, until=until))
            if until in bounds:
                self._mark(source, behind)
        for group, fold in growing:
            self._keep(source, group, fold)

    def _mark(self, source: Kept, pairs: Sequence[tuple[_Group, Fold]]) -> None:
        looked = source.looked() if isinstance(source, Looking) else ((), ())
        for group, fold in pairs:
            if (mark := fold.mark(looked)) is not None:
                group.marks.append(mark)

    def _keep(self, source: Kept, group: _Group, fold: Fold) -> None:
        known = metrics_for(source.columns)
        group.fold, group.sheet, group.held = fold, None, None
        group.keys = {item.name: self._key(item, source, known) for item in fold.metrics}
        group.digests = dict(source.digests)
        group.marks = group.marks[-2:]
        group.changed = True
        self._loaded()[group.name] = group

    def save(self) -> None:
        """Write what has changed since it was written."""
        for group in self._groups.get(self._context, {}).values():
            if not group.changed:
                continue
            group.changed = False
            try:
                sheet = group.sheet if group.fold is None else drawn(group.fold.settled, group.fold.metrics, group.marks)
            except UnkeptError:
                continue
            if sheet is None:
                continue
            sheet.document |= {"context": self._context, "keys": group.keys}
            sheet.arrays["steps"], sheet.arrays["digests"] = packed(group.digests)
            self._cupboard.save(group.name, sheet)


def packed(digests: Mapping[int, bytes]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Digests of steps as arrays."""
    return np.fromiter(digests, np.int64, len(digests)), np.frombuffer(b"".join(digests.values()), np.uint8)


def unpacked(steps: NDArray[np.int64], digests: NDArray[Any]) -> dict[int, bytes]:
    """Digests of steps from arrays."""
    text = digests.tobytes()
    return {step: text[at * _DIGEST : (at + 1) * _DIGEST] for at, step in enumerate(steps.tolist())}
