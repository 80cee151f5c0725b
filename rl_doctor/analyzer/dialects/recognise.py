"""Which trainer wrote a log, by the names in it, and what else they tell of the run."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache
from typing import Final

from rl_doctor.analyzer.dialects.generic import NAMES
from rl_doctor.analyzer.dialects.registry import (
    Bounds,
    Lookup,
    Name,
    Names,
    Trainer,
    bounds_of,
    matching,
    plain,
    together,
    trainers,
)
from rl_doctor.schema import PREFERENCE, SUPERVISED, RunConfig, RunInfo
from rl_doctor.store.metric_log import MetricLog, Points

_TOPICS: Final = ("reward.", "policy.", "ref.", "adv.", "group.", "length.", "pref.", "mismatch.", "value.")
_PLAIN_SETTINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "kl_coef": ("kl_coef", "beta", "kl_beta", "actor/kl_coef", "kl_loss_coef"),
    "entropy_coef": ("entropy_coef", "entropy_coeff", "actor/entropy_coeff"),
    "group_size": ("group_size/min", "group_size/max"),
}
"""Settings that trainers log beside their metrics: field of ``RunConfig`` -> names. A group size is one if both ends are."""


def lookup(log: MetricLog) -> Lookup:
    """What was logged under a native name, in whatever form it is written there."""
    written: dict[str, tuple[str, str]] = {}
    for name, split in sorted(log.points, key=lambda key: (key[1] != "train", plain(key[0]) == key[0])):
        written.setdefault(plain(name), (name, split))

    def find(native: str) -> Points | None:
        found = matching(native, written)
        return log.series(*written[found[0]]) if len(found) == 1 else None

    return find


def find_trainer(name: str | None) -> Trainer | None:
    """The trainer of that name, in any case, with or without hyphens."""
    wanted = _letters(name or "")
    return next((known for known in trainers().values() if _letters(known.name) == wanted), None) if wanted else None


def _letters(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def trainer_of(info: RunInfo, names: Collection[str]) -> Trainer | None:
    """The trainer whose names a log has: the one that was told, or, where that is none of ours, by the plain ``names``."""
    return find_trainer(info.trainer) or recognised(names)


def recognised(names: Collection[str]) -> Trainer | None:
    """The trainer that most of the plain ``names`` speak for; None where none has enough, or two have as many."""
    if not names:  # the dialects need not be loaded
        return None
    scores = [(sum(together(mark, names) for mark in known.marks), known) for known in trainers().values()]
    enough = sorted(((score, known) for score, known in scores if score >= known.least), key=lambda item: -item[0])
    if not enough or (len(enough) > 1 and enough[0][0] == enough[1][0]):
        return None
    return enough[0][1]


def identify(info: RunInfo, log: MetricLog, *, rows: bool = False) -> RunInfo:
    """Fill in what the names of a log tell and the description does not: trainer, bounds of its version, algorithm, settings.

    An algorithm is "grpo", "rloo", "ppo", ... where a policy samples, "dpo", "kto", "orpo", "cpo" or "reward_model" where it
    learns from preferences, and "sft" where it learns from demonstrations; the last two kinds have no metrics of a reward.
    Settings are told by constants that are logged.

    Args:
        info: the run's description.
        log: what the trainer logged.
        rows: whether the run has rows of sequences beside it, so that what was not logged may still have been trained on.
    """
    names = frozenset(plain(name) for name, _ in log.points)
    if not names:
        return info
    known = trainer_of(info, names)
    find = lookup(log)
    bare = frozenset(map(plain, log.without_number))
    algorithm = info.algorithm or _algorithm(known, names, bare, find, rows=rows)
    trainer = info.trainer or (None if known is None else known.name)
    version = info.trainer_version
    if bounds_of(version) == Bounds() and find_trainer(trainer) is known:
        version = str(version_bounds(info, known, names)) or version
    return replace(
        info, trainer=trainer, trainer_version=version, algorithm=algorithm, config=_settings(info.config, known, find)
    )


def kinds_of(info: RunInfo, log: MetricLog) -> tuple[str, ...]:
    """What a log is one of, as far as it tells: its trainer, and whether preferences or rewards are learned from.

    What looks like supervised training may be a part of the log of any.
    """
    known = trainer_of(info, frozenset(plain(name) for name, _ in log.points))
    algorithm = identify(info, log).algorithm or ""
    learns = (
        ""
        if algorithm in SUPERVISED or not algorithm
        else "training on preferences"
        if algorithm in PREFERENCE
        else "training on rewards"
    )
    return ("" if known is None else known.label, learns)


def version_bounds(info: RunInfo, known: Trainer | None, names: Collection[str]) -> Bounds:
    """What is known of the trainer's version: told, else by the names; nothing where these contradict each other."""
    told = bounds_of(info.trainer_version)
    if known is None or told != Bounds():
        return told
    found = known.dated(names)
    return found if found.possible else Bounds()


def in_doubt(info: RunInfo, names: Collection[str]) -> tuple[str, ...]:
    """Those of the native ``names`` that are recomputed in other ways by version, where what is known of it leaves that open."""
    known, bounds, algorithm = find_trainer(info.trainer), bounds_of(info.trainer_version), (info.algorithm or "").lower()
    if known is None or bounds.exact:
        return ()
    meanings: dict[str, list[Name]] = {}
    for item in known.names:
        if item.definition is not None and item.definition.proof and (not item.algorithms or algorithm in item.algorithms):
            meanings.setdefault(plain(item.native), []).append(item)
    return tuple(
        name
        for name in sorted(names)
        if (found := meanings.get(plain(name))) and not any(bounds.within(item) and item.holds is None for item in found)
    )


def _algorithm(known: Trainer | None, names: Collection[str], bare: Collection[str], find: Lookup, *, rows: bool) -> str | None:
    """The algorithm by the ``names`` of numbers; those that are ``bare`` of any speak against supervised training."""
    if known is not None:
        kinds = known.kinds.items()
        by_names = next((kind for kind, marks in kinds if any(together(mark, names) for mark in marks)), None)
        if by_names is not None:
            return known.refine(by_names, find)
    if rows or not {"loss", "eval_loss"}.intersection(names):
        return None
    preference = together("rewards/chosen+rewards/rejected", names) or together("chosen_reward+rejected_reward", names)
    if together("odds_ratio_loss", names) or together("log_odds_ratio", names):
        return "orpo"
    if preference:
        return "dpo"
    if any(_OF_A_POLICY.search(name) for name in (*names, *bare)):
        return None
    tables = (general(),) if known is None else (names_of(known.name), general())
    telling = {metric for table in tables for name in names for _, _, metric in table.find(name) if metric is not None}
    return None if any(metric.startswith(_TOPICS) for metric in telling - _SUPERVISED) else "sft"


_OF_A_POLICY: Final = re.compile(
    r"(?:^|_)(?:kl|kld|(?<!grad_)clip(?!.*(?:grad|norm))|clip_?frac\w*|rewards?|advantages?|rollouts?|policy|critic|actor|chosen|rejected|margins?)"
    r"(?:_|$)|preference|odds_ratio"
)
"""What the plain names of supervised training do not hold, whether or not they mean a known metric."""
_SUPERVISED: Final = frozenset({"policy.entropy", "policy.loss_total", "sft.loss", "pref.loss", "pref.accuracy", "length.mean"})
"""What the names of supervised training may be taken for."""


def _settings(config: RunConfig, known: Trainer | None, find: Lookup) -> RunConfig:
    told: dict[str, float] = {}
    for setting, natives in settings_of(known).items():
        if getattr(config, setting) is None:
            values = [value for native in natives if (value := constant(find(native))) is not None]
            if values and setting != "group_size":
                told[setting] = values[0]
            elif len(values) == len(natives) and len(set(values)) == 1:
                told[setting] = int(values[0])
    return replace(config, **told) if told else config  # type: ignore[arg-type]


def settings_of(known: Trainer | None) -> dict[str, tuple[str, ...]]:
    """Names of settings that a trainer logs as if they were metrics: field of ``RunConfig`` -> names, the surest first."""
    found = dict(_PLAIN_SETTINGS)
    for setting, natives in ({} if known is None else known.settings).items():
        found[setting] = (*natives, *found.get(setting, ()))
    return found


def constant(points: Points | None) -> float | None:
    """The value of a series that never changes; None for one that does, or that is not finite."""
    if points is None or not points[1].size:
        return None
    value = float(points[1][0])
    return value if math.isfinite(value) and bool((points[1] == value).all()) else None


@cache
def general() -> Names:
    """Names that are not one trainer's: those of trainers made at home, then those that the trainers agree on."""
    return Names((*NAMES, *_agreed()))


@cache
def names_of(trainer: str) -> Names:
    """The names of a trainer."""
    return Names(trainers()[trainer].names)


def _agreed() -> list[Name]:
    """Exact names that have one meaning in all trainers that use them, whatever the version and the algorithm.

    A single word is not among them: in a log of another trainer it may be anything.
    """
    meanings: dict[str, list[Name]] = {}
    for known in trainers().values():
        for item in known.names:
            if "/" in item.native.removeprefix("train/"):
                meanings.setdefault(plain(item.native), []).append(item)
    taken = {plain(item.native) for item in NAMES}
    agreed = []
    for name, items in meanings.items():
        first = items[0]
        same = all((item.metric, item.factor, item.offset) == (first.metric, first.factor, first.offset) for item in items)
        timeless = [item for item in items if not (item.since or item.until)]
        plainly = not any(item.holds or item.algorithms or item.family for item in items)
        if name not in taken and same and plainly and timeless:
            agreed.append(timeless[0])
    return agreed
