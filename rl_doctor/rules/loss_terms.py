"""The total loss against its terms: which sign or coefficient of a term makes it what was logged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from types import MappingProxyType
from typing import Final

import numpy as np

from rl_doctor.rules.trend import Floats

KL, ENTROPY = "KL term", "entropy bonus"
_SUSPECTS: Final[Mapping[tuple[str, str], tuple[str, str]]] = MappingProxyType({
    (KL, "opposite"): ("kl-sign-in-loss", "The KL term enters the loss with a minus sign: drift is rewarded."),
    (KL, "none"): ("kl-left-out-of-loss", "The KL term is left out of the loss although kl_coef is not 0."),
    (KL, "twice"): ("kl-twice-in-loss", "The KL term is added to the loss twice."),
    (KL, "plain"): ("coefficient-left-out", "The KL term enters the loss without its coefficient."),
    (ENTROPY, "opposite"): ("entropy-sign-in-loss", "The entropy enters the loss with a plus sign: certainty is rewarded."),
    (ENTROPY, "none"): ("entropy-left-out-of-loss", "The entropy bonus is left out of the loss although entropy_coef is not 0."),
    (ENTROPY, "twice"): ("entropy-twice-in-loss", "The entropy bonus is added to the loss twice."),
    (ENTROPY, "plain"): ("coefficient-left-out", "The entropy bonus enters the loss without its coefficient."),
})  # fmt: skip
"""Term, and what became of it -> name of the cause, and the cause in a sentence."""


def told_by_terms(
    total: Floats, policy: Floats, terms: Mapping[str, tuple[float, Floats]], allowed: Floats
) -> tuple[str, str] | None:  # fmt: skip
    """The one way to get a term wrong that gives the logged total at every row, as (cause, sentence); None for none or several.

    Args:
        total: logged total loss ``[n]``.
        policy: logged policy loss ``[n]``.
        terms: term -> coefficient with its sign, and what is multiplied by it ``[n]``.
        allowed: what rounding can do ``[n]``.
    """
    found = {}
    for changed in product(*(_ways(factor) for factor, _ in terms.values())):
        wrong = [(name, how) for name, (how, _) in zip(terms, changed, strict=True) if how]
        made = policy + sum(by * factor * part for (_, by), (factor, part) in zip(changed, terms.values(), strict=True))
        near = np.abs(total - made) <= allowed + 1e-9 * np.abs(total)
        if len(wrong) == 1 and float(np.mean(near)) >= 0.95:
            found[_SUSPECTS[wrong[0]]] = True
    return next(iter(found)) if len(found) == 1 else None


def _ways(factor: float) -> Iterator[tuple[str, float]]:
    """What may become of a term: how, and by what it is then multiplied. The first is right."""
    yield "", 1.0
    yield "opposite", -1.0
    yield "none", 0.0
    yield "twice", 2.0
    if abs(factor) not in {0.5, 1.0, 2.0}:
        yield "plain", 1.0 / abs(factor)
