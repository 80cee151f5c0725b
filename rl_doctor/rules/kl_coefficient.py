"""The coefficient of the KL penalty that the recorded rewards have in them, against the configured one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Evidence, Hit
from rl_doctor.rules.reading import lacking
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.spans import Breach, at, pooled
from rl_doctor.rules.stretch import joined, stretch
from rl_doctor.rules.view import View

_TOKENS: Final = tuple((f"penalty.explained_{form}", f"penalty.coef_{form}", form) for form in ("k1", "k2", "k3", "abs"))
_ROWS: Final = tuple((f"penalty.response_{form}_corr", f"penalty.response_{form}_coef", form) for form in ("k1", "k3"))


@rule(
    "RLD214", "kl-coefficient-differs",
    severity="error", since="0.2.0",
    optional=tuple(name for fit, coefficient, _ in (*_TOKENS, *_ROWS) for name in (fit, coefficient)),
    limits={"explained": 0.98, "factor": 1.1, "steady": 0.02, "steps": 3, "tokens": 500, "rows": 48},
    cause="The KL penalty in the rewards has another coefficient than is configured: it is applied twice, or another setting is "
    "read, or the KL is a sum where a mean is meant.",
    advice=(
        "Divide token_reward of a token in the middle of a response by its log-ratio to the reference: that is the coefficient.",
        "Look for a second multiplication, a setting of another name, or a default that wins over what was set.",
    ),
    avoids=(
        "A coefficient that is adapted: one that moves is not judged.",
        "Rewards that are scaled afterwards by a factor of each batch: that moves too.",
        "Rewards of tokens of another kind: only what follows the log-ratio to the reference counts.",
        "A penalty in the loss: rule kl-penalty-dominates and the recomputed loss tell of that.",
    ),
    source="arXiv:1909.08593, section 2.1; reproduced by multiplying the coefficient",
)  # fmt: skip
def kl_coefficient_differs(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The KL penalty in the recorded rewards has not the coefficient that is configured, or the wrong sign.

    The reward of a token in the middle of a response is minus the coefficient times its log-ratio to the reference. A hundred
    times too large it drowns the reward that is meant; ten times too small it holds nothing.

    token_reward before the last token of each response, or reward - score of a response, is fitted to the estimators of the KL.
    Where one explains `explained` of its square (for responses: correlates by that), its coefficient is held against kl_coef. It
    fires from a factor of `factor` on, and for another sign, if the coefficient keeps within `steady` of its median over a
    stretch of at least `steps` steps with `tokens` tokens or `rows` responses; in shorter runs one step with twice as many is
    enough.
    """
    config = view.config
    if config.kl_coef is None or config.kl_in_reward is None:
        lacks = tuple(f"config.{name}" for name in ("kl_coef", "kl_in_reward") if getattr(config, name) is None)
        yield Skip("config", "the weight of a KL in the reward is not known", lacks)
        return
    if not config.kl_in_reward:
        yield Skip("config", "the KL is not in the reward")
        return
    if not config.kl_coef > 0.0:
        yield Skip("config", "kl_coef is 0")
        return
    if _adapted(config.native):
        yield Skip("config", "the coefficient is adapted to the KL")
        return
    if not any(view.get(fit) is not None for fit, _, _ in (*_TOKENS, *_ROWS)):
        yield lacking(view, _TOKENS[0][0], _ROWS[0][0])
        return
    for where, table, items in (("token_reward", _TOKENS, "tokens"), ("reward - score", _ROWS, "rows")):
        found = _best(view, table, limits["explained"])
        if found is None:
            continue
        form, coefficient, fit = found
        if (hit := _judged(view, where, form, coefficient, fit, int(limits[items]), limits)) is not None:
            yield hit
        return
    yield Skip("data", "no multiple of an estimator of the KL is found in the recorded rewards")


def _adapted(native: Any, under: str = "") -> bool:
    """Whether the trainer's settings name a controller that moves the coefficient."""
    if not isinstance(native, dict):
        return False
    for name, value in native.items():
        path = f"{under}.{name}".lower()
        if isinstance(value, dict):
            if _adapted(value, path):
                return True
        elif ("kl" in path and value == "adaptive") or (path.endswith(("kl_target", "adap_kl_ctrl", "target_kl")) and value):
            return True
    return False


def _best(view: View, table: tuple[tuple[str, str, str], ...], least: float) -> tuple[str, Series, Series] | None:
    """The estimator that fits best: its name, its coefficient and its fit at the steps at which it fits."""
    found: list[tuple[float, str, Series, Series]] = []
    for fit, coefficient, form in table:
        both = joined(view.get(coefficient), view.get(fit))
        if both is None:
            continue
        steps = both[1].steps[np.abs(both[1].values) >= least]
        kept = at(both[0], steps), at(both[1], steps)
        if kept[0] is not None and kept[1] is not None and len(steps) >= 0.5 * len(both[0]):
            found.append((abs(pooled(kept[1])), form, kept[0], kept[1]))
    return max(found, key=lambda item: item[0])[1:] if found else None


def _judged(view: View, where: str, form: str, coefficient: Series, fit: Series, items: int, limits: Limits) -> Hit | None:
    asked = float(view.config.kl_coef or 0.0)
    ratio = coefficient.values / asked
    far = (ratio < 1.0 / limits["factor"]) | (ratio > limits["factor"])
    found = stretch(coefficient, far, asked, steps=int(limits["steps"]), items=items, few=1)
    if found is None:
        return None
    values = coefficient.values[found.marked]
    level = float(np.median(values))
    if float(np.median(np.abs(values - level))) > limits["steady"] * abs(level):
        return None
    times = abs(level) / asked
    size = f"{times:.3g} times" if times >= 1.0 else f"1/{1.0 / max(times, 1e-9):.3g} of"
    of_square = float(np.median(np.abs(fit.values)))
    paid = level < 0.0
    return Hit(
        f"{where} has {-level:+.3g} times {form} to the reference in it, {size} the configured {asked:g}"
        + (" and with the wrong sign" if paid else "")
        + f", {found.when}",
        "error",
        (_evidence(found, level, asked),),
        ruled_out=(
            f"rewards of another kind: the penalty explains {of_square:.3g} of their square"
            if where == "token_reward"
            else f"differences of another kind: they correlate with the penalty by {of_square:.3g}",
            *(("a coefficient that is adapted: it stays the same",) if len(values) > 1 else ()),
        ),
        suspect="kl-paid-for" if paid else "kl-coefficient-not-configured",
    )


def _evidence(found: Breach, level: float, asked: float) -> Evidence:
    return Evidence(found.series.metric, found.first, found.last, level, asked, None, "1", found.n)
