"""Advantages of a critic: whether they belong to returns, rewards of tokens and old values, with the constants that are set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Evidence, Hit
from rl_doctor.rules.reading import lacking
from rl_doctor.rules.registry import Limits, Skip, Told, rule
from rl_doctor.rules.spans import Breach
from rl_doctor.rules.stretch import stretch
from rl_doctor.rules.trend import Floats
from rl_doctor.rules.view import View

Bools = NDArray[np.bool_]
_CORR: Final = "advantage.return_corr"
_OWN: Final = "advantage.gae_residual"
_BACK: Final = "return.gae_residual"
_NEXT, _PREVIOUS, _LATE, _EARLY = (
    "advantage.return_next_corr", "advantage.return_previous_corr", "advantage.late_corr", "advantage.early_corr",
)  # fmt: skip
_FIRST, _SORTED = "advantage.first_corr", "advantage.first_sorted_corr"
_CONSTANTS: Final = ("advantage.gae_gamma", "advantage.gae_lam", "return.gae_gamma", "return.gae_lam")


@rule(
    "RLD429", "gae-mismatch",
    severity="error", since="0.2.0",
    optional=(_CORR, _OWN, _BACK, _NEXT, _PREVIOUS, _LATE, _EARLY, _FIRST, _SORTED, *_CONSTANTS),
    limits={
        "related": 0.9, "exact": 0.01, "sharper": 0.1, "apart": 1e-3, "sorted": 1e-5, "lam": 0.005, "gamma": 0.002, "steps": 3,
        "tokens": 500,
    },
    cause="Advantages, returns, values and rewards of tokens do not belong together: they are of other tokens or rows, or gamma "
    "and lambda are others than configured.",
    advice=(
        "Compute GAE of one row by hand from token_reward and old_value, and compare return and advantage token by token.",
        "Check every shift, slice and shuffle between the values and the update: all columns must move together.",
    ),
    avoids=(
        "Advantages that are shifted and scaled after GAE: correlations and least squares do not see it.",
        "A critic that is trained to returns of another lambda than its policy.",
        "Advantages of a method without a critic.",
        "Rewards or masks for which GAE over the trained tokens gives neither: gamma and lambda are not judged then.",
    ),
    source="GAE, arXiv:1506.02438, eq. 16; reproduced by shifting returns and exchanging rows",
)  # fmt: skip
def gae_mismatch(view: View, limits: Limits) -> Iterator[Hit | Skip | Told]:
    """The advantages of a critic do not follow from returns, values and rewards of tokens, or not with the constants set.

    A return is the advantage plus the old value, before advantages are whitened. Returns that stand one token off teach the
    critic the value of the neighbour; advantages of other rows are noise; another lambda is another trade of bias for variance.

    The advantage is correlated with return - old value over the trained tokens of each step, which is 1 however it was whitened.
    Below -`related` the sign is turned. Where returns or advantages of the token before or behind correlate `sharper` times
    better (1 - correlation, from `apart` on), they are shifted. Below `related`, the advantages are those of other rows if both
    sides, sorted over the first tokens of the rows, agree within `sorted`; else they do not follow, if the recursion of GAE
    gives the returns; and if it gives the advantages, the returns are another quantity, which is info.

    Where the recursion leaves less than `exact` of the size of the advantages over, gamma and lambda follow from it by least
    squares; further than `gamma` or `lam` from what is configured, they are told. All of this over a stretch of at least `steps`
    steps with `tokens` tokens; in shorter runs from 2 steps on with twice the tokens.
    """
    declared = view.config.adv_estimator
    if declared not in (None, "gae"):
        yield Skip("config", f"{declared} has no critic")
        return
    base = view.get(_CORR)
    if base is None:
        yield lacking(view, _CORR)
        return
    if (found := _apart(view, base, limits)) is not None:
        yield found
    exact = [name for name in (_OWN, _BACK) if (_on(view, name, base) <= limits["exact"]).any()]
    if not exact:
        lacks = view.missing.get(_OWN, ())
        why = "gamma and lambda cannot be told: GAE over the trained tokens gives neither advantages nor returns"
        if found is None and lacks:
            yield Told(f"gamma and lambda are not judged: needs {', '.join(lacks)}")
        elif found is None:
            yield Told(why)
        return
    yield from _settings(view, base, exact[0].partition(".")[0], limits)


def _on(view: View, name: str, base: Series) -> Floats:
    """A metric at the steps of ``base``, float64 ``[n]``; NaN where it was not measured."""
    values, found = np.full(len(base), np.nan), view.get(name)
    if found is not None:
        _, here, there = np.intersect1d(base.steps, found.steps, return_indices=True)
        values[here] = found.values[there]
    return values


def _apart(view: View, base: Series, limits: Limits) -> Hit | None:
    """What does not belong together, if anything."""
    corr, off = base.values, 1.0 - base.values
    own, back = (_on(view, name, base) <= limits["exact"] for name in (_OWN, _BACK))
    near = {name: 1.0 - _on(view, name, base) for name in (_NEXT, _PREVIOUS, _LATE, _EARLY)}
    moved = {name: (off > limits["apart"]) & (value < limits["sharper"] * off) for name, value in near.items()}
    turned, unrelated = corr < -limits["related"], np.abs(corr) < limits["related"]
    same = (1.0 - _on(view, _SORTED, base) < limits["sorted"]) & (_on(view, _FIRST, base) < limits["related"])
    kinds = (
        (turned, "advantage-sign-turned", "The advantages are those of GAE with the opposite sign"),
        ((moved[_NEXT]) & ~back, "returns-shifted", "Returns stand one token too late"),
        ((moved[_PREVIOUS]) & ~back, "returns-shifted", "Returns stand one token too early"),
        (moved[_LATE] & ~own, "token-advantages-shifted", "Advantages stand one token too late"),
        (moved[_EARLY] & ~own, "token-advantages-shifted", "Advantages stand one token too early"),
        (unrelated & same, "token-advantages-of-other-rows", "Advantages are those of other rows"),
        (unrelated & back & ~own, "token-advantages-unknown", "Advantages do not follow from returns and values"),
        (unrelated & own & ~back, "returns-of-another-kind", "Returns are not the advantages plus the values"),
    )
    for marked, suspect, words in kinds:
        limit = 1.0 - limits["apart"] if "shifted" in suspect else -limits["related"] if marked is turned else limits["related"]
        found = stretch(base, marked, limit, steps=int(limits["steps"]), items=int(limits["tokens"]))
        if found is not None:
            return _told(view, found, suspect, words, near, own & marked, back & marked)
    return None


def _told(view: View, found: Breach, suspect: str, words: str, near: dict[str, Floats], own: Bools, back: Bools) -> Hit:
    shifts = {"returns-shifted": (_NEXT, _PREVIOUS), "token-advantages-shifted": (_LATE, _EARLY)}.get(suspect, ())
    best = min((float(np.nanmedian(near[name][found.marked])) for name in shifts), default=None)
    there = "" if best is None else f", and by {1.0 - best:.5g} there"
    ruled_out = ["whitening: a correlation does not see it"]
    if own.any():
        ruled_out.append("advantages of another formula: GAE from token_reward and old_value gives them")
    if back.any():
        ruled_out.append("returns of another formula: GAE from token_reward and old_value gives them")
    return Hit(
        f"{words}: advantage and return - old_value of a token correlate by {found.value:.3g}{there}, {found.when}",
        "info" if suspect == "returns-of-another-kind" else "error",
        (found.evidence(),),
        ruled_out=tuple(ruled_out),
        unchecked=() if own.any() or back.any() else tuple(view.missing.get(_OWN, ())),
        suspect=suspect,
    )


def _settings(view: View, base: Series, what: str, limits: Limits) -> Iterator[Hit]:
    """Where gamma or lambda follow from ``what`` ("advantage" or "return"), and are others than configured."""
    items: list[tuple[str, float, Breach]] = []
    for name, label in (("gamma", "gamma"), ("lam", "lambda")):
        series, asked = view.get(f"{what}.gae_{name}"), getattr(view.config, name)
        if series is None or asked is None:
            continue
        marked = np.abs(series.values - asked) > limits[name]
        breach = stretch(series, marked, asked, steps=int(limits["steps"]), items=int(limits["tokens"]))
        if breach is not None:
            items.append((label, asked, breach))
    if not items:
        return
    told = " and ".join(f"{label} {found.value:.4g} (configured: {asked:g})" for label, asked, found in items)
    left = float(np.nanmax(_on(view, f"{what}.gae_residual", base)))
    yield Hit(
        f"{'Advantages' if what == 'advantage' else 'Returns'} follow GAE with {told}, {items[0][2].when}",
        "error",
        tuple(_as_evidence(found, asked) for _, asked, found in items),
        cause="The advantages are computed with another gamma or lambda than is configured.",
        ruled_out=(f"another formula: at most {left:.1g} of the size of the advantages is left over",),
        suspect="gae-settings-differ",
    )


def _as_evidence(found: Breach, asked: float) -> Evidence:
    return Evidence(found.series.metric, found.first, found.last, found.value, asked, None, "1", found.n)
