"""Other values per token than those that a key averages: estimates, bases, clipped shares, losses, entropies."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import Floats, selected
from rl_doctor.analyzer.formulas.kl import k3
from rl_doctor.analyzer.recompute.registry import EPSILON32, TOLERANCE
from rl_doctor.analyzer.recompute.stages import Share, token_shares
from rl_doctor.analyzer.recompute.variations.measures import Part
from rl_doctor.frozen import frozen
from rl_doctor.store.batch import Batch

Differences = Callable[[Batch], Floats]
"""Batch -> a log-ratio at the selected tokens, float64 ``[n_selected]``."""
Valued = Callable[[Batch], tuple[Floats, Floats]]
"""Batch -> values at the selected tokens and the size of their summands, each ``[n_selected]``."""
Make = Callable[[Valued], Share]
"""How values per token become what each sequence adds."""


@frozen(eq=False)
class Value:
    """Another value per token."""

    name: str
    sentence: str
    function: Valued
    needs: tuple[str, ...] = ()


def as_tokens(function: Valued) -> Share:
    """A mean over the selected tokens."""
    return lambda batch: token_shares(batch, *function(batch))


def parts(make: Make, values: Iterator[Value] | Collection[Value]) -> tuple[Part, ...]:
    """The key with each of these values instead of its own."""
    return tuple(Part(one.name, one.sentence, make(one.function), one.needs) for one in values)


def _sized(x: Floats, value: Floats) -> tuple[Floats, Floats]:
    """Values of a function of the log-ratio, and the size of its summands in float32."""
    return value, np.abs(value) + EPSILON32 / TOLERANCE * (np.exp(x) + np.abs(x) + 1.0)


_ESTIMATES: Final[dict[str, tuple[str, Callable[[Floats], Floats]]]] = {
    "k1": ("is the log-ratio itself (k1)", lambda x: -x),
    "k1 reversed": ("is the log-ratio itself (k1), taken in the other direction", lambda x: x),
    "abs": ("is the absolute log-ratio", np.abs),
    "k2": ("is half the squared log-ratio (k2)", lambda x: 0.5 * x**2),
    "squared": ("is the squared log-ratio, without one half", np.square),
    "k3": ("is k3 (exp(x) - 1 - x)", k3),
    "k3 reversed": ("is k3 of the reversed log-ratio (exp(-x) - 1 + x)", lambda x: k3(-x)),
    "ratio": ("is the ratio, not its logarithm", np.exp),
    "ratio reversed": ("is the inverse ratio, not its logarithm", lambda x: np.exp(-x)),
    "minus the ratio": ("is minus the ratio", lambda x: -np.exp(x)),
    "ratio minus 1": ("is the ratio minus 1", np.expm1),
    "1 minus the ratio": ("is 1 minus the ratio", lambda x: -np.expm1(x)),
}


def estimates(x: Differences, *own: str) -> Iterator[Value]:
    """Other functions of the same log-ratio ``x`` than those named ``own``, which the definition is, or for which a twin stands.

    ``k1`` is -x and ``k3`` is exp(x) - 1 - x.
    """

    def function(batch: Batch, of: Callable[[Floats], Floats]) -> tuple[Floats, Floats]:
        difference = x(batch)
        return _sized(difference, of(difference))

    for name, (sentence, of) in _ESTIMATES.items():
        if name not in own:
            yield Value(name, sentence, partial(function, of=of))


def clamps(x: Differences, own: str, bound: float | None) -> Iterator[Value]:
    """The own estimate with the log-ratio, or the estimate itself, within other bounds; ``bound`` is that of the definition."""
    _, of = _ESTIMATES[own]

    def inner(batch: Batch, most: float) -> tuple[Floats, Floats]:
        difference = np.clip(x(batch), -most, most)
        return _sized(difference, of(difference))

    def outer(batch: Batch, most: float) -> tuple[Floats, Floats]:
        difference = x(batch)
        value, size = _sized(difference, of(difference))
        return np.clip(value, -most, most), np.minimum(size, most + 1.0)

    for most in (20.0, 10.0, 5.0):
        if most != bound:
            yield Value(f"log-ratio within {most:g}", f"clamps the log-ratio to {most:g} nat", partial(inner, most=most))
            yield Value(f"estimate within {most:g}", f"clamps the estimate to {most:g} nat", partial(outer, most=most))
    if bound is not None:
        yield Value("without a clamp", "has no clamp", partial(inner, most=np.inf))


@frozen(eq=False)
class Clip:
    """What a clipped loss follows from: ratio and advantage at the selected tokens, bounds of the ratio, the dual clip."""

    ratio: Differences
    low: float
    high: float
    dual: float | None = None
    advantage: Differences = lambda batch: selected(batch, "advantage")


def clipped_shares(clip: Clip, *own: str) -> Iterator[Value]:
    """Other shares of tokens that are clipped than those named ``own``."""
    for name, (sentence, flags) in _FLAGS.items():
        if name not in own and not (clip.dual is None and "dual" in name):
            yield Value(name, sentence, partial(_flagged, clip=clip, flags=flags))


def _flagged(batch: Batch, clip: Clip, flags: Flagged) -> tuple[Floats, Floats]:
    ratio, advantage = clip.ratio(batch), clip.advantage(batch)
    value = np.asarray(flags(clip, ratio, advantage), np.float64)
    near = np.minimum(np.abs(ratio - clip.low), np.abs(ratio - clip.high)) < 4 * EPSILON32 * np.maximum(ratio, 1.0)
    return value, value + near / TOLERANCE


Flagged = Callable[[Clip, Floats, Floats], Floats]
"""(clip, ratio, advantage) -> how often each token counts, each ``[n_selected]``."""


def _low(clip: Clip, ratio: Floats, _: Floats) -> Floats:
    return np.asarray(ratio < clip.low, np.float64)


def _high(clip: Clip, ratio: Floats, _: Floats) -> Floats:
    return np.asarray(ratio > clip.high, np.float64)


def _capped(clip: Clip, ratio: Floats, _: Floats) -> Floats:
    return np.asarray(ratio > (np.inf if clip.dual is None else clip.dual), np.float64)


def _below(clip: Clip, ratio: Floats, advantage: Floats) -> Floats:
    return _low(clip, ratio, advantage) * (advantage < 0)


def _above(clip: Clip, ratio: Floats, advantage: Floats) -> Floats:
    return _high(clip, ratio, advantage) * (advantage > 0)


def _dual_binds(clip: Clip, ratio: Floats, advantage: Floats) -> Floats:
    return _capped(clip, ratio, advantage) * (advantage < 0)


_FLAGS: Final[dict[str, tuple[str, Flagged]]] = {
    "both sides": ("counts where the clip range binds on either side", lambda c, r, a: _below(c, r, a) + _above(c, r, a)),
    "lower side": ("counts the lower side of the clip range alone", _below),
    "upper side": ("counts the upper side of the clip range alone", _above),
    "whatever the advantage": (
        "counts ratios outside the clip range whatever the sign of the advantage", lambda c, r, a: _low(c, r, a) + _high(c, r, a),
    ),
    "below whatever the advantage": ("counts ratios below the clip range whatever the sign of the advantage", _low),
    "above whatever the advantage": ("counts ratios above the clip range whatever the sign of the advantage", _high),
    "opposite advantage": (
        "counts where the clip range would bind with the opposite advantage", lambda c, r, a: _below(c, r, -a) + _above(c, r, -a),
    ),
    "dual clip included": (
        "counts what the dual clip binds as well", lambda c, r, a: _below(c, r, a) + _above(c, r, a) + _dual_binds(c, r, a),
    ),
    "dual clip alone": ("counts what the dual clip binds", _dual_binds),
    "outside the dual clip": ("counts ratios above the dual clip whatever the sign of the advantage", _capped),
}  # fmt: skip


def losses(clip: Clip, *own: str) -> Iterator[Value]:
    """Other policy losses of the same ratio and advantage than those named ``own``."""

    def function(batch: Batch, of: Flagged) -> tuple[Floats, Floats]:
        ratio = clip.ratio(batch)
        value = of(clip, ratio, clip.advantage(batch))
        return value, np.abs(value) * (1.0 + EPSILON32 / TOLERANCE * np.abs(np.log(np.maximum(ratio, 1e-300))))

    for name, (sentence, of) in _LOSSES.items():
        if name not in own and not (clip.dual is None and "dual" in name):
            yield Value(name, sentence, partial(function, of=of))
    yield Value("plain log-likelihood", "is minus the advantage times the log-probability", _likelihood, ("logprob",))


def _likelihood(batch: Batch) -> tuple[Floats, Floats]:
    value = -selected(batch, "advantage") * selected(batch, "logprob")
    return value, np.abs(value)


def _inner(clip: Clip, ratio: Floats, advantage: Floats) -> Floats:
    return np.maximum(-advantage * ratio, -advantage * np.clip(ratio, clip.low, clip.high))


def _dual(clip: Clip, value: Floats, advantage: Floats) -> Floats:
    cap = np.inf if clip.dual is None else clip.dual
    with np.errstate(invalid="ignore"):
        return np.where(advantage < 0, np.minimum(value, -advantage * cap), value)


def _plain(_: Clip, ratio: Floats, advantage: Floats) -> Floats:
    return -advantage * ratio


def _clamped(clip: Clip, ratio: Floats, advantage: Floats) -> Floats:
    return -advantage * np.clip(ratio, clip.low, clip.high)


_LOSSES: Final[dict[str, tuple[str, Flagged]]] = {
    "without the dual clip": ("is the clipped loss without the dual clip", _inner),
    "dual clip alone": ("has the dual clip, but not the inner clip range", lambda c, r, a: _dual(c, -a * r, a)),
    "dual clip alone where A < 0": (
        "has the dual clip instead of the inner clip range where the advantage is negative",
        lambda c, r, a: np.where(a < 0, _dual(c, -a * r, a), _inner(c, r, a)),
    ),
    "dual clip on both signs": (
        "bounds the loss by the dual clip where the advantage is positive too",
        lambda c, r, a: np.clip(_inner(c, r, a), -np.abs(a) * (c.dual or np.inf), np.abs(a) * (c.dual or np.inf)),
    ),
    "without any clip": ("is the loss without the clip range", _plain),
    "always clipped": ("clamps the ratio always, instead of taking the larger loss", _clamped),
    "smaller of the two": (
        "takes the smaller of the plain and the clipped loss", lambda c, r, a: np.minimum(_plain(c, r, a), _clamped(c, r, a)),
    ),
    "ratio left out": ("is minus the mean advantage: the ratio is left out", lambda _c, r, a: -a + 0.0 * r),
    "inverse ratio": ("uses the inverse ratio", lambda c, r, a: _dual(c, _inner(c, 1.0 / np.maximum(r, 1e-30), a), a)),
    "upper bound alone": ("clips at the upper bound alone", lambda c, r, a: np.maximum(-a * r, -a * np.minimum(r, c.high))),
    "lower bound alone": ("clips at the lower bound alone", lambda c, r, a: np.maximum(-a * r, -a * np.maximum(r, c.low))),
}  # fmt: skip
