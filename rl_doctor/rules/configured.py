"""What the rules of a configuration read: fields that are known, and the trainer's own settings by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rl_doctor.report.model import Evidence
from rl_doctor.rules.registry import Skip
from rl_doctor.rules.view import View


def settings(native: Mapping[str, Any] | None, under: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting of a native configuration by its path with dots; a group of settings too, where it is empty or None."""
    for key, value in (native or {}).items():
        path = f"{under}{key}"
        if isinstance(value, Mapping) and value:
            yield from settings(value, f"{path}.")
        else:
            yield path, value


def setting(view: View, *names: str) -> Any:
    """The first native setting whose path is one of these names or ends in it; None where there is none, or it is None."""
    known = tuple(settings(view.config.native))
    for name in names:
        for path, value in known:
            if value is not None and (path == name or path.endswith(f".{name}")):
                return value
    return None


def number(view: View, *names: str) -> float | None:
    """The same where it is a number; what is true or false is none."""
    value = setting(view, *names)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def stated(field: str, value: float, limit: float | None = None, unit: str = "1") -> Evidence:
    """A value of the configuration as evidence: ``field`` is a canonical one or the path of a native one."""
    return Evidence(f"config.{field}", None, None, float(value), None, limit, unit)


def unknown(view: View, *fields: str) -> Skip | None:
    """A skip if one of these canonical fields is unknown."""
    lacks = tuple(f"config.{name}" for name in fields if getattr(view.config, name) is None)
    return Skip("config", f"{', '.join(lacks)} unknown", lacks) if lacks else None


def silent(what: str) -> Skip:
    """The skip where the trainer's own settings do not say something."""
    return Skip("config", f"{what} is not known", ("config.native",))


def estimator(view: View) -> str | None:
    """How advantages are computed: the configuration's word, else the algorithm where it implies one."""
    algorithm = (view.info.algorithm or "").lower()
    implied = {"grpo", "dr_grpo", "rloo"}
    found = view.config.adv_estimator or (algorithm if algorithm in implied else None)
    return "grpo" if found is None and algorithm in {"dapo", "gspo"} else found


def updates_per_batch(view: View) -> int | None:
    """Optimizer steps on each generation batch; None where that is not known."""
    epochs, minibatches = view.config.epochs, view.config.minibatches
    return None if epochs is None or minibatches is None else int(epochs) * int(minibatches)
