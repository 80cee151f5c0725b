"""Every metric again, in plain Python over plain rows: what the analyzer is held against.

A reference takes the rows of one step and the configuration. ``REFERENCES`` lists them by metric name;
``reference_rollouts`` adds those of generation batches.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

import mpmath

from rl_doctor.schema import TOKEN_COLUMNS, RunConfig
from tests.unit.analyzer.memory import Row, length

mpmath.mp.dps = 50

Reference = Callable[[list[Row], RunConfig], float]
REFERENCES: dict[str, Reference] = {}


def reference(*names: str) -> Callable[[Reference], Reference]:
    def register(function: Reference) -> Reference:
        for name in names:
            assert name not in REFERENCES, name
            REFERENCES[name] = function
        return function

    return register


def mean(values: Iterable[float]) -> float:
    found = list(values)
    if not found:
        return math.nan
    if all(math.isfinite(value) for value in found):
        return float(sum(map(Fraction, found)) / len(found))
    return sum(found) / len(found)


def std(values: list[float], ddof: int) -> float:
    if len(values) <= ddof:
        return math.nan
    if not all(math.isfinite(value) for value in values):
        return math.nan
    centre = sum(map(Fraction, values)) / len(values)
    return math.sqrt(sum((Fraction(value) - centre) ** 2 for value in values) / (len(values) - ddof))


def least(values: list[float]) -> float:
    return math.nan if not values or any(map(math.isnan, values)) else min(values)


def most(values: list[float]) -> float:
    return math.nan if not values or any(map(math.isnan, values)) else max(values)


def chosen(row: Row) -> list[int]:
    """Positions trained on."""
    if row.get("is_padding"):
        return []
    return [i for i in range(length(row)) if row.get("response_mask", [True] * length(row))[i]]


def tokens(rows: list[Row], *names: str) -> list[Any]:
    picked = [tuple(row[name][i] for name in names) for row in rows for i in chosen(row)]
    return [item[0] for item in picked] if len(names) == 1 else picked


def exp(x: float) -> float:
    return float(mpmath.exp(x))


KERNELS: dict[str, Callable[[float], float]] = {
    "k1": lambda x: -x,
    "k2": lambda x: float(mpmath.mpf(x) ** 2 / 2),
    "k3": lambda x: math.inf if x == math.inf else float(mpmath.exp(x) - 1 - mpmath.mpf(x)),
    "abs": abs,
}


def clamp(x: float, bound: float | None) -> float:
    return x if bound is None or math.isnan(x) else min(max(x, -bound), bound)


def log_ratios(rows: list[Row], config: RunConfig) -> list[float]:
    return [clamp(new - old, config.log_ratio_clamp) for new, old in tokens(rows, "logprob", "old_logprob")]


def first(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["epoch"] == 0 and row["minibatch"] == 0 and row["step"] == row["started"]]


def later(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["epoch"] > 0 or row["minibatch"] > 0 or row["step"] > row["started"]]


def quantile(values: list[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(q * len(ordered)), len(ordered) - 1)] if ordered else math.nan


def share(flags: Iterable[bool]) -> float:
    return mean([1.0 if flag else 0.0 for flag in flags])


@reference("policy.ratio_mean")
def _(rows: list[Row], config: RunConfig) -> float:
    return mean(exp(x) for x in log_ratios(rows, config))


@reference("policy.ratio_min")
def _(rows: list[Row], config: RunConfig) -> float:
    return least([exp(x) for x in log_ratios(rows, config)])


@reference("policy.ratio_max")
def _(rows: list[Row], config: RunConfig) -> float:
    return most([exp(x) for x in log_ratios(rows, config)])


for _name, _q in (("p01", 0.01), ("p50", 0.5), ("p99", 0.99)):
    REFERENCES[f"policy.ratio_{_name}"] = lambda rows, config, q=_q: exp(quantile(log_ratios(rows, config), q))
REFERENCES["policy.ratio_zero_frac"] = lambda rows, config: share(x == 0 for x in log_ratios(rows, config))
for _name, _kernel in KERNELS.items():
    REFERENCES[f"policy.kl_old_{_name}"] = lambda rows, config, k=_kernel: mean(k(x) for x in log_ratios(rows, config))
for _prefix, _rows in (("first", first), ("later", later)):
    REFERENCES[f"policy.{_prefix}_ratio_mean"] = lambda rows, config, of=_rows: mean(exp(x) for x in log_ratios(of(rows), config))
    REFERENCES[f"policy.{_prefix}_ratio_abs_mean"] = lambda rows, config, of=_rows: mean(
        abs(x) for x in log_ratios(of(rows), config)
    )
    REFERENCES[f"policy.{_prefix}_ratio_abs_p99"] = lambda rows, config, of=_rows: quantile(
        [abs(x) for x in log_ratios(of(rows), config)], 0.99
    )
    REFERENCES[f"policy.{_prefix}_kl_k3"] = lambda rows, config, of=_rows: mean(
        KERNELS["k3"](x) for x in log_ratios(of(rows), config)
    )
    REFERENCES[f"policy.{_prefix}_zero_frac"] = lambda rows, config, of=_rows: share(x == 0 for x in log_ratios(of(rows), config))
    REFERENCES[f"policy.{_prefix}_outside_frac"] = lambda rows, config, of=_rows: share(
        not 1 - config.clip_low <= exp(x) <= 1 + config.clip_high for x in log_ratios(of(rows), config)
    )


REFERENCES["policy.outside_frac"] = lambda rows, config: share(
    not 1 - config.clip_low <= exp(x) <= 1 + config.clip_high for x in log_ratios(rows, config)
)
REFERENCES["policy.outside_frac_low"] = lambda rows, config: share(exp(x) < 1 - config.clip_low for x in log_ratios(rows, config))
REFERENCES["policy.outside_frac_high"] = lambda rows, config: share(
    exp(x) > 1 + config.clip_high for x in log_ratios(rows, config)
)


def surrogates(rows: list[Row], config: RunConfig) -> list[tuple[float, float, float, float]]:
    """(unclipped loss, clipped loss, ratio, advantage) per token."""
    found = []
    for x, a in zip(log_ratios(rows, config), tokens(rows, "advantage"), strict=True):
        r = exp(x)
        found.append((-a * r, -a * min(max(r, 1 - config.clip_low), 1 + config.clip_high), r, a))
    return found


REFERENCES["policy.clip_frac"] = lambda rows, config: share(cut > plain for plain, cut, _, _ in surrogates(rows, config))
REFERENCES["policy.clip_frac_low"] = lambda rows, config: share(
    cut > plain and a < 0 for plain, cut, _, a in surrogates(rows, config)
)
REFERENCES["policy.clip_frac_high"] = lambda rows, config: share(
    cut > plain and a > 0 for plain, cut, _, a in surrogates(rows, config)
)
REFERENCES["policy.clip_frac_dual"] = lambda rows, config: share(
    a < 0 and max(plain, cut) > -a * config.dual_clip for plain, cut, _, a in surrogates(rows, config)
)


def ref_term(name: str, new: float, ref: float, config: RunConfig) -> float:
    x = ref - new
    return clamp(KERNELS["k3"](clamp(x, config.kl_input_clamp)), config.kl_output_clamp) if name == "k3" else KERNELS[name](x)


def ref_mean(rows: list[Row], config: RunConfig, name: str) -> float:
    return mean(ref_term(name, new, ref, config) for new, ref in tokens(rows, "logprob", "ref_logprob"))


for _name in KERNELS:
    REFERENCES[f"ref.kl_{_name}"] = lambda rows, config, n=_name: ref_mean(rows, config, n)
    REFERENCES[f"ref.kl_first_{_name}"] = lambda rows, config, n=_name: ref_mean(first(rows), config, n)
REFERENCES["ref.kl"] = lambda rows, config: ref_mean(rows, config, config.kl_estimator)


def token_losses(row: Row, config: RunConfig, *, total: bool) -> list[float]:
    found = []
    for i, (plain, cut, _, a) in zip(chosen(row), surrogates([row], config), strict=True):
        loss = max(plain, cut)
        if a < 0:
            loss = min(loss, -a * config.dual_clip)
        loss *= row["is_weight"][i]
        if total:
            loss -= config.entropy_coef * row["entropy"][i]
            loss += config.kl_coef * ref_term(config.kl_estimator, row["logprob"][i], row["ref_logprob"][i], config)
        found.append(loss)
    return found


def aggregate(rows: list[Row], config: RunConfig, how: str, *, total: bool = False) -> float:
    per_row = [(row, losses) for row in rows if (losses := token_losses(row, config, total=total))]
    if how == "token-mean":
        return mean(loss for _, losses in per_row for loss in losses)
    if how == "seq-mean-token-mean":
        return mean(mean(losses) for _, losses in per_row)
    if how == "seq-mean-token-sum":
        return mean(sum(losses) for _, losses in per_row)
    return mean(sum(losses) / row["loss_scale_factor"] for row, losses in per_row)


REFERENCES["policy.loss_pg"] = lambda rows, config: aggregate(rows, config, config.loss_agg)
REFERENCES["policy.loss_total"] = lambda rows, config: aggregate(rows, config, config.loss_agg, total=True)
for _how in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum"):
    REFERENCES[f"policy.loss_pg_{_how.replace('-', '_')}"] = lambda rows, config, how=_how: aggregate(rows, config, how)
for _name, _column in (
    ("policy.entropy", "entropy"),
    ("policy.old_entropy", "old_entropy"),
    ("policy.mean_logprob", "logprob"),
    ("policy.mean_old_logprob", "old_logprob"),
):
    REFERENCES[_name] = lambda rows, _, column=_column: mean(tokens(rows, column))
for _prefix, _column in (("adv", "advantage"), ("return", "return")):
    REFERENCES[f"{_prefix}.mean"] = lambda rows, _, column=_column: mean(tokens(rows, column))
    REFERENCES[f"{_prefix}.std"] = lambda rows, _, column=_column: std(tokens(rows, column), 1)
    REFERENCES[f"{_prefix}.min"] = lambda rows, _, column=_column: least(tokens(rows, column))
    REFERENCES[f"{_prefix}.max"] = lambda rows, _, column=_column: most(tokens(rows, column))


def row_values(rows: list[Row], column: str) -> list[list[float]]:
    return [values for row in rows if (values := tokens([row], column))]


REFERENCES["adv.abs_mean"] = lambda rows, _: mean(abs(a) for a in tokens(rows, "advantage"))
REFERENCES["adv.zero_frac"] = lambda rows, _: share(a == 0 for a in tokens(rows, "advantage"))
REFERENCES["adv.sequence_mean"] = lambda rows, _: mean(mean(values) for values in row_values(rows, "advantage"))
REFERENCES["adv.varying_frac"] = lambda rows, _: share(len(set(values)) > 1 for values in row_values(rows, "advantage"))


def value_errors(row: tuple[float, float, float], clip: float) -> tuple[float, float]:
    """Squared errors of the value and of the clipped value; NaN where any is."""
    value, old, returns = row
    if any(map(math.isnan, row)):
        return math.nan, math.nan
    return (value - returns) ** 2, (min(max(value, old - clip), old + clip) - returns) ** 2


@reference("value.loss")
def value_loss(rows: list[Row], config: RunConfig) -> float:
    return mean(0.5 * max(value_errors(row, config.value_clip)) for row in tokens(rows, "value", "old_value", "return"))


@reference("value.clip_frac")
def value_clip_frac(rows: list[Row], config: RunConfig) -> float:
    pairs = [value_errors(row, config.value_clip) for row in tokens(rows, "value", "old_value", "return")]
    return mean(math.nan if math.isnan(plain) else float(clipped > plain) for plain, clipped in pairs)


@reference("value.explained_var")
def explained_var(rows: list[Row], _: RunConfig) -> float:
    returns = tokens(rows, "return")
    errors = [gained - old for gained, old in tokens(rows, "return", "old_value")]
    spread = std(returns, 0)
    return 1.0 - std(errors, 0) ** 2 / spread**2 if spread > 0 else math.nan


REFERENCES["value.mean"] = lambda rows, _: mean(tokens(rows, "value"))


def numbers(rows: list[Row], column: str) -> list[float]:
    return [float(row[column]) for row in rows if row[column] is not None and not math.isnan(row[column])]


def gae(row: Row, config: RunConfig) -> list[float]:
    positions = chosen(row)
    advantages: list[float] = []
    following, carried = 0.0, 0.0
    for i in reversed(positions):
        reward = row["token_reward"][i] if "token_reward" in row else (row["reward"] if i == positions[-1] else 0.0)
        delta = reward + config.gamma * following - row["old_value"][i]
        carried = delta + config.gamma * config.lam * carried
        following = row["old_value"][i]
        advantages.append(carried)
    return advantages[::-1]


def gae_pairs(rows: list[Row], config: RunConfig) -> list[tuple[float, float]]:
    return [pair for row in rows for pair in zip(tokens([row], "advantage"), gae(row, config), strict=False)]


REFERENCES["advantage.fit_gae_mean"] = lambda rows, config: mean(abs(a - b) for a, b in gae_pairs(rows, config))
REFERENCES["advantage.fit_gae_max"] = lambda rows, config: most([abs(a - b) for a, b in gae_pairs(rows, config)])


@reference("advantage.fit_gae_corr")
def _(rows: list[Row], config: RunConfig) -> float:
    x, y = zip(*gae_pairs(rows, config), strict=True) if gae_pairs(rows, config) else ((), ())
    return statistics.correlation(x, y) if len(set(x)) > 1 and len(set(y)) > 1 else math.nan


def lags(rows: list[Row]) -> list[float]:
    return [
        float(row["policy_version"] - row["weight_version"])
        for row in rows
        if not row["is_padding"] and row["policy_version"] is not None and row["weight_version"] is not None
    ]


def token_lags(rows: list[Row]) -> list[float]:
    return [
        float(row["policy_version"] - version)
        for row in rows
        if row["policy_version"] is not None
        for version in tokens([row], "token_version")
    ]


REFERENCES["stale.mean"] = lambda rows, _: mean(lags(rows))
REFERENCES["stale.max"] = lambda rows, _: most(lags(rows))
REFERENCES["stale.min"] = lambda rows, _: least(lags(rows))
REFERENCES["stale.token_mean"] = lambda rows, _: mean(token_lags(rows))
REFERENCES["stale.token_max"] = lambda rows, _: most(token_lags(rows))


def real(rows: list[Row]) -> list[Row]:
    return [row for row in rows if not row["is_padding"]]


REFERENCES["optim.grad_norm"] = lambda rows, _: mean(numbers(real(rows), "grad_norm"))
REFERENCES["optim.grad_norm_max"] = lambda rows, _: most(numbers(real(rows), "grad_norm"))
REFERENCES["optim.learning_rate"] = lambda rows, _: mean(numbers(real(rows), "learning_rate"))
REFERENCES["optim.clip_coef"] = lambda rows, config: mean(
    min(1.0, config.max_grad_norm / (norm + 1e-6)) for norm in numbers(real(rows), "grad_norm")
)
REFERENCES["update.epochs"] = lambda rows, _: float(len({row["epoch"] for row in real(rows)}))
REFERENCES["update.minibatches"] = lambda rows, _: float(
    len({(row["epoch"], row["minibatch"], row["started"]) for row in real(rows)})
)
for _column in (known.name for known in TOKEN_COLUMNS if known.dtype == "float32"):
    REFERENCES[f"numerics.nonfinite.{_column}"] = lambda rows, _, column=_column: float(
        sum(not math.isfinite(value) for value in tokens(rows, column))
    )
    REFERENCES[f"numerics.nonfinite_stored.{_column}"] = lambda rows, _, column=_column: float(
        sum(not math.isfinite(value) for row in rows for value in row[column])
    )
    if _column != "rollout_logprob":
        REFERENCES[f"numerics.unknown.{_column}"] = lambda rows, _, column=_column: float(
            sum(value is None for value in tokens(rows, column))
        )
