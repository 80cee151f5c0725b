"""What any logged number may be: its definition with another sign, times a number of the run, or that of another row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.comparison import Comparison, Explanation
from rl_doctor.analyzer.recompute.native import as_number, nested
from rl_doctor.analyzer.recompute.stages import MICROBATCH_OF_RANK, MINIBATCH
from rl_doctor.frozen import frozen

if TYPE_CHECKING:
    from rl_doctor.analyzer.recompute.variations.cells import Cells
    from rl_doctor.analyzer.reconcile import Plan

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Factor = tuple[str, str, Floats]
"""A number of the run: one word, in words, and its value at each row ``[n]``."""


@frozen(eq=False)
class Multiplier:
    """What a number may be multiplied by: its name and sentence, as those of an ``Explanation``, and its values ``[n]``."""

    name: str
    sentence: str
    numbers: Floats


_BITS: Final = float(np.log2(np.e))
_SHARDS: Final = (2, 4, 8)
_SHARD_SPREAD: Final = 0.35
_TENSOR_PARALLEL: Final = ("tensor_model_parallel_size", "tensor_parallel_size", "tp_size")
_TEMPERATURE_SPREAD: Final = 0.1


def plain_explanations(item: Comparison, chosen: Plan, cells: Cells, looked: Flags) -> Iterator[Explanation]:
    """Explanations of any key, from its definition alone.

    Args:
        item: the comparison.
        chosen: the plan that gave it.
        cells: the parts of the steps that were looked at.
        looked: bool ``[n]``, rows that were.
    """

    def seen(name: str, sentence: str, values: Floats, slack: Floats) -> Explanation:
        return Explanation(name, sentence, np.where(looked, values, np.nan), slack)

    for one in multipliers(item, chosen, cells):
        yield seen(one.name, one.sentence, item.recomputed * one.numbers, item.tolerance * np.abs(one.numbers))
    for name, sentence, shift in (
        ("previous row's value", "is the value of the row logged before", -1),
        ("next row's value", "is the value of the row logged after", 1),
    ):
        yield seen(name, sentence, *_shifted(item, chosen, shift))
    if item.metric == "policy.entropy":
        yield from _consistent(item, chosen, looked)


def multipliers(item: Comparison, chosen: Plan, cells: Cells) -> Iterator[Multiplier]:
    """What the definition may be multiplied by: -1, and the numbers of the run and their inverses."""
    yield Multiplier("opposite sign", "has the opposite sign", np.full(len(item.steps), -1.0))
    for name, words, numbers in _factors(item, chosen, cells):
        yield Multiplier(f"times {name}", f"is multiplied by {words}", numbers)
        yield Multiplier(f"divided by {name}", f"is divided by {words}", 1.0 / numbers)


def _shifted(item: Comparison, chosen: Plan, shift: int) -> tuple[Floats, Floats]:
    """The definition at the row before or after, NaN where it was not compared there."""
    rows, logged = chosen.log.series(item.name)
    rows = rows[np.isfinite(logged)]
    at = np.searchsorted(rows, item.steps) + shift
    there = rows[np.clip(at, 0, len(rows) - 1)]
    place = np.clip(np.searchsorted(item.steps, there), 0, len(item.steps) - 1)
    hit = (at >= 0) & (at < len(rows)) & (item.steps[place] == there)
    return np.where(hit, item.recomputed[place], np.nan), item.tolerance[place]


def _factors(item: Comparison, chosen: Plan, cells: Cells) -> Iterator[Factor]:
    """Numbers of the run that are known and not 1."""
    config, steps = chosen.info.config, item.steps
    accumulated = as_number(nested(config.native, "gradient_accumulation_steps"))
    constant: list[tuple[str, str, Any]] = [
        ("accumulation", "the number of accumulated micro-batches", accumulated),
        ("epochs", "the number of epochs", config.epochs),
        ("group size", "the number of samples per prompt", config.group_size),
    ]
    if (item.metric or "").startswith("ref.kl"):
        constant.append(("the KL coefficient", "the KL coefficient", config.kl_coef))
    if item.metric == "policy.entropy":
        constant.append(("the entropy coefficient", "the entropy coefficient", config.entropy_coef))
    if item.unit == "nat":
        constant.append(("log2(e)", "log2(e): it is in bits, not nat", _BITS))
    for name, words, number in constant:
        if number and number != 1:
            yield name, f"{words}, {number:g}", np.full(len(steps), float(number))
    parts, mini = cells.numbers(MICROBATCH_OF_RANK, steps), cells.numbers(MINIBATCH, steps)
    per_mini = parts / cells.numbers(("rank", *MINIBATCH), steps)
    ranks = cells.numbers(("rank",), steps)
    counted = [
        ("micro-batches", "the number of micro-batches of each mini-batch and rank", per_mini),
        ("micro-batches of the step", "the number of micro-batches of the step on each rank", parts / ranks),
        ("parts of the step", "the number of micro-batches of the step over all ranks", parts),
        ("mini-batches", "the number of mini-batches of the step", mini),
        ("passes", "the number of epochs", cells.numbers(("rollout_step", "epoch"), steps)),
    ]
    written = chosen.sessions.ranks_at(steps)
    counted.append(("ranks", "the number of ranks", np.where(np.isnan(written), ranks, written)))
    for name, words, numbers in counted:
        known = numbers[np.isfinite(numbers)]
        if known.size and (known != 1).any():
            yield name, f"{words}, {' or '.join(f'{number:g}' for number in np.unique(known)[:3])}", numbers


def _consistent(item: Comparison, chosen: Plan, looked: Flags) -> Iterator[Explanation]:
    """What tokens cannot reproduce: the entropy of a part of the vocabulary, or at another temperature."""
    with np.errstate(all="ignore"):
        ratio = (item.logged / item.recomputed)[looked & (item.recomputed != 0)]
    if len(ratio) < 3 or not np.isfinite(ratio).all():
        return
    low, middle, high = np.quantile(ratio, [0.25, 0.5, 0.75])
    if not middle > 0 or high - low <= 1e-4 * middle:  # a constant factor is something else
        return
    values = np.where(looked, item.recomputed, np.nan)
    for number in _shards(chosen.info.config.native):
        if abs(middle * number - 1.0) <= _SHARD_SPREAD:
            yield Explanation(
                f"one of {number} shards of the vocabulary",
                f"is {middle:.3g} of the entropy, about 1/{number}, as where one of {number} shards of the vocabulary is summed",
                values / number, np.abs(values) / number * 2 * _SHARD_SPREAD, approximate=True,
            )  # fmt: skip
    if 0.2 < middle < 5 and high - low <= 2 * _TEMPERATURE_SPREAD * middle:
        word = "above" if middle > 1 else "below"
        spread = 100 * max(high - middle, middle - low) / middle
        yield Explanation(
            "entropy at another temperature",
            f"is {middle:.3g} times the entropy (within {spread:.2g}% at half of the steps), as at a temperature {word} 1",
            values * middle, np.abs(values) * middle * 3 * _TEMPERATURE_SPREAD, approximate=True,
        )  # fmt: skip


def _shards(native: Any) -> tuple[int, ...]:
    """Shards of the vocabulary: as many as tensor-parallel ranks where that is known."""
    found = {int(value) for name, value in _leaves(native or {}) if name in _TENSOR_PARALLEL and isinstance(value, int)}
    known = tuple(sorted(number for number in found if number > 1))
    return known or _SHARDS


def _leaves(native: Any) -> Iterator[tuple[str, Any]]:
    for name, value in native.items():
        if isinstance(value, dict):
            yield from _leaves(value)
        else:
            yield str(name).rsplit(".", 1)[-1], value
