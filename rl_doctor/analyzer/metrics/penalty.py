"""The KL penalty that the recorded rewards have in them: which estimator, with which coefficient, over which tokens."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import Bools, Floats, real_rows, selection, spread
from rl_doctor.analyzer.formulas import kl
from rl_doctor.analyzer.formulas.segments import segment_sums
from rl_doctor.analyzer.moments import correlation, slope
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Sum, Sums, mean
from rl_doctor.store.batch import Batch

_FORMS: Final = ("k1", "k2", "k3", "abs")
_SOURCE: Final = "arXiv:1909.08593, section 2.1: the reward of a token is less beta times its log-ratio to the reference"
_NEEDS: Final = ("token_reward", "ref_logprob", "old_logprob|logprob")
_ROWS: Final = ("reward", "score", "ref_logprob", "old_logprob|logprob")
_LEAST: Final = 8
"""Sequences of a step that a penalty per sequence is fitted to, at least."""


def _ahead(batch: Batch) -> Floats:
    """Log-ratio to the reference of the policy that sampled, float64 ``[n_tokens]``."""
    own = batch.columns["old_logprob"] if batch.get("old_logprob") is not None else batch.columns["logprob"]
    return np.asarray(own.astype(np.float64) - batch.columns["ref_logprob"], np.float64)


def _form(name: str, ahead: Floats) -> Floats:
    if name == "k1":
        return ahead
    return kl.k2(ahead) if name == "k2" else kl.k3(-ahead) if name == "k3" else np.abs(ahead)


def _stored(batch: Batch) -> Bools:
    return spread(batch, real_rows(batch))


def _inner(batch: Batch) -> Bools:
    """Bool ``[n_tokens]``: trained tokens but the last of each row, which holds the reward of the response."""
    chosen = selection(batch)
    index = np.flatnonzero(chosen)
    last = np.searchsorted(index, batch.splits[1:]) - 1
    filled = segment_sums(chosen, batch.splits) > 0
    inner = chosen.copy()
    inner[index[last[filled]]] = False
    return inner


def _against(batch: Batch, chosen: Bools) -> Sums:
    """Sums over tokens of the reward squared and, for each estimator f, of f times the reward and of f squared."""
    ahead, reward = _ahead(batch), batch.columns["token_reward"].astype(np.float64)
    fine = chosen & np.isfinite(ahead) & np.isfinite(reward)
    ahead, reward = ahead[fine], reward[fine]
    forms = [_form(name, ahead) for name in _FORMS]
    rows = [reward * reward, *(part for form in forms for part in (form * reward, form * form))]
    return Sums(tuple(Sum.of(row, len(reward)) for row in rows))


@reduction(zero=Sums(), needs=_NEEDS)
def _inside(batch: Batch) -> Sums:
    return _against(batch, _inner(batch))


@reduction(zero=Sums(), needs=(*_NEEDS, "response_mask"))
def _outside(batch: Batch) -> Sums:
    return _against(batch, _stored(batch) & ~selection(batch))


def _explained(form: int) -> Callable[[Sums], float]:
    def final(s: Sums) -> float:
        size, product, square = s[0].value, s[1 + 2 * form].value, s[2 + 2 * form].value
        return product * product / (size * square) if size * square > 0.0 else math.nan

    return final


def _coefficient(form: int) -> Callable[[Sums], float]:
    def final(s: Sums) -> float:
        square = s[2 + 2 * form].value
        return -s[1 + 2 * form].value / square if square > 0.0 else math.nan

    return final


for _prefix, _of, _where in (
    ("", _inside, "trained tokens but the last of each response"),
    ("unmasked_", _outside, "stored tokens that are not trained on"),
):
    metric(
        f"penalty.{_prefix}size", _of, lambda s: math.sqrt(s[0].mean) if s.count else math.nan, unit="reward", source=_SOURCE,
        formula="sqrt(mean token_reward^2)",
        doc=f"Root mean square of token_reward over {_where}.",
    )  # fmt: skip
    for _index, _name in enumerate(_FORMS):
        metric(
            f"penalty.{_prefix}explained_{_name}", _of, _explained(_index), unit="1", source=_SOURCE,
            formula=f"(sum token_reward {_name}(y))^2 / (sum token_reward^2 sum {_name}(y)^2)",
            doc=f"Share of the square of token_reward that a multiple of {_name} to the reference explains, over {_where}.",
        )  # fmt: skip
        metric(
            f"penalty.{_prefix}coef_{_name}", _of, _coefficient(_index), unit="1", source=_SOURCE,
            formula=f"-sum token_reward {_name}(y) / sum {_name}(y)^2",
            doc=f"Coefficient of a {_name} penalty in token_reward, by least squares over {_where}; positive for a penalty.",
        )  # fmt: skip


def _per_response(batch: Batch, form: str, *, masked: bool) -> Sums:
    """Moments over sequences of the sum of a KL estimator and of reward - score, where that is not 0."""
    moved = batch.columns["reward"] - batch.columns["score"]
    fine = real_rows(batch) & np.isfinite(moved) & (moved != 0.0)
    if not fine.any():
        return Sums()
    ahead = _ahead(batch)
    term = np.where((selection(batch) if masked else _stored(batch)) & np.isfinite(ahead), _form(form, ahead), 0.0)
    total = segment_sums(term, batch.splits)
    x, y = total[fine], moved[fine]
    return Sums.of(np.stack([x, y, x * x, y * y, x * y]), len(x))


def _declare(form: str, *, masked: bool) -> None:
    @reduction(zero=Sums(), needs=_ROWS)
    def moments(batch: Batch) -> Sums:
        return _per_response(batch, form, masked=masked)

    which = "trained" if masked else "all stored"
    stem = f"penalty.response_{'' if masked else 'all_'}{form}"
    metric(
        f"{stem}_corr", moments, lambda s: -correlation(s) if s.count >= _LEAST else math.nan, unit="1", source=_SOURCE,
        formula=f"-corr(sum_t {form}(y), R - score), R != score",
        doc=f"Minus the correlation of reward - score with the sum of {form} over {which} tokens: 1 where that is the penalty.",
    )  # fmt: skip
    metric(
        f"{stem}_coef", moments, lambda s: -slope(s) if s.count >= _LEAST else math.nan, unit="1", source=_SOURCE,
        formula=f"-cov(sum_t {form}(y), R - score) / var(sum_t {form}(y)), R != score",
        doc=f"Coefficient of the sum of {form} over {which} tokens in reward - score.",
    )  # fmt: skip


for _name in ("k1", "k3"):
    _declare(_name, masked=True)
    _declare(_name, masked=False)


@reduction(zero=Sum(), needs=_NEEDS)
def _present(batch: Batch) -> Sum:
    chosen = _inner(batch)
    return Sum.counted(int(np.count_nonzero(batch.columns["token_reward"][chosen])), int(np.count_nonzero(chosen)))


metric(
    "penalty.tokens_frac", _present, mean, unit="1", source="counting over tokens",
    formula="share_t[token_reward != 0]",
    doc="Share of trained tokens but the last of each response with a reward of their own.",
)  # fmt: skip
