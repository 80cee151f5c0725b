"""Which estimator reproduces the recorded advantages: |recorded - recomputed| for each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import Bools, Floats, derived, per_sequence_counts, selected, selected_splits, token_sum
from rl_doctor.analyzer.formulas import advantage, returns
from rl_doctor.analyzer.grouping import groups
from rl_doctor.analyzer.metrics.advantage import PER_SEQUENCE
from rl_doctor.analyzer.moments import correlation, moments, std
from rl_doctor.analyzer.registry import Reduction, metric, reduction
from rl_doctor.analyzer.states import Extremes, Sum, Sums, mean
from rl_doctor.store.batch import Batch

EPSILONS: Final = {"eps4": 1e-4, "eps6": 1e-6, "eps8": 1e-8, "eps9": 1e-9}
NEEDS: Final = ("reward", "group", PER_SEQUENCE)
FORMULAS: Final[dict[str, Callable[[Batch], Floats | None]]] = {}
"""Advantage of the rows of ``recorded`` by each formula, computed once per batch; None where the configuration does not tell."""
_SEVERAL: Final = "over the sequences with a token trained on, groups of one left out"


def _scaled(batch: Batch, scope: str, ddof: int, eps: float) -> Floats:
    """GRPO's advantage per grouped row, in the order of ``groups(batch, "reward")``."""
    found = groups(batch, "reward")
    key = ("deviation", scope, ddof)
    if key not in batch.scratch:
        if scope == "group":
            batch.scratch[key] = found.spread(advantage.group_deviation(found.squares, found.sizes, ddof))
        else:
            batch.scratch[key] = np.full(len(found.values), std(moments(found.values), ddof))
    return advantage.grpo_advantage(found.centred, batch.scratch[key], eps)


def _rloo(batch: Batch) -> Floats:
    found = groups(batch, "reward")
    return advantage.rloo_advantage(found.centred, np.repeat(found.sizes, found.sizes))


def _dr_grpo(batch: Batch) -> Floats:
    return groups(batch, "reward").centred


def _whitened_rloo(batch: Batch, ddof: int, eps: float) -> Floats:
    """RLOO's advantage, standardised over the whole batch."""
    plain = _rloo(batch)
    sums = moments(plain)
    return advantage.grpo_advantage(plain - sums[0].mean, np.full(len(plain), std(sums, ddof)), eps)


def _configured(batch: Batch) -> Floats | None:
    """The advantage that the configuration asks for, or None where it does not say enough."""
    config = batch.info.config
    if config.adv_estimator == "dr_grpo" or (config.adv_estimator == "grpo" and config.adv_norm == "none"):
        return _dr_grpo(batch)
    if config.adv_estimator == "rloo" and config.adv_norm in (None, "none"):
        return _rloo(batch)
    if config.adv_ddof is None or config.adv_eps is None:
        return None
    if config.adv_estimator == "rloo" and config.adv_norm == "batch":
        return _whitened_rloo(batch, config.adv_ddof, config.adv_eps)
    scope = config.adv_norm or "group"
    if config.adv_estimator != "grpo" or scope not in ("group", "batch"):
        return None
    return _scaled(batch, scope, config.adv_ddof, config.adv_eps)


@derived
def _judged(batch: Batch) -> tuple[Bools, Floats]:
    """Which grouped rows have a recorded advantage and are in groups of two or more, and that advantage."""
    found = groups(batch, "reward")
    told = batch.columns[PER_SEQUENCE][found.rows]
    rows = ~np.isnan(told) & np.repeat(found.sizes > 1, found.sizes)
    return rows, told[rows].astype(np.float64)


def judged(batch: Batch) -> Bools:
    """Which rows of ``groups(batch, "reward")`` have a recorded advantage and are in groups of two or more, bool ``[n]``."""
    return _judged(batch)[0]


def recorded(batch: Batch) -> Floats:
    """Recorded advantage of the rows that have one, in groups of two or more, float64 ``[n]``."""
    return _judged(batch)[1]


def _declare(name: str, needs: tuple[str, ...], compute: Callable[[Batch], Floats | None], source: str, formula: str) -> None:
    @derived
    def recomputed(batch: Batch) -> Floats | None:
        found = compute(batch)
        return None if found is None else found[_judged(batch)[0]]

    @derived
    def residuals(batch: Batch) -> Floats:
        expected = recomputed(batch)
        return np.empty(0) if expected is None else np.abs(recorded(batch) - expected)

    FORMULAS[name] = recomputed

    @reduction(zero=Sum(), needs=needs, level="rollout")
    def total(batch: Batch) -> Sum:
        return Sum.of(residuals(batch))

    @reduction(zero=Extremes(), needs=needs, level="rollout")
    def ends(batch: Batch) -> Extremes:
        return Extremes.of(residuals(batch))

    _register(name, total, ends, source, formula, f"{formula}, {_SEVERAL}")


def _register(name: str, total: Reduction, ends: Reduction, source: str, formula: str, over: str) -> None:
    prefix = f"advantage.fit_{name}"
    metric(
        f"{prefix}_mean",
        total,
        mean,
        unit="1",
        source=source,
        formula=f"mean |A - A'|, A' = {formula}",
        doc=f"Mean of |recorded - recomputed|: {over}.",
    )
    metric(
        f"{prefix}_max",
        ends,
        lambda s: s.max,
        unit="1",
        source=source,
        formula=f"max |A - A'|, A' = {formula}",
        doc=f"Largest |recorded - recomputed|: {over}.",
    )


_GRPO: Final = "GRPO, arXiv:2402.03300, section 4.1.2"


def _declare_grpo(scope: str, ddof: int, label: str, eps: float) -> None:
    _declare(
        f"grpo_{scope}_ddof{ddof}_{label}",
        NEEDS,
        lambda batch: _scaled(batch, scope, ddof, eps),
        _GRPO,
        f"(reward - group mean) / (std of the {scope}, ddof {ddof}, + {eps:.0e})",
    )


for _scope in ("group", "batch"):
    for _ddof in (0, 1):
        for _label, _eps in EPSILONS.items():
            _declare_grpo(_scope, _ddof, _label, _eps)
_declare("dr_grpo", NEEDS, _dr_grpo, "Dr. GRPO, arXiv:2503.20783", "reward - group mean")
_declare("rloo", NEEDS, _rloo, "RLOO, arXiv:2402.14740", "n / (n - 1) * (reward - group mean)")
_declare(
    "configured", (*NEEDS, "config.adv_estimator"), _configured, "GRPO, Dr. GRPO or RLOO, as configured",
    "the estimator, scale, ddof and eps that the configuration names (adv_norm group, batch or none; by default group)",
)  # fmt: skip


@derived
def gae(batch: Batch) -> Floats:
    """GAE at the selected tokens, ``[n_selected]``; tokens that are not trained on are skipped over, as if not there."""
    config = batch.info.config
    splits = selected_splits(batch)
    values = selected(batch, "old_value" if "old_value" in batch.columns else "value")
    if "token_reward" in batch.columns:
        rewards = selected(batch, "token_reward")
    else:
        rewards = np.zeros_like(values)
        filled = per_sequence_counts(batch) > 0
        rewards[splits[1:][filled] - 1] = batch.columns["reward"][filled]
    return returns.gae_advantage(rewards, values, splits, config.gamma or 0.0, config.lam or 0.0)


_GAE_NEEDS: Final = ("advantage", "old_value|value", "token_reward|reward", "config.gamma", "config.lam")


@derived
def _gae_residuals(batch: Batch) -> Floats:
    return np.abs(selected(batch, "advantage") - gae(batch))


@reduction(zero=Sum(), needs=_GAE_NEEDS)
def _gae_total(batch: Batch) -> Sum:
    return token_sum(batch, _gae_residuals(batch))


@reduction(zero=Extremes(), needs=_GAE_NEEDS)
def _gae_ends(batch: Batch) -> Extremes:
    return Extremes.of(_gae_residuals(batch))


@reduction(zero=Sums(), needs=_GAE_NEEDS)
def _gae_products(batch: Batch) -> Sums:
    x, y = selected(batch, "advantage"), gae(batch)
    return Sums(tuple(token_sum(batch, term) for term in (x, y, x * x, y * y, x * y)))


_GAE: Final = "GAE, arXiv:1506.02438, eq. 16"
_OVER: Final = (
    "GAE from old_value (else value) and token_reward (else the reward, on the last token trained on); other tokens skipped"
)
_register("gae", _gae_total, _gae_ends, _GAE, "sum over k of (gamma lam)^k (R_t+k + gamma V_t+k+1 - V_t+k)", _OVER)
metric(
    "advantage.fit_gae_corr", _gae_products, correlation, unit="1", source=_GAE,
    formula="corr_T(A, A')",
    doc=f"Correlation of the recorded advantage with {_OVER}; 1 also where the recorded one was whitened afterwards.",
)  # fmt: skip
