"""Whether advantages, returns, rewards of tokens and old values belong together as GAE has it, and with which gamma and lambda.

The recursion is linear in what it is made of, so that least squares over neighbouring tokens give its constants back, whether or
not advantages were shifted and scaled afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import Bools, Floats, derived, first_tokens, of_rows, per_sequence_sums, selected, selected_splits
from rl_doctor.analyzer.moments import correlation
from rl_doctor.analyzer.registry import metric, reduction, sequence_value
from rl_doctor.analyzer.states import Sums
from rl_doctor.store.batch import Batch

_NEEDS: Final = ("advantage", "return", "old_value", "token_reward")
_PAIR: Final = ("advantage", "return", "old_value")
_SOURCE: Final = "GAE, arXiv:1506.02438, eq. 16, solved for its constants"
_EXACT: Final = 0.01
"""Root mean square that is left over, as a share of that of the advantages, below which constants are told."""
_ALONE: Final = 1e-7
"""Determinant of the correlations of what is fitted below which its parts cannot be told apart."""
_UNSURE: Final = 0.002
"""Standard error of a constant above which it is not told."""


@derived
def _followed(batch: Batch) -> Bools:
    """Bool ``[n_selected]``: tokens with another one of their sequence behind them."""
    splits = selected_splits(batch)
    inner = np.ones(int(splits[-1]), np.bool_)
    inner[splits[1:][np.diff(splits) > 0] - 1] = False
    return inner


def _behind(values: Floats) -> Floats:
    """The value of the next selected token ``[n_selected]``; what stands behind the last is not to be read."""
    return np.append(values[1:], values[:1])


def _sums(batch: Batch, pairs: Sequence[tuple[Floats, Floats]], chosen: Bools) -> Sums:
    """Sums of products of ``pairs`` over the tokens ``chosen`` at which all of them are finite."""
    fine = chosen.copy()
    for values in {id(part): part for pair in pairs for part in pair}.values():
        fine &= np.isfinite(values)
    rows = [per_sequence_sums(batch, np.where(fine, left * right, 0.0)) for left, right in pairs]
    return Sums.of(np.stack(rows), int(np.count_nonzero(fine)))


def _products(parts: Sequence[Floats]) -> list[tuple[Floats, Floats]]:
    """Each part with each that does not stand before it."""
    return [(left, right) for index, left in enumerate(parts) for right in parts[index:]]


@reduction(zero=Sums(), needs=_NEEDS)
def _advantages(batch: Batch) -> Sums:
    """Of 1, the next advantage, the next value, reward less value, and the advantage."""
    advantage, value, reward = (selected(batch, name) for name in ("advantage", "old_value", "token_reward"))
    parts = (np.ones(len(value)), _behind(advantage), _behind(value), reward - value, advantage)
    with np.errstate(invalid="ignore", over="ignore"):
        return _sums(batch, _products(parts), _followed(batch))


@reduction(zero=Sums(), needs=_NEEDS)
def _returns(batch: Batch) -> Sums:
    """Of the next return less its value, the next value, and return less reward; and of the return less its value squared."""
    returns, value, reward = (selected(batch, name) for name in ("return", "old_value", "token_reward"))
    with np.errstate(invalid="ignore", over="ignore"):
        ahead = returns - value
        parts = (_behind(ahead), _behind(value), returns - reward)
        return _sums(batch, [*_products(parts), (ahead, ahead)], _followed(batch))


def _square(sums: Sums, size: int) -> Floats:
    """The matrix of products of ``size`` parts, float64 ``[size, size]``; NaN where a sum is not finite."""
    made = np.empty((size, size))
    upper = np.triu_indices(size)
    made[upper] = [sums[index].value for index in range(len(upper[0]))]
    made.T[upper] = made[upper]
    return made


def _solved(products: Floats, n: int) -> tuple[Floats, Floats, float] | None:
    """Least squares of the last part on the others: coefficients, their standard errors, and the sum of squares left over."""
    inner, outer = products[:-1, :-1], products[:-1, -1]
    size = np.sqrt(np.diag(inner))
    if not np.isfinite(products).all() or n <= len(outer) or not (size > 0.0).all():
        return None
    scaled = inner / np.outer(size, size)
    if np.linalg.det(scaled) < _ALONE:
        return None
    inverse = np.linalg.inv(scaled) / np.outer(size, size)
    found: Floats = inverse @ outer
    left = max(float(products[-1, -1] - 2.0 * found @ outer + found @ inner @ found), 0.0)
    errors: Floats = np.sqrt(np.diag(inverse) * left / (n - len(outer)))
    return found, errors, left


Constants = tuple[float, float, float, float]
"""gamma, lambda, scale, and the root mean square left over as a share of that of the advantages; NaN where not known."""
_NOTHING: Final[Constants] = (math.nan, math.nan, math.nan, math.nan)


def _of_advantages(sums: Sums) -> Constants:
    if sums.count < 8:
        return _NOTHING
    products, n = _square(sums, 5), sums.count
    mean = products[0] / n
    centred: NDArray[np.float64] = products[1:, 1:] - n * np.outer(mean[1:], mean[1:])
    solved = _solved(centred, n)
    if solved is None or centred[-1, -1] <= 0.0:
        return _NOTHING
    (both, value, scale), errors, left = solved
    share = math.sqrt(left / centred[-1, -1])
    if share > _EXACT or scale == 0.0:
        return math.nan, math.nan, math.nan, share
    gamma = value / scale
    unsure = max(errors[1] / abs(scale), errors[2] * abs(gamma / scale), errors[0]) > _UNSURE or gamma <= 0.0
    return math.nan if unsure else gamma, math.nan if unsure else both / gamma, scale, share


def _of_returns(sums: Sums) -> Constants:
    if sums.count < 8:
        return _NOTHING
    solved, size = _solved(_square(sums, 3), sums.count), sums[6].value
    if solved is None or not size > 0.0:
        return _NOTHING
    (both, gamma), errors, left = solved
    share = math.sqrt(left / size)
    unsure = share > _EXACT or float(errors.max()) > _UNSURE or gamma <= 0.0
    return math.nan if unsure else gamma, math.nan if unsure else both / gamma, 1.0, share


def _part(of: Callable[[Sums], Constants], index: int) -> Callable[[Sums], float]:
    return lambda sums: float(of(sums)[index])


_WHERE: Final = "over trained tokens with another one behind them in the sequence; tokens that are not trained on are skipped"
for _prefix, _sums_of, _constants, _what, _line in (
    ("advantage", _advantages, _of_advantages, "advantage", "A_t = c + gamma lambda A_t+1 + s (R_t + gamma V_t+1 - V_t)"),
    ("return", _returns, _of_returns, "return less old value", "G_t = R_t + gamma V_t+1 + gamma lambda (G_t+1 - V_t+1)"),
):
    for _index, _name, _words in (
        (0, "gamma", "gamma, as it follows from the recursion of GAE, by least squares"),
        (1, "lam", "lambda, as it follows from the recursion of GAE, by least squares"),
        (2, "scale", "What advantages were multiplied by after GAE: below 0 where their sign is turned"),
        (3, "residual", "Root mean square that the recursion of GAE leaves over at best, as a share of that of the advantages"),
    ):  # fmt: skip
        if (_prefix, _name) == ("return", "scale"):
            continue
        _told = "" if _name == "residual" else f"; nothing where more than {_EXACT:.0%} is left over or it cannot be told"
        metric(
            f"{_prefix}.gae_{_name}", _sums_of, _part(_constants, _index), unit="1", source=_SOURCE,
            formula=f"least squares: {_line}",
            doc=f"{_words}: {_what} from token_reward and old_value, {_WHERE}{_told}.",
        )  # fmt: skip


def _moments(batch: Batch, left: Floats, right: Floats, chosen: Bools) -> Sums:
    one = np.ones(len(left))
    return _sums(batch, [(left, one), (right, one), (left, left), (right, right), (left, right)], chosen)


def _offset(offset: int) -> Callable[[Batch], Sums]:
    """Moments of the advantage and the return less the old value, where returns are taken from the next or previous token."""

    def sums(batch: Batch) -> Sums:
        advantage, returns, value = (selected(batch, name) for name in _PAIR)
        followed = _followed(batch)
        with np.errstate(invalid="ignore", over="ignore"):
            if offset == 0:
                return _moments(batch, advantage, returns - value, np.ones(len(value), np.bool_))
            if offset == 1:
                return _moments(batch, advantage, _behind(returns) - value, followed)
            return _moments(batch, _behind(advantage), returns - _behind(value), followed)

    return sums


for _offset_of, _stem, _which in ((0, "", "the same"), (1, "_next", "the next"), (-1, "_previous", "the previous")):
    metric(
        f"advantage.return{_stem}_corr", reduction(zero=Sums(), needs=_PAIR)(_offset(_offset_of)), correlation, unit="1",
        source=_SOURCE, formula=f"corr_T(A_t, G_{'t' if not _offset_of else f't{_offset_of:+d}'} - V_old_t)",
        doc=f"Correlation of the advantage with the return of {_which} trained token less the old value: 1 where the one is made "
        "from the other, also after whitening.",
    )  # fmt: skip


@reduction(zero=Sums(), needs=_PAIR)
def _late(batch: Batch) -> Sums:
    """Moments of the advantage at the next token and the return less the old value at this one."""
    advantage, returns, value = (selected(batch, name) for name in _PAIR)
    with np.errstate(invalid="ignore", over="ignore"):
        return _moments(batch, _behind(advantage), returns - value, _followed(batch))


@reduction(zero=Sums(), needs=_PAIR)
def _early(batch: Batch) -> Sums:
    """Moments of the advantage and the return less the old value of the next token."""
    advantage, returns, value = (selected(batch, name) for name in _PAIR)
    with np.errstate(invalid="ignore", over="ignore"):
        return _moments(batch, advantage, _behind(returns - value), _followed(batch))


for _name, _of, _which in (("late", _late, "previous"), ("early", _early, "next")):
    metric(
        f"advantage.{_name}_corr", _of, correlation, unit="1", source=_SOURCE,
        formula=f"corr_T(A_t, G_t{'-1' if _name == 'late' else '+1'} - V_old_t{'-1' if _name == 'late' else '+1'})",
        doc=f"Correlation of the advantage with return less old value of the {_which} trained token: 1 where advantages stand "
        f"one token too {_name}.",
    )  # fmt: skip


@sequence_value("first_advantage", needs=("advantage",), optional=("response_mask", "is_padding"))
def first_advantage(batch: Batch) -> Floats:
    """Advantage at the first trained token of each sequence, float64 ``[n_sequences]``."""
    return of_rows(batch, first_tokens(batch, "advantage").astype(np.float64), np.nan)


@sequence_value("first_return_gap", needs=("return", "old_value"), optional=("response_mask", "is_padding"))
def first_return_gap(batch: Batch) -> Floats:
    """Return less old value at the first trained token of each sequence, float64 ``[n_sequences]``."""
    gap = first_tokens(batch, "return").astype(np.float64) - first_tokens(batch, "old_value")
    return of_rows(batch, gap, np.nan)


_FIRST: Final = ("per_sequence.first_advantage", "per_sequence.first_return_gap")


def _firsts(*, in_order: bool) -> Callable[[Batch], Sums]:
    def sums(batch: Batch) -> Sums:
        left, right = (batch.columns[name].astype(np.float64) for name in _FIRST)
        fine = np.isfinite(left) & np.isfinite(right)
        left, right = left[fine], right[fine]
        if in_order:
            left, right = np.sort(left), np.sort(right)
        return Sums.of(np.stack([left, right, left * left, right * right, left * right]), len(left))

    return sums


for _stem, _in_order, _doc in (
    ("first", False, "at the first trained token of each sequence"),
    ("first_sorted", True, "at the first trained tokens, both sorted over the batch: 1 where they stand in other rows"),
):  # fmt: skip
    _of_firsts = reduction(zero=Sums(), needs=_FIRST, level="rollout")(_firsts(in_order=_in_order))
    metric(
        f"advantage.{_stem}_corr", _of_firsts, correlation, unit="1", source=_SOURCE,
        formula="corr_i(sort(A_i1), sort(G_i1 - V_old_i1))" if _in_order else "corr_i(A_i1, G_i1 - V_old_i1)",
        doc=f"Correlation of the advantage with return less old value {_doc}.",
    )  # fmt: skip
