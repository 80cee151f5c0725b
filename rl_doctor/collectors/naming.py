"""What a call of ``log_batch`` hands over, under canonical names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

from rl_doctor.collectors.snapshot import width_of
from rl_doctor.errors import suggestion
from rl_doctor.frozen import frozen
from rl_doctor.schema import COLUMNS
from rl_doctor.store.aliases import ALIASES, ATTENTION_MASK, FULL_WIDTH, Resolution, resolve
from rl_doctor.store.rows import is_token

_OWN: Final = frozenset({"sequence", "stored_length"})


@frozen
class Named:
    """Columns by canonical name, without the step.

    Attributes:
        columns: canonical name -> what was given.
        full_width: whether the token columns cover the prompt too.
        unknown: names that are no column, said here for the first time.
    """

    columns: dict[str, Any]
    full_width: bool
    unknown: tuple[str, ...]


def named(given: Mapping[str, Any], tell: Callable[[str], bool]) -> Named:
    """Give what was handed over its canonical names; what has none is left out.

    Args:
        given: name -> values.
        tell: logs a line once, and returns whether it was new.
    """
    resolution = _resolution(("step", *given))
    for note in resolution.notes:
        tell(note)
    unknown = tuple(
        name
        for name in resolution.unknown
        if tell(f"{name!r} is no column and is left out{suggestion(name, (*COLUMNS, *ALIASES, ATTENTION_MASK))}")
    )
    columns = {name: given[own] for name, own in resolution.found.items() if name != "step"}
    for name in _OWN & columns.keys():
        del columns[name]
        tell(f"{resolution.found[name]!r} is left out: {name} is counted by the recorder itself")
    full_width = resolution.found.get("token_id") in FULL_WIDTH and "prompt_length" in columns and _ids_are_widest(columns)
    return Named(columns, full_width, unknown)


@functools.lru_cache(maxsize=64)
def _resolution(names: tuple[str, ...]) -> Resolution:
    return resolve(names, "log_batch")


def _ids_are_widest(columns: Mapping[str, Any]) -> bool:
    """Whether token ids, under a name that says prompt and response, are exactly as wide as all other tensors."""
    widths = {width_of(values) for name, values in columns.items() if is_token(name) or name == ATTENTION_MASK}
    return len(widths - {None, 1}) == 1
