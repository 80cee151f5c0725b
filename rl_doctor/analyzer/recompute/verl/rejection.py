"""verl: criteria by which rollout correction leaves tokens out of the loss, and statistics of them (``rollout_rs_*``)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Final, get_args

import numpy as np

from rl_doctor.analyzer.derive import (
    Floats,
    per_sequence_counts,
    per_sequence_sums,
    selected,
    selected_splits,
)
from rl_doctor.analyzer.formulas.kl import k2, k3
from rl_doctor.analyzer.formulas.rejection import Kind, Over, statistic
from rl_doctor.analyzer.formulas.segments import segment_means, segment_sums, spread
from rl_doctor.analyzer.recompute.registry import EPSILON32, TOLERANCE
from rl_doctor.analyzer.recompute.statistics import (
    Reading,
    Statistic,
    Statistics,
    deviation_of,
    largest_of,
    mean_of,
    of_rows,
    of_tokens,
    smallest_of,
)
from rl_doctor.analyzer.recompute.verl.batch import CLAMP, before_rejection, first_pass
from rl_doctor.analyzer.recompute.verl.settings import Correction
from rl_doctor.frozen import frozen
from rl_doctor.store.batch import Batch

_OF: Final[Mapping[str, tuple[Over, Kind]]] = {
    f"{over}_{kind}": (over, kind) for over in get_args(Over) for kind in get_args(Kind)
}
"""Criteria by the names in verl's configuration."""
NEAR: Final = 8 * EPSILON32
"""Relative distance from a threshold within which float32 may decide otherwise."""


def engine_difference(batch: Batch) -> Floats:
    """Old logprob minus the engine's, ``[n_selected]``."""
    return selected(batch, "old_logprob") - selected(batch, "rollout_logprob")


def left_out(batch: Batch) -> Statistics:
    """Share of tokens that were left out, and of rows of which some were."""
    before, after = before_rejection(batch), first_pass(batch)
    counts = per_sequence_counts(before)
    gone = counts - per_sequence_counts(after)
    share = np.repeat(gone / np.maximum(counts, 1), counts)
    return Statistics({"tokens": of_tokens(before, share), "rows": of_rows((gone > 0).astype(np.float64))})


@frozen
class Criterion:
    """One criterion for leaving tokens out: a KL estimate per token, or its sum, mean or maximum over the sequence."""

    name: str
    over: Over
    kind: Kind
    lower: float | None
    upper: float


def criteria(correction: Correction) -> tuple[Criterion, ...]:
    """The configured criteria; none where the thresholds are not understood. Those of k1 bound the ratio, not its logarithm."""
    names = list(dict.fromkeys(part.strip() for part in (correction.rejection or "").split(",") if part.strip()))
    given = [part.strip() for part in (correction.thresholds or "").split(",") if part.strip()]
    if len(given) == 1:
        given *= len(names)
    if len(given) != len(names):
        return ()
    found = []
    for name, threshold in zip(names, given, strict=True):
        of = _OF.get(name)
        if of is None:
            return ()
        over, kind = of
        try:
            numbers = [float(part) for part in threshold.split("_")]
        except ValueError:
            return ()
        if kind == "k1":
            low, high = (1.0 / numbers[0], numbers[0]) if len(numbers) == 1 else numbers[:2]
            found.append(Criterion(name, over, kind, math.log(low), math.log(high)))
        else:
            found.append(Criterion(name, over, kind, None, numbers[0]))
    return tuple(found)


def of_criterion(criterion: Criterion) -> dict[str, Reading]:
    """The keys of a criterion, without their prefix, and how each follows from what ``divergence`` gives."""
    ends = "token" if criterion.over == "token" else "row"
    of: dict[str, Reading] = {
        "mean": mean_of("token"), "max": largest_of(ends), "min": smallest_of(ends), "fraction_high": mean_of(f"{ends}_high"),
        "fraction_low": mean_of(f"{ends}_low"), "std": deviation_of("bounded", ddof=0), "seq_mean": mean_of("row"),
        "seq_std": deviation_of("row", ddof=1), "seq_max": largest_of("row"), "seq_min": smallest_of("row"),
        "seq_max_deviation": largest_of("row_size"), "seq_fraction_high": mean_of("row_high"),
        "masked_fraction": mean_of("token_out"), "seq_masked_fraction": mean_of("row_out"),
    }  # fmt: skip
    if criterion.kind == "k1":
        of["seq_fraction_low"] = mean_of("row_low")
    return {f"rollout_rs_{criterion.name}_{name}": read for name, read in of.items()}


def _sizes(x: Floats, kind: Kind) -> Floats:
    """Size of the summands of an estimate at the log-ratio ``x`` ``[n]``."""
    if kind == "k1":
        return np.abs(x)
    value = k2(x) if kind == "k2" else k3(x)
    return value if kind == "k2" else value + EPSILON32 / TOLERANCE * (np.exp(x) + np.abs(x) + 1.0)


def divergence(before: Batch, criterion: Criterion) -> Statistics:
    """Statistics of a criterion's estimate over the tokens and rows of a batch, with the mask from before any is left out."""
    counts, splits = per_sequence_counts(before), selected_splits(before)
    filled = counts > 0
    x = np.clip(engine_difference(before), -CLAMP, CLAMP)
    values, size = statistic(x, splits, "token", criterion.kind, CLAMP), _sizes(x, criterion.kind)
    rows = statistic(x, splits, "seq_mean" if criterion.over == "token" else criterion.over, criterion.kind, CLAMP)
    if criterion.over == "seq_max":
        row_size = np.abs(rows)
    else:
        row_size = segment_sums(size, splits) if criterion.over == "seq_sum" else segment_means(size, splits)
    if criterion.over != "token":
        values, size = spread(rows, splits), spread(row_size, splits)
    lower, least = (-math.inf, 0.0) if criterion.lower is None else (criterion.lower, criterion.lower)
    found: dict[str, Statistic] = {}
    for name, item, slack, make in (
        ("token", values, NEAR * (1.0 + size), partial(of_tokens, before)),
        ("row", rows[filled], NEAR * (1.0 + row_size[filled]), of_rows),
    ):
        near_high, near_low = np.abs(item - criterion.upper) < slack, np.abs(item - lower) < slack
        found[f"{name}_high"] = make((item > criterion.upper) * 1.0, None, near_high)
        found[f"{name}_low"] = make((item < lower) * 1.0, None, near_low)
    out = (values > criterion.upper) | (values < lower)
    near = np.abs(values - criterion.upper) < NEAR * (1.0 + size)
    near |= np.abs(values - lower) < NEAR * (1.0 + size)
    any_out = per_sequence_sums(before, out)[filled] > 0
    any_near = per_sequence_sums(before, near)[filled] > 0
    return Statistics(
        {
            **found,
            "token": of_tokens(before, values, size),
            "bounded": of_tokens(before, np.clip(values, least, criterion.upper), squared=True),
            "row": of_rows(rows[filled], row_size[filled]),
            "row_size": of_rows(np.abs(rows[filled]), row_size[filled]),
            "token_out": of_tokens(before, out * 1.0, None, near),
            "row_out": of_rows(any_out * 1.0, None, any_near),
        }
    )
