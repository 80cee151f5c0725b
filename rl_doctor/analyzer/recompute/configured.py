"""Recipes with what their settings are in a run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from rl_doctor.analyzer.dialects.recipes import Argument, Of, Recipe
from rl_doctor.analyzer.dialects.registry import Trainer
from rl_doctor.analyzer.recompute.native import as_flag, as_number, nested
from rl_doctor.analyzer.recompute.quantities.registry import Given, needs_of
from rl_doctor.analyzer.recompute.variations.ranges import WORDS, WORDS_OF_OWN
from rl_doctor.frozen import frozen
from rl_doctor.schema import RunInfo

_CONFIG: Final = "config."
_NATIVE: Final = "native."
_WORD: Final = "word."
_RANGE: Final = frozenset({"config.clip_low", "config.clip_high"})
"""Settings that a trainer's own configuration has too: where the two are different, the other is tried."""
_MAYBE: Final = "?"
_TOLD: Final = ("minibatch", "microbatch")
"""Columns of ``CELL`` that a run has unless nothing is known of its parts; without the others there is one rank, one pass."""
_WORDS: Final = frozenset(
    {"action", "agg", "anchor", "dppo", "kind", "level", "metric", "sequence_mask", "tis", "unit"}
)  # fmt: skip
"""Arguments that are words."""
_ESTIMATES: Final = frozenset({"k1", "k2", "k3", "abs"})
_KINDS: Final = {"estimate": _ESTIMATES, "reference_kl": _ESTIMATES | {"low_var_kl"}}
"""Quantities of which there are only these kinds."""
_FLAGS: Final = frozenset({"others", "ranged", "recompute", "weighted"})
"""Arguments that are true or false; of those that are neither, ``filters`` is a list and the others are numbers."""
_FLAG_OR_NUMBER: Final = "dual"
_FILTERS: Final = "filters"
UNSETTLED: Final = object()
"""Stands for a setting that is not known, and equals nothing."""


@frozen(eq=False)
class Made:
    """A recipe with what its settings are in a run.

    Attributes:
        recipe: the recipe.
        value: its quantity.
        where: its further condition, or None.
        beside: the recipes that go into the number as well.
    """

    recipe: Recipe
    value: Given
    where: Given | None = None
    beside: tuple[Made, ...] = ()

    @property
    def needs(self) -> tuple[str, ...]:
        """Columns without which it is skipped."""
        fold, mask = self.recipe.fold, (self.recipe.mask,) if self.recipe.mask == "loss_mask" else ()
        divisors = (name for name in (fold.divisor,) if name.isidentifier())
        apart = (name for name in fold.apart if name in _TOLD or self.recipe.level == "rollout")
        condition = () if self.where is None else needs_of(self.where)
        per = (self.recipe.per,) if self.recipe.per else ()
        others = (*mask, *divisors, *apart, *per, *self.recipe.beside_columns)
        return tuple(dict.fromkeys((*needs_of(self.value), *condition, *others)))


def holds(value: Any, values: Collection[Argument]) -> bool:
    """Whether a setting is one of the values; true is not 1."""
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in values)


def setting(name: str, info: RunInfo, words: Mapping[str, str] | None = None, *, elsewhere: bool = False) -> Any:
    """What ``config.<field>``, ``native.<key>`` or ``word.<word>`` is in a run; where unknown a sentinel that equals nothing.

    That a native one may be None is known only where the trainer's own configuration was recorded. With ``elsewhere`` an end of
    the clip range is what that configuration says of it that does not count.
    """
    if name.startswith(_WORD):
        return (words or {}).get(name.removeprefix(_WORD), UNSETTLED)
    maybe = name.endswith(_MAYBE)
    names = name.removesuffix(_MAYBE).split("|")
    values = (_setting(one, info) for one in (_other_range(names, info) if elsewhere else ()) or names)
    value = next((one for one in values if one is not None), None)
    maybe = maybe and (info.config.native is not None or _NATIVE not in name)
    return UNSETTLED if value is None and not maybe else value


def _setting(name: str, info: RunInfo) -> Any:
    if name.startswith(_CONFIG):
        return getattr(info.config, name.removeprefix(_CONFIG))
    found = _fixed(nested(info.config.native, name.removeprefix(_NATIVE)))
    return None if found == () else found  # an empty list asks for nothing


def _other_range(names: Sequence[str], info: RunInfo) -> list[str]:
    """Of the names of an end of the clip range those of the configuration that does not count; none where only one says it."""
    told = [one for one in names if _setting(one, info) is not None] if _RANGE.intersection(names) else []
    return [one for one in told if one.startswith(_CONFIG) != told[0].startswith(_CONFIG)]


def other_range(recipe: Recipe, info: RunInfo) -> tuple[str, str] | None:
    """What the clip range is called that counts less than the one that the recipe has: a name and a sentence; None for none."""
    for _, text in _texts(recipe):
        names = text.removesuffix(_MAYBE).split("|")
        others = _other_range(names, info)
        if others and setting(text, info) != _setting(others[0], info):
            return WORDS if others[0].startswith(_CONFIG) else WORDS_OF_OWN
    return None


def _fixed(value: Any) -> Any:
    """A setting whose lists are tuples and whose mappings are tuples of their items, so that it can be a key."""
    if isinstance(value, Mapping):
        return tuple((name, _fixed(one)) for name, one in sorted(value.items()))
    if isinstance(value, list | tuple):
        return tuple(map(_fixed, value))
    return _plain(value) if isinstance(value, str) else value


def _plain(text: str) -> Any:
    """The number or truth value that a text says, or the text."""
    flag, number = as_flag(text), as_number(text)
    return flag if flag is not None else text if number is None else number


def misfit(argument: str, value: Any) -> str:
    """What a setting is not, though it would have to be for the argument that it stands for; "" where it fits."""
    number = isinstance(value, int | float)
    if value is None or value is UNSETTLED:
        return ""
    if argument in _WORDS:
        return "" if isinstance(value, str) else "a word"
    if argument in _FLAGS:
        return "" if number and value in (0, 1) else "true or false"
    if argument == _FILTERS:
        return "" if isinstance(value, tuple) and all(map(_is_mapping, value)) else "a list of mappings"
    fits = number and not (isinstance(value, bool) and argument != _FLAG_OR_NUMBER) and value == value  # noqa: PLR0124 - NaN
    return "" if fits else "a number"


def _is_mapping(value: Any) -> bool:
    """Whether it was a mapping, see ``_fixed``."""
    return isinstance(value, tuple) and all(isinstance(one, tuple) and len(one) == 2 for one in value)


def misfits(trainer: Trainer, info: RunInfo) -> Iterator[str]:
    """What of the trainer's own configuration does not fit, of what its table asks for: a sentence each."""
    recipes = [recipe for item in trainer.names if item.definition for recipe in item.definition.recipes]
    asked = dict.fromkeys(pair for recipe in recipes for pair in _asked(recipe))
    told = {name: kind for argument, name in asked if (kind := misfit(argument, _setting(name, info)))}
    for name, kind in told.items():
        yield f"config.{name}: not {kind}, so what depends on it is not known"


def _asked(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Arguments with the native settings that they stand for."""
    for argument, text in _texts(recipe):
        names = text.removesuffix(_MAYBE).split("|")
        yield from ((argument, name) for name in names if name.startswith(_NATIVE))


def _texts(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Arguments of the recipe's quantities that are texts, such as the names of settings."""
    quantities = [recipe.value, *(() if recipe.where is None else (recipe.where,))]
    while quantities:
        for argument, value in quantities.pop().arguments:
            if isinstance(value, Of):
                quantities.append(value)
            elif isinstance(value, str):
                yield argument, value
    for other in recipe.beside:
        yield from _texts(other)


def resolved(recipe: Recipe, info: RunInfo, words: Mapping[str, str] | None = None, *, elsewhere: bool = False) -> Made | None:
    """A recipe with the run's settings in place of their names; None where one is not known. ``elsewhere`` as of ``setting``."""
    value = _given(recipe.value, info, words, elsewhere)
    where = None if recipe.where is None else _given(recipe.where, info, words, elsewhere)
    if value is None or (where is None and recipe.where is not None):
        return None
    beside = tuple(resolved(one, info, words, elsewhere=elsewhere) for one in recipe.beside)
    return None if None in beside else Made(recipe, value, where, tuple(one for one in beside if one is not None))


def _given(quantity: Of, info: RunInfo, words: Mapping[str, str] | None, elsewhere: bool) -> Given | None:  # noqa: FBT001
    found: dict[str, Argument | Given] = {}
    for name, value in quantity.arguments:
        given: Any = value
        if isinstance(value, Of):
            given = _given(value, info, words, elsewhere)
            if given is None:
                return None
        elif isinstance(value, str) and value.startswith((_CONFIG, _NATIVE, _WORD)):
            given = setting(value, info, words, elsewhere=elsewhere)
            known = _KINDS.get(quantity.name) if name == "kind" else None
            unfit = misfit(name, given) or (known is not None and given not in known)
            given = UNSETTLED if unfit and not value.startswith(_WORD) else given
        if given is UNSETTLED:
            return None
        found[name] = given
    return Given(quantity.name, found)
