"""Series from what the trainer logged, where they cannot be recomputed, under each trainer's own name for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.dialects import held_out
from rl_doctor.analyzer.dialects.bookkeeping import bookkeeping
from rl_doctor.analyzer.dialects.generic import OFFLINE, averaged, below_topic, is_average
from rl_doctor.analyzer.dialects.recognise import general, identify, lookup, names_of, settings_of, trainer_of, version_bounds
from rl_doctor.analyzer.dialects.registry import Name, plain
from rl_doctor.analyzer.registry import LOGGED_FAMILIES
from rl_doctor.analyzer.series import Series
from rl_doctor.analyzer.timings import clock
from rl_doctor.frozen import frozen
from rl_doctor.schema import RunConfig, RunInfo
from rl_doctor.store.metric_log import MetricLog, Points

HELD_OUT: Final = ("val.mean_at_n", "val.best_at_n", "val.loss")

_NEVER_ZERO: Final = (
    "policy.entropy", "policy.kl_old", "ref.kl", "mismatch.", "length.mean", "length.max", "turns.mean", "value.loss",
    "value.explained_var", "pref.chosen_logprob", "pref.rejected_logprob", "policy.ratio_mean", "optim.learning_rate",
)  # fmt: skip
"""Metrics that are not 0 in every row of a run that measures them (what their names start with).

A clip share, a share of aborted responses, an advantage, a loss, a reward and a gradient may be: the last two are then failures.
"""
_ROUNDED: Final = ("optim.learning_rate",)
"""Of those, the ones at which 0 in every row is a failure that must be seen, unless the log rounds to it."""
_TO_CHECK: Final = (
    "; if the run measures it, the policy does not move or is held against itself: check that the reference is not the trained "
    "model, and that the learning rate is not 0"
)
"""What to do about a KL to the reference that is 0 in every row."""
_MOST_MEMBERS: Final = 500
"""Members of a family that are looked at: some thousand comparisons of each with all others would take minutes."""
_DECIMALS: Final = 3
_PRECISE: Final = 20
"""Values that use the last decimal, from which on a log counts as rounded to it."""
CLIP_EPS: Final = 1e-6
"""What ``torch.nn.utils.clip_grad_norm_`` adds to the norm."""


@frozen
class _Source:
    """Where a metric is read: the key in the log, and the entry that maps it."""

    key: tuple[str, str]
    item: Name


@frozen
class _Choice:
    """What a native name means: the place of the table that says so, that of the entry in it, and the metric or None."""

    table: int
    rank: int
    item: Name
    metric: str | None


class Logged:
    """A run's log, read under canonical names.

    Args:
        log: what the trainer logged.
        info: the run's description; what it does not tell is taken from the names (``identify``).
        rows: whether the run has rows of sequences beside the log.
    """

    def __init__(self, log: MetricLog, info: RunInfo, *, rows: bool = False) -> None:
        self.log = log
        self.info = identify(info, log, rows=rows)
        self._find = lookup(log)
        names = frozenset(plain(name) for name, _ in log.points)
        self._trainer = trainer_of(self.info, names)
        self._settings = {plain(name) for names in settings_of(self._trainer).values() for name in names}
        self._bounds = version_bounds(self.info, self._trainer, names)
        self._tables = ([] if self._trainer is None else [names_of(self._trainer.name)]) + ([general()] if names else [])
        self._held_out = self._scores()
        self._sources: dict[str, _Source] = {}
        self._unknown: list[str] = []
        self._told: dict[str, str] = {}
        self._coarse: bool | None = None
        with np.errstate(all="ignore"):  # NaN and infinity in a log are data
            self._map()

    def __len__(self) -> int:
        return len(self.log)

    def series(self, name: str, unit: str) -> Series | None:
        """The series of a canonical metric that the log holds, each value counted once; None if it holds none.

        It is looked for under the canonical name, then under the native ones.
        """
        if name in _DERIVED and name not in self._sources:
            base, formula = _DERIVED[name]
            found = self.series(base, unit)
            derived = None if found is None else formula(found.values, self.info.config)
            return None if found is None or derived is None else Series(name, unit, found.steps, derived, found.counts)
        if name in self._sources:
            source = self._sources[name]
            steps, values = self.log.points[source.key]
            with np.errstate(all="ignore"):
                values = source.item.value(values)
        elif name in self._held_out:
            with np.errstate(all="ignore"):
                steps, values = _mean([self.log.points[key] for key in self._held_out[name]])
        else:
            return None
        return Series(name, unit, steps, values, np.ones(len(steps), np.int64))

    def may_hold(self, name: str) -> bool:
        """Whether a name is known under which a trainer of this kind could have logged the metric."""
        return name in HELD_OUT or any(table.means(name) for table in self._tables)

    def family(self, prefix: str) -> tuple[str, ...]:
        """Names of the metrics of a family that the log holds."""
        return tuple(sorted(name for name in (*self._sources, *self._held_out) if name.startswith(prefix)))

    @property
    def unknown(self) -> tuple[str, ...]:
        """Native names that mean no metric, without times, sizes and counters."""
        return tuple(sorted(set(self._unknown)))

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader must know: numbers that are not what their names say, and those that were never measured."""
        return tuple(f"{name} {what}" for name, what in sorted(self._told.items()))

    def _scores(self) -> dict[str, list[tuple[str, str]]]:
        """Metrics of held-out prompts: canonical name -> keys in the log, over which the mean is taken."""
        keys = {
            name if held_out.marked(name) else f"eval_{name}": (name, split)
            for name, split in self.log.points
            if split == "eval" or held_out.marked(name)
        }
        tiers = {
            "val.mean_at_n": (() if self._trainer is None else self._trainer.validation, held_out.MEAN),
            "val.best_at_n": (() if self._trainer is None else self._trainer.best, held_out.BEST),
            "val.loss": ((), held_out.LOSS if (self.info.algorithm or "") in OFFLINE else ()),
        }
        found: dict[str, list[tuple[str, str]]] = {}
        for metric, (own, known) in tiers.items():
            if any(name == metric for name, _ in self.log.points):
                continue
            chosen = held_out.chosen(keys, self._trainer, own, known)
            if chosen:
                found[metric] = [keys[name] for name in chosen]
            if metric == HELD_OUT[0] and len(chosen) > 1 and all(chosen.values()):
                for name, source in chosen.items():
                    found.setdefault(f"val.source.{source}", []).append(keys[name])
        return found

    def _map(self) -> None:
        """Decide for each native name which metric it is, and for each metric which name is read."""
        ranked: dict[str, tuple[tuple[int, int, str], _Source]] = {}
        used = {key for keys in self._held_out.values() for key in keys}
        for key in self.log.points:
            native, split = key
            if key in used or (split == "eval" and not held_out.marked(native)):
                continue
            choice = self._choice(native)
            if choice is None or choice.metric is None:
                self._leave(native, choice)
                if (metric := clock(native.lower())) is not None:
                    order = (len(self._tables), 0, native)
                    ranked.setdefault(metric, (order, _Source(key, Name(native, metric))))
            elif not self._unmeasured(key, choice.item, choice.metric):
                order = (choice.table, choice.rank, native)
                if choice.metric not in ranked or order < ranked[choice.metric][0]:
                    ranked[choice.metric] = (order, _Source(key, choice.item))
        self._sources = {metric: source for metric, (_, source) in ranked.items()}
        self._bound()
        for source in self._sources.values():
            if note := source.item.told(self.info.config):
                self._told[source.key[0]] = note

    def _bound(self) -> None:
        """Leave out families with more members than a reader could look through: they are samples, not parts of a reward."""
        for prefix in LOGGED_FAMILIES:
            members = [metric for metric in self._sources if metric.startswith(prefix)]
            if len(members) > _MOST_MEMBERS:
                name = min(self._sources[metric].key[0] for metric in members)
                self._told[name] = f"and {len(members) - 1:,} more of its kind are too many to be looked at one by one: left out"
                self._unknown += [self._sources.pop(metric).key[0] for metric in members]

    def _choice(self, native: str) -> _Choice | None:
        """What a native name means here: itself, else what the trainer's table says, else the general one; None if none does."""
        if _canonical(native):
            return _Choice(-1, 0, Name(native, native, measured=True), native)
        for place, table in enumerate(self._tables):
            found = table.find(native)
            if not found and table is general():
                found = _general(native)
            for rank, item, metric in found:
                if self._applies(item) and (item.holds is None or item.holds(self._find)):
                    return _Choice(place, rank, item, metric)
        return None

    def _leave(self, native: str, choice: _Choice | None) -> None:
        """Take note of a name that means no metric."""
        if plain(native) in self._settings:
            return
        if not bookkeeping(plain(native)):
            self._unknown.append(native)
        if choice is not None and (note := choice.item.told(self.info.config)):
            self._told[native] = note

    def _applies(self, item: Name) -> bool:
        return self._bounds.within(item) and (not item.algorithms or (self.info.algorithm or "") in item.algorithms)

    def _unmeasured(self, key: tuple[str, str], item: Name, metric: str) -> bool:
        """Whether a number is the same in every row although it cannot be; the reader is told."""
        stem = metric.split(".", 2)[2] if metric.startswith("part.") else metric
        values = self.log.points[key][1]
        if key[0] == metric or not stem.startswith(_NEVER_ZERO) or values.any():
            return False
        if self._rounds():
            self._told[key[0]] = "is 0 in every row of a log that rounds: below its precision, or not measured; left out"
            return True
        penalised = stem.startswith("ref.kl") and bool(self.info.config.kl_coef)
        if item.measured or penalised or stem.startswith(_ROUNDED):
            return False
        self._told[key[0]] = f"is 0 in every row: taken as not measured{_TO_CHECK if stem.startswith('ref.kl') else ''}"
        return True

    def _rounds(self) -> bool:
        """Whether the log is rounded to three decimals."""
        if self._coarse is None:
            scale = 10.0**_DECIMALS
            fine = all(_whole(values * scale).all() for _, values in self.log.points.values())
            used = (
                sum(int(np.count_nonzero(~_whole(values * scale / 10.0))) for _, values in self.log.points.values())
                if fine
                else 0
            )
            self._coarse = used >= _PRECISE
        return self._coarse


def _general(native: str) -> list[tuple[int, Name, str | None]]:
    """Entries of the general table for a name under a heading, or for that of an average."""
    below = below_topic(native)
    found = general().find(below)
    if not found and (of := averaged(below)) is not None:
        found = [entry for entry in general().find(of) if entry[2] is None or is_average(entry[2])]
    return found


def _whole(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    told = values[np.isfinite(values)]
    return np.asarray(np.abs(told - np.round(told)) <= 1e-6 * np.maximum(1.0, np.abs(told)))


def _canonical(name: str) -> bool:
    from rl_doctor.analyzer.registry import metrics

    return name in metrics() or name.startswith(tuple(LOGGED_FAMILIES))


def _mean(points: Iterable[Points]) -> Points:
    """Mean over the sources that were measured at all the steps of the one measured most often."""
    each = list(points)
    steps = max((one[0] for one in each), key=len)
    kept = [values[np.isin(at, steps)] for at, values in each if np.isin(steps, at).all()]
    return steps, np.mean(kept, axis=0)


def _clip_coef(grad_norm: NDArray[np.float64], config: RunConfig) -> NDArray[np.float64] | None:
    limit = config.max_grad_norm
    return None if limit is None else np.minimum(1.0, limit / (grad_norm + CLIP_EPS))


_DERIVED: Final[Mapping[str, tuple[str, Callable[[NDArray[np.float64], RunConfig], NDArray[np.float64] | None]]]] = (
    MappingProxyType(
        {
            "optim.grad_norm_max": ("optim.grad_norm", lambda grad_norm, _: grad_norm),
            "optim.clip_coef": ("optim.grad_norm", _clip_coef),
        }
    )
)
"""Metrics that follow from another one: its name, and the formula."""
