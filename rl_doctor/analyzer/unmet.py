"""Why a number of the trainer's log is not recomputed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from rl_doctor.analyzer.dialects.recipes import Of, Recipe
from rl_doctor.analyzer.dialects.recognise import find_trainer, in_doubt, names_of
from rl_doctor.analyzer.dialects.registry import Bounds, Name, Trainer, bounds_of
from rl_doctor.analyzer.needs import lacking
from rl_doctor.analyzer.recompute.configured import UNSETTLED, setting
from rl_doctor.analyzer.recompute.native import nested
from rl_doctor.analyzer.recompute.registry import find_dialect
from rl_doctor.analyzer.registry import metrics
from rl_doctor.frozen import frozen
from rl_doctor.schema import RunInfo

_NEWEST: Final[Mapping[str, str]] = {"verl": "0.9.1", "trl": "1.16.0", "openrlhf": "0.11.2"}
"""A version whose definitions are known, of the trainers whose keys depend on it."""
_SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "verl": {
        "actor_rollout_ref.actor.loss_agg_mode": "token-mean", "actor_rollout_ref.actor.clip_ratio": 0.2,
        "actor_rollout_ref.actor.clip_ratio_c": 3.0, "actor_rollout_ref.actor.entropy_coeff": 0.1,
        "actor_rollout_ref.actor.use_kl_loss": True, "actor_rollout_ref.actor.kl_loss_coef": 0.1,
        "actor_rollout_ref.actor.kl_loss_type": "low_var_kl", "algorithm.kl_penalty": "kl", "trainer.use_v1": False,
        "data.max_prompt_length": 8, "critic.cliprange_value": 0.5, "critic.loss_agg_mode": "token-mean",
        "trainer.use_legacy_worker_impl": "disable",
    },
    "trl": {
        "epsilon": 0.2, "beta": 0.1, "loss_type": "dapo", "per_device_train_batch_size": 1, "max_completion_length": 8,
        "steps_per_generation": 1, "gradient_accumulation_steps": 1, "use_bias_correction_kl": False,
    },
    "openrlhf": {
        "actor.policy_loss_type": "ppo", "actor.eps_clip_low_high": [0.2, 0.2], "algo.kl.init_coef": 0.1,
        "algo.advantage.estimator": "group_norm", "train.micro_batch_size": 1, "rollout.n_samples_per_prompt": 1,
        "rollout.batch_size": 1, "data.max_len": 8,
    },
}  # fmt: skip
"""Settings that keys of these trainers depend on, each with a value that lets them be recomputed."""
_NESTED: Final = frozenset({"verl"})
_MOST: Final = 3


@frozen
class Unmet:
    """Logged names that are not recomputed.

    Attributes:
        reasons: (name, why) of those that the trainer's table says how to recompute.
        absent: number of those that it says cannot be recomputed from what is recorded.
        unknown: those that it does not define.
    """

    reasons: tuple[tuple[str, str], ...] = ()
    absent: int = 0
    unknown: tuple[str, ...] = ()


def version_words(info: RunInfo) -> str:
    """The trainer's version: as far as it is known; as it was told where it cannot be read."""
    return bounds_of(info.trainer_version).words or info.trainer_version or "unknown"


def unmet(info: RunInfo, columns: Collection[str], names: Collection[str]) -> Unmet:
    """Why ``names``, which were logged, are not recomputed.

    Args:
        info: the run's description.
        columns: canonical columns that the run has.
        names: native or canonical names; of these those are told of that are not recomputed for the reason given.
    """
    trainer = find_trainer(info.trainer)
    reasons: list[tuple[str, str]] = []
    asked: list[str] = []
    absent = 0
    unknown: list[str] = []
    for name in sorted(names):
        told = _sorted_out(name, trainer, info, columns)
        absent += told == "absent"
        unknown += [name] if told == "unknown" else []
        if told == "defined":
            asked.append(name)
        elif told not in {"absent", "unknown"}:
            reasons.append((name, told))
    if trainer is not None and asked:
        reasons += _Asked(info, columns, trainer, frozenset(asked)).reasons()
    return Unmet(tuple(sorted(reasons)), absent, tuple(unknown))


def _sorted_out(name: str, trainer: Trainer | None, info: RunInfo, columns: Collection[str]) -> str:
    """That a name is "absent", "unknown" or "defined", or why it is not recomputed where that is all there is to know."""
    canonical = metrics().get(name)
    if canonical is not None:
        lacks = lacking(canonical.needs, columns, info.config)
        return f"needs {', '.join(lacks)}" if lacks and canonical.reduction.level != "logged" else "absent"
    items = _entries(name, trainer)
    if trainer is None or not items:
        return "unknown"
    of_version = [item for item in items if _possible(item, bounds_of(info.trainer_version))]
    if not of_version and any(_recomputable(item) for item in items):
        return f"{trainer.label} {version_words(info)} is not known to log it"
    algorithm = (info.algorithm or "").lower()
    fitting = [item for item in of_version if not item.algorithms or algorithm in item.algorithms]
    if not fitting and any(_recomputable(item) for item in of_version):
        return f"it is not defined for {info.algorithm or 'an unknown algorithm'}"
    if any(_recomputable(item) for item in fitting):
        return "defined"
    return "absent" if any(item.definition for item in fitting) else "unknown"


def _entries(name: str, trainer: Trainer | None) -> list[Name]:
    return [] if trainer is None else [item for _, item, _ in names_of(trainer.name).find(name)]


def _recomputable(item: Name) -> bool:
    return item.definition is not None and item.definition.proof is not None


def _possible(item: Name, bounds: Bounds) -> bool:
    return not (item.since and bounds.before(item.since)) and not (item.until and bounds.at_least(item.until))


class _Asked:
    """Names that the trainer's table defines as recomputable, none of which was compared."""

    def __init__(self, info: RunInfo, columns: Collection[str], trainer: Trainer, names: frozenset[str]) -> None:
        self._info = info
        self._columns = columns
        self._trainer = trainer
        self._names = names
        self._doubtful = frozenset(in_doubt(info, names))
        self._now = self._keys(info)

    def reasons(self) -> Iterator[tuple[str, str]]:
        """Each name with the reason."""
        general = self._general()
        newest = _NEWEST.get(self._trainer.name)
        versioned = replace(self._info, trainer_version=newest) if newest else self._info
        in_newest = self._keys(versioned) if newest else self._now
        filled = self._filled(versioned)
        in_filled = self._keys(filled)
        for name in sorted(self._names):
            if general:
                yield name, general
            elif name in self._now:
                lacks = self._now[name]
                yield name, f"needs {', '.join(lacks)}" if lacks else "what was recorded does not give it"
            elif name in self._doubtful or name in in_newest:
                yield name, self._of_version()
            else:
                yield name, self._of_settings(name, versioned, known=name in in_filled)

    def _general(self) -> str:
        info = self._info
        if not self._columns:
            return "no recording: nothing to recompute from"
        if info.partial:
            missing = sorted(set(range(info.world_size or 1)) - set(info.writing_ranks or ()))
            which = f"rank {missing[0]} is" if len(missing) == 1 else f"ranks {', '.join(map(str, missing[:_MOST]))} are"
            return f"{which} not recorded, of {info.world_size}"
        return ""

    def _of_version(self) -> str:
        told, label = self._info.trainer_version, self._trainer.label
        if told and bounds_of(told) == Bounds():
            return f"the version {told!r} of {label} cannot be read, and it depends on that"
        if not told or not bounds_of(told).exact:
            return f"it depends on the version of {label} ({version_words(self._info)})"
        return f"it is not known how {label} {told} computes it"

    def _of_settings(self, name: str, info: RunInfo, *, known: bool) -> str:
        lacks = self._lacking_settings(name, info) if known else self._of_recipes(name)
        if lacks:
            more = f" and {len(lacks) - _MOST} more" if len(lacks) > _MOST else ""
            return f"needs {', '.join(lacks[:_MOST])}{more}"
        if not self._info.config.native:
            return "needs config.native, the trainer's own configuration"
        return "not covered with the settings of this run"

    def _lacking_settings(self, name: str, info: RunInfo) -> list[str]:
        """The unknown settings without which a key is not there."""
        found = []
        for path in self._unknown(info):
            keys = self._keys(self._filled(info, without=path))
            if name not in keys:
                found.append(f"config.native.{path}")
        return found

    def _unknown(self, info: RunInfo) -> list[str]:
        return [path for path in _SETTINGS.get(self._trainer.name, {}) if nested(info.config.native, path) is None]

    def _filled(self, info: RunInfo, without: str = "") -> RunInfo:
        """The description as it were if the settings that are unknown were known."""
        native: Mapping[str, Any] = info.config.native or {}
        for path in self._unknown(info):
            if path != without:
                value = _SETTINGS[self._trainer.name][path]
                native = _with(native, path.split("."), value) if self._trainer.name in _NESTED else {**native, path: value}
        return replace(info, config=replace(info.config, native=native)) if native else info

    def _of_recipes(self, name: str) -> list[str]:
        """Settings that the recipes of a name depend on and that are not known."""
        found: dict[str, None] = {}
        for item in _entries(name, self._trainer):
            for recipe in item.definition.recipes if item.definition else ():
                for wanted in (*recipe.when, *_arguments(recipe)):
                    if not wanted.startswith("word.") and setting(wanted, self._info) is UNSETTLED:
                        found[wanted.removesuffix("?").replace("|", " or ")] = None
        return list(found)

    def _keys(self, info: RunInfo) -> Mapping[str, tuple[str, ...]]:
        """What would be recomputed of a run that is described so, with the columns that it lacks."""
        dialect = find_dialect(info)
        found = dialect.logged(info, self._columns, self._names) if dialect else ()
        return {item.name: lacking(item.reduction.needs, self._columns, info.config) for item in found}


def _with(native: Mapping[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    """The configuration with one value more."""
    first, *rest = path
    inside = native.get(first)
    if rest:
        value = _with(inside if isinstance(inside, Mapping) else {}, rest, value)
    return {**native, first: value}


def _arguments(recipe: Recipe) -> Iterator[str]:
    """Settings that stand in the quantities of a recipe."""
    for one in (recipe.value, *(() if recipe.where is None else (recipe.where,))):
        yield from _of_quantity(one)
    for other in recipe.beside:
        yield from _arguments(other)


def _of_quantity(quantity: Of) -> Iterator[str]:
    for _, value in quantity.arguments:
        if isinstance(value, Of):
            yield from _of_quantity(value)
        elif isinstance(value, str) and value.startswith(("config.", "native.")):
            yield value
