"""References of the metrics that are reduced over a generation batch: its rows, each uid once, no padding rows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

from rl_doctor.schema import RunConfig
from tests.unit.analyzer.memory import Row
from tests.unit.analyzer.reference import REFERENCES, least, mean, most, numbers, reference, share, std, tokens

__all__ = ["REFERENCES"]

for _prefix, _column in (("reward.", "reward"), ("reward.score_", "score"), ("reward.component.fmt.", "reward/fmt")):
    REFERENCES[f"{_prefix}mean"] = lambda rows, _, column=_column: mean(numbers(rows, column))
    REFERENCES[f"{_prefix}std"] = lambda rows, _, column=_column: std(numbers(rows, column), 1)
    REFERENCES[f"{_prefix}min"] = lambda rows, _, column=_column: least(numbers(rows, column))
    REFERENCES[f"{_prefix}max"] = lambda rows, _, column=_column: most(numbers(rows, column))
REFERENCES["reward.at_max_frac"] = lambda rows, _: share(r == max(numbers(rows, "reward")) for r in numbers(rows, "reward"))
REFERENCES["reward.at_min_frac"] = lambda rows, _: share(r == min(numbers(rows, "reward")) for r in numbers(rows, "reward"))


@reference("reward.distinct_frac")
def _(rows: list[Row], _: RunConfig) -> float:
    every = numbers(rows, "reward")
    return share(min(every) < r < max(every) and every.count(r) == 1 for r in every)


REFERENCES["length.limit_reward_mean"] = lambda rows, config: mean(
    numbers([row for row in rows if (row["response_length"] or 0) >= config.max_response_length], "reward")
)
REFERENCES["reward.truncated_mean"] = lambda rows, _: mean(
    numbers([row for row in rows if row["finish_reason"] == "length"], "reward")
)


def grouped(rows: list[Row], column: str) -> list[list[tuple[Row, float]]]:
    found: dict[str, list[tuple[Row, float]]] = {}
    for row in rows:
        if row["group"] is not None and row[column] is not None and not math.isnan(row[column]):
            found.setdefault(row["group"], []).append((row, row[column]))
    return list(found.values())


def values_of(group: list[tuple[Row, float]]) -> list[float]:
    return [value for _, value in group]


def several(rows: list[Row]) -> list[list[float]]:
    return [values_of(group) for group in grouped(rows, "reward") if len(group) > 1]


def within(rows: list[Row], column: str) -> float:
    return sum(std(values_of(group), 0) ** 2 * len(group) for group in grouped(rows, column))


def variance_share(rows: list[Row], config: RunConfig) -> float:
    weight = config.reward_weights or {}
    parts = {name: weight.get(name, 1.0) ** 2 * within(rows, f"reward/{name}") for name in ("fmt", "task")}
    return parts["fmt"] / sum(parts.values()) if sum(parts.values()) else math.nan


REFERENCES["reward.component.fmt.variance_share"] = variance_share


@reference("reward.component.fmt.explained")
def _(rows: list[Row], _: RunConfig) -> float:
    products = [0.0, 0.0, 0.0]
    centres = [
        {id(row): value - sum(values_of(group)) / len(group) for group in grouped(rows, column) for row, value in group}
        for column in ("reward", "reward/fmt")
    ]
    for key in centres[0].keys() & centres[1].keys():
        whole, part = centres[0][key], centres[1][key]
        products = [total + more for total, more in zip(products, (whole * whole, part * part, whole * part), strict=True)]
    return products[2] ** 2 / (products[0] * products[1]) if products[0] * products[1] > 0 else math.nan


REFERENCES["group.count"] = lambda rows, _: float(len(grouped(rows, "reward")))
REFERENCES["group.size_min"] = lambda rows, _: least([float(len(group)) for group in grouped(rows, "reward")])
REFERENCES["group.size_max"] = lambda rows, _: most([float(len(group)) for group in grouped(rows, "reward")])
REFERENCES["group.singleton_frac"] = lambda rows, _: share(len(group) == 1 for group in grouped(rows, "reward"))
REFERENCES["group.zero_std_frac"] = lambda rows, _: share(min(group) == max(group) for group in several(rows))
REFERENCES["group.std_mean"] = lambda rows, _: mean(std(group, 1) for group in several(rows))


@reference("group.near_zero_std_frac")
def _(rows: list[Row], _: RunConfig) -> float:
    every = [value for group in grouped(rows, "reward") for value in values_of(group)]
    bound = max(1e-3 * (max(every) - min(every)), 1e-6 * max(map(abs, every))) if every else 0.0
    return share(min(group) < max(group) and std(group, 1) < bound for group in several(rows))


def equal_to(rows: list[Row], which: str) -> float:
    every = [value for group in grouped(rows, "reward") for value in values_of(group)]
    flags = []
    for group in several(rows):
        same = min(group) == max(group)
        right = same and group[0] == max(every) and (max(every) > min(every) or group[0] > 0)
        flags.append(right if which == "max" else same and group[0] == min(every) and not right)
    return share(flags)


REFERENCES["group.all_max_frac"] = lambda rows, _: equal_to(rows, "max")
REFERENCES["group.all_min_frac"] = lambda rows, _: equal_to(rows, "min")


def residuals(rows: list[Row], advantage: Callable[[float, list[float]], float]) -> list[float]:
    found = []
    for group in grouped(rows, "reward"):
        for row, value in group:
            recorded = tokens([row], "advantage")
            if len(group) > 1 and recorded and not math.isnan(recorded[0]):
                found.append(abs(recorded[0] - advantage(value, values_of(group))))
    return found


def grpo(rows: list[Row], scope: str, ddof: int, eps: float) -> list[float]:
    every = [value for group in grouped(rows, "reward") for value in values_of(group)]
    return residuals(
        rows, lambda r, group: (r - statistics.fmean(group)) / (std(group if scope == "group" else every, ddof) + eps)
    )


def _fit(name: str, compute: Callable[[list[Row], RunConfig], list[float]]) -> None:
    REFERENCES[f"advantage.fit_{name}_mean"] = lambda rows, config: mean(compute(rows, config))
    REFERENCES[f"advantage.fit_{name}_max"] = lambda rows, config: most(compute(rows, config))


for _scope in ("group", "batch"):
    for _ddof in (0, 1):
        for _digits in (4, 6, 8, 9):
            _fit(
                f"grpo_{_scope}_ddof{_ddof}_eps{_digits}",
                lambda rows, _, scope=_scope, ddof=_ddof, eps=10.0**-_digits: grpo(rows, scope, ddof, eps),
            )
_fit("dr_grpo", lambda rows, _: residuals(rows, lambda r, group: r - statistics.fmean(group)))
_fit("rloo", lambda rows, _: residuals(rows, lambda r, group: r - (sum(group) - r) / (len(group) - 1)))
_fit("configured", lambda rows, config: grpo(rows, config.adv_norm, config.adv_ddof, config.adv_eps))


def completed(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["response_length"] != 0 and row["finish_reason"] != "abort"]


def reasoned(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["finish_reason"] is not None]


def at_limit(rows: list[Row], config: RunConfig) -> float:
    return share(n >= config.max_response_length for n in numbers(rows, "response_length"))


def cut_off(rows: list[Row]) -> float:
    return share(row["finish_reason"] == "length" for row in reasoned(rows))


REFERENCES["length.mean"] = lambda rows, _: mean(numbers(rows, "response_length"))
REFERENCES["length.min"] = lambda rows, _: least(numbers(rows, "response_length"))
REFERENCES["length.max"] = lambda rows, _: most(numbers(rows, "response_length"))
REFERENCES["length.mean_completed"] = lambda rows, _: mean(numbers(completed(rows), "response_length"))
REFERENCES["length.limit_frac"] = at_limit
REFERENCES["length.limit_frac_completed"] = lambda rows, config: at_limit(completed(rows), config)
REFERENCES["length.truncated_frac"] = lambda rows, _: cut_off(rows)
REFERENCES["length.truncated_frac_completed"] = lambda rows, _: cut_off(completed(rows))
REFERENCES["length.aborted_frac"] = lambda rows, _: share(
    row["response_length"] == 0 or row["finish_reason"] == "abort"
    for row in rows
    if row["response_length"] is not None or row["finish_reason"] is not None
)
REFERENCES["numerics.missing_reward_frac"] = lambda rows, _: share(math.isnan(row["reward"]) for row in completed(rows))
REFERENCES["numerics.infinite_reward_frac"] = lambda rows, _: share(math.isinf(row["reward"]) for row in rows)
REFERENCES["turns.mean"] = lambda rows, _: mean(numbers(rows, "turns"))


REFERENCES["update.passes_mean"] = lambda rows, _: mean(float(row["passes"]) for row in rows)
REFERENCES["update.passes_min"] = lambda rows, _: least([float(row["passes"]) for row in rows])
REFERENCES["update.passes_max"] = lambda rows, _: most([float(row["passes"]) for row in rows])
