"""What a token weighs in the loss: by rank and micro-batch, by the sign of its advantage, and by the recorded normaliser."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import FIRST_STEP, per_sequence_counts, real_rows, selected, selected_splits
from rl_doctor.analyzer.formulas.segments import segment_sums
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Keyed, Sum, Sums, mean
from rl_doctor.store.batch import Batch

_EXACT: Final = 1e-3
_SOURCE: Final = "a mean of means weighs a token by how few others stand in its part"
_UPDATE: Final = (FIRST_STEP, "epoch", "minibatch", "window")
"""What tells optimizer steps apart within a step of the log."""


def _keyed(batch: Batch, names: tuple[str, ...], values: Iterable[NDArray[Any]]) -> Keyed:
    """Sums of values per sequence by optimizer step (its first ``_UPDATE`` numbers) and by the columns ``names``."""
    rows = np.flatnonzero(real_rows(batch) & (per_sequence_counts(batch) > 0))
    zeros = np.zeros(batch.n_sequences, np.int64)
    columns = [batch.columns.get(name, zeros) for name in (*_UPDATE, *names)]
    keys, place = np.unique(np.stack([column[rows].astype(np.int64) for column in columns], axis=1), axis=0, return_inverse=True)
    lines = [np.asarray(line, np.float64)[rows] for line in values]
    place = place.reshape(-1)
    groups = {}
    for index, key in enumerate(keys.tolist()):
        chosen = place == index
        groups[tuple(key)] = Sums(tuple(Sum.of(line[chosen]) for line in lines))
    return Keyed(groups)


def _updates(state: Keyed) -> list[list[tuple[float, ...]]]:
    """The values of the parts of each optimizer step."""
    found: dict[tuple[int, ...], list[tuple[float, ...]]] = {}
    for key, sums in state.groups.items():
        found.setdefault(key[: len(_UPDATE)], []).append(tuple(part.value for part in sums.parts))
    return list(found.values())


def _spread(state: Keyed) -> float:
    """The largest over the smallest number of tokens of a part, in the optimizer step where that is largest."""
    ratios = [max(n)[0] / min(n)[0] for n in _updates(state) if len(n) > 1 and min(n)[0] > 0]
    return max(ratios, default=math.nan)


def _variation(state: Keyed) -> float:
    """Coefficient of variation over tokens of the weight 1 / (tokens of the part), mean over optimizer steps."""
    found = []
    for parts in _updates(state):
        sizes = np.array([n for n, *_ in parts])
        if len(sizes) > 1 and (sizes > 0).all():
            found.append(math.sqrt(max(float(sizes.sum() * (1.0 / sizes).sum()) / len(sizes) ** 2 - 1.0, 0.0)))
    return float(np.mean(found)) if found else math.nan


def _declare(name: str, names: tuple[str, ...], optional: tuple[str, ...]) -> None:
    @reduction(zero=Keyed({}), needs=names, optional=(*_UPDATE, *optional, "response_mask"))
    def tokens(batch: Batch) -> Keyed:
        return _keyed(batch, (*names, *optional), [per_sequence_counts(batch)])

    metric(
        f"weight.{name}_ratio", tokens, _spread, unit="1", source=_SOURCE,
        formula="max n_j / min n_j, n_j the trained tokens of a part j of an optimizer step",
        doc=f"Largest over smallest number of trained tokens of a {name}: how unequal weights are where each divides by its own.",
    )  # fmt: skip
    metric(
        f"weight.{name}_cv", tokens, _variation, unit="1", source=_SOURCE,
        formula="sqrt(N sum_j (1 / n_j) / k^2 - 1), n_j the trained tokens of part j of the k of an optimizer step",
        doc=f"Coefficient of variation of a token's weight where each {name} divides by its own tokens; 0 for a mean over all.",
    )  # fmt: skip


_declare("rank", ("rank",), ())
_declare("microbatch", ("microbatch",), ("rank",))


@reduction(zero=Keyed({}), needs=("batch_num_tokens",), optional=(*_UPDATE, "rank", "response_mask", "loss_mask"))
def _normaliser(batch: Batch) -> Keyed:
    """By rank of an optimizer step: tokens, rows, and the recorded normaliser of each row added up."""
    counts = per_sequence_counts(batch).astype(np.float64)
    if batch.get("loss_mask") is not None:
        counts = segment_sums(batch.columns["loss_mask"].astype(np.float64), batch.splits)
    divisor = batch.columns["batch_num_tokens"].astype(np.float64)
    return _keyed(batch, ("rank",), [counts, np.ones(batch.n_sequences), np.where(divisor > 0, divisor, np.nan)])


def _scale(choose: Callable[[list[float]], float]) -> Callable[[Keyed], float]:
    """Normaliser over tokens of the optimizer step, of the ranks' the one that ``choose`` takes; the mean over the steps."""

    def final(state: Keyed) -> float:
        found = []
        for parts in _updates(state):
            whole = sum(tokens for tokens, _, _ in parts)
            if whole > 0:
                found.append(choose([total / rows / whole for _, rows, total in parts]))
        return float(np.mean(found)) if found else math.nan

    return final


for _name, _choose, _which in (("min", min, "smallest"), ("max", max, "largest")):
    metric(
        f"weight.normaliser_{_name}", _normaliser, _scale(_choose), unit="1", source=_SOURCE,
        formula=f"{_name} over ranks of batch_num_tokens / N of the optimizer step",
        doc=f"The recorded token normaliser over the tokens of the optimizer step, the {_which} of the ranks'; 1 for a mean over "
        "all of them.",
    )  # fmt: skip


def _right(state: Keyed) -> float:
    """Share of the optimizer steps whose normaliser is their tokens, on all ranks."""
    found = []
    for parts in _updates(state):
        whole = sum(tokens for tokens, _, _ in parts)
        if whole > 0:
            found.append(all(abs(total / rows / whole - 1.0) <= _EXACT for _, rows, total in parts))
    return float(np.mean(found)) if found else math.nan


metric(
    "weight.normaliser_right_frac", _normaliser, _right, unit="1", source=_SOURCE,
    formula=f"share over optimizer steps[|batch_num_tokens / N - 1| <= {_EXACT:g} on all ranks]",
    doc="Share of the optimizer steps whose recorded token normaliser is the number of their tokens.",
)  # fmt: skip


@reduction(zero=Sums(), needs=("advantage",), optional=("response_mask",))
def _signs(batch: Batch) -> Sums:
    """Over tokens: advantage above 0, below 0. Over sequences: the same of the row's mean of signs. Lengths by that."""
    advantage = selected(batch, "advantage")
    splits = selected_splits(batch)
    up, down = segment_sums(np.where(advantage > 0, 1.0, 0.0), splits), segment_sums(np.where(advantage < 0, 1.0, 0.0), splits)
    counts = np.diff(splits)
    rows = counts > 0
    total = int(counts.sum())
    good, bad = rows & (up > down), rows & (down > up)
    return Sums((
        Sum.of(up, total), Sum.of(down, total), Sum.of(counts[good].astype(np.float64)), Sum.of(counts[bad].astype(np.float64)),
    ))  # fmt: skip


metric(
    "weight.positive_frac", _signs, mean, part=0, unit="1", source="counting over tokens", formula="share_T[A > 0]",
    doc="Share of the trained tokens whose advantage is above 0: their weight under token-mean.",
)  # fmt: skip
metric(
    "weight.negative_frac", _signs, mean, part=1, unit="1", source="counting over tokens", formula="share_T[A < 0]",
    doc="Share of the trained tokens whose advantage is below 0: their weight under token-mean.",
)  # fmt: skip
metric(
    "weight.positive_length", _signs, mean, part=2, unit="tokens", source="counting over tokens",
    formula="mean_i n_i, A > 0, n_i the trained tokens of i",
    doc="Mean number of trained tokens of the sequences whose advantage is above 0 at most of them.",
)  # fmt: skip
metric(
    "weight.negative_length", _signs, mean, part=3, unit="tokens", source="counting over tokens",
    formula="mean_i n_i, A < 0, n_i the trained tokens of i",
    doc="Mean number of trained tokens of the sequences whose advantage is below 0 at most of them.",
)  # fmt: skip
