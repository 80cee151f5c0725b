"""Numbers as logs write them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from rl_doctor.collectors.importers.patterns import when_used

_WRAPPED: Final = when_used(r"(?:np|numpy|torch|jnp)\.\w+\((.*)\)|tensor\(([^,)]+).*\)")
_DECIMAL_COMMA: Final = when_used(r"\s*[-+]?(\d+),(\d+)(?:[eE][-+]?\d+)?%?\s*")
_LONGEST_COUNT: Final = 15
_THOUSANDS: Final = 3
_WORDS: Final = {"nan": math.nan, "inf": math.inf, "infinity": math.inf, "true": 1.0, "false": 0.0}


def number(value: Any) -> float | None:
    """A logged value as a float; None if it is no number.

    Numbers in quotes, ``np.float64(nan)``, ``tensor(0.5, device='cuda:0')``, ``NaN``, ``-inf``, booleans, numbers with a percent
    sign (as shares) and lists of one number count as numbers; texts, None, longer lists and objects do not.
    """
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if isinstance(value, str):
        return _of_text(value.strip())
    if isinstance(value, list) and len(value) == 1:
        return number(value[0])
    return None


def _of_text(text: str) -> float | None:
    if match := _WRAPPED.fullmatch(text):
        text = (match[1] or match[2] or "").strip()
    sign = -1.0 if text.startswith("-") else 1.0
    word = _WORDS.get(text.lstrip("+-").lower())
    if word is not None:
        return sign * word
    if "_" in text:  # Python reads 1_000 as a number; no log means one by it
        return None
    try:
        return float(text[:-1]) / 100.0 if text.endswith("%") else float(text)
    except ValueError:
        return None


def with_points(values: Sequence[Any]) -> Sequence[Any]:
    """Values of one metric with points for their decimal commas, where each comma is one.

    Where all of them may as well part thousands (``1,024``), they are left as they are.
    """
    commas = {index: value for index, value in enumerate(values) if isinstance(value, str) and "," in value}
    found = [_DECIMAL_COMMA.fullmatch(value) for value in commas.values()]
    sure = any(match is not None and (len(match[2]) != _THOUSANDS or match[1] == "0") for match in found)
    if None in found or not sure:
        return values
    return [value.replace(",", ".") if index in commas else value for index, value in enumerate(values)]


def whole(value: Any) -> int | None:
    """A logged step as an int; None if it is no whole number."""
    found = number(value)
    return int(found) if found is not None and math.isfinite(found) and found == int(found) and abs(found) < 2**53 else None


def as_count(digits: str) -> int:
    """Digits of a counter as an int; one that is too long for any training is 2**53, which ``assemble`` takes for no step."""
    return int(digits) if len(digits) <= _LONGEST_COUNT else 2**53
